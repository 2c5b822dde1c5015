"""What clients and coordinators say to each other: commands, replies, and their form on the wire.

Both ends import it. Imports `journal` alone. Never opens a connection and never decides.
"""
