"""Makes `python -m logtx.chaos` the command `logtx chaos`."""

import typer

from .command import chaos

typer.run(chaos)
