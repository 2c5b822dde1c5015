"""Measures topics in metadata mode beside topics with markers; see `__main__`."""
