"""The command `logtx`: one module for each group of commands, joined in `main`.

Imports what a command runs on at its first use, so that `logtx --help` is quick. Never holds
logic that a program could want: that is in the room whose command it is.
"""
