"""Random histories of a real client over a log in memory, each drawn from a seed."""
