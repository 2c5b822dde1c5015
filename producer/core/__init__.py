"""What a transaction has written, and what its commit may state. Pure: no I/O, no clock.

Imports `journal` and `coordinator.protocol`. Never waits and never calls librdkafka.
"""
