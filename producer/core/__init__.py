"""What a transaction has written, and what a commit may state of it. Pure: no I/O, no clock.

Imports `journal` alone. Never waits and never calls librdkafka.
"""
