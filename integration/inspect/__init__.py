"""Reads logs: audits them, and lists the committed input offsets of consumer groups.

Imports `journal`, and the coordinator's commands and its codec of `__transaction_offsets`. Never
needs Spark or a running coordinator, and never writes.
"""
