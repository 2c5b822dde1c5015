"""What logs show: audits, and the committed input offsets of consumer groups.

Imports `journal`, and how the coordinator writes `__transaction_offsets`. Never needs Spark, nor
a coordinator that runs.
"""
