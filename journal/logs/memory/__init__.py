"""A log in this process, for tests and simulations: topics, groups, producers, consumers, faults.

Imports only the interface and the errors. Never starts a thread, and never leaves the process.
"""
