"""Keeps pending records on disk: in chunks, in RocksDB, in directories that are deleted as a whole.

Imports `journal` and `consumer.core`. Never keeps anything beyond the life of a process.
"""
