"""What stands in a journal: record types, their Avro codecs, snapshots, and what makes one valid.

Imports `journal`'s values alone. Pure: no I/O, no clock, no chance.
"""
