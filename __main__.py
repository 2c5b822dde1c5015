"""`python -m logtx` is the command `logtx`."""

from .integration.cli.main import main

main()
