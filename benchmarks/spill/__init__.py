"""Transactions larger than memory: what they cost in memory, disk and time."""
