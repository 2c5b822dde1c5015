"""What is delivered, and in which order, from the records of a partition. Pure: no I/O, no clock.

Imports `journal` alone. Never reads from the log: what it lacks it asks its caller for.
"""
