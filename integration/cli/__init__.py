"""Implements the command `logtx`: one module for each group of commands, joined in `main`.

Each command imports what it runs when it is first used, so that `logtx --help` is quick. Logic that
a program could use does not belong here: it is in the room whose command it is.
"""
