"""Pending records on disk: chunks of them in RocksDB, in directories that are thrown away whole.

Imports `journal` and `consumer.core`. Never keeps anything beyond the life of a process.
"""
