"""Measures transactions in sidecars beside transactions with markers; see `__main__`."""
