"""Measures what transactions larger than memory cost: memory, disk and time."""
