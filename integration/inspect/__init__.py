"""Reads logs: audits them, and lists the committed input offsets of consumer groups.

Imports `journal`, and the coordinator's codec of `__transaction_offsets`. Needs neither Spark nor a
running coordinator.
"""
