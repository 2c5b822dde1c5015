"""Runs the command `logtx` as `python -m logtx`."""

from .integration.cli.main import main

main()
