"""The journal's records: their types, Avro codecs, snapshots, and the rules of validity.

Imports only `journal`'s values. Pure: no I/O, no clock, no chance.
"""
