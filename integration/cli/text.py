"""Makes text from elsewhere safe for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns a text with its control and format characters escaped, such as \\\\x1b.

    Names come from whoever connected to a coordinator, and a terminal would obey what is in them.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
