"""What clients and coordinators say to each other: commands, replies, and their form on the wire.

Both ends import this package. It imports `journal` alone, opens no connection and decides nothing.
"""
