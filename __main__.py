"""`python -m logtx` is the command `logtx`."""

from .integration.cli import main

main()
