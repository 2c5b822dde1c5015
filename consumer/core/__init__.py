"""Decides what of a partition's records is delivered, and in which order. Pure: no I/O, no clock.

Imports `journal` alone. Never reads from the log: it asks its caller for what it lacks.
"""
