"""The C extension, which makes some things faster and nothing possible.

Whoever uses it has another way, in Python alone, with the same results. So it may be missing.
"""
