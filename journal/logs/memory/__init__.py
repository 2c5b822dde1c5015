"""A log within this process, for tests and simulations.

Has topics, groups, producers, consumers and faults. Imports only the interface and the errors.
Never starts a thread, and never leaves the process.
"""
