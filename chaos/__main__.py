"""`python -m logtx.chaos` is the command `logtx chaos`."""

import typer

from .command import chaos

typer.run(chaos)
