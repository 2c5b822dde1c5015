"""Logs as former versions wrote them, kept as files: they must load and deliver the same for ever.

Each directory beside is one set: a journal partition, data partitions, the records of
``__transaction_offsets``, and what comes of them, for people to read (``expected.txt``). Sets are
only ever added: `python -m tests.golden.generate NAME`.
"""
