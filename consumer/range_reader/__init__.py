"""Reads ranges of partitions: what ends in them, whole, wherever reading starts."""
