"""The ground floor: a transaction's identity, the journal's records, and the log that holds both.

Owns TxId, the headers `TxId` and `TxCtl`, positions, all errors, the journal's records and how to
read them. `logs/` is the log itself (Kafka, or one in memory) and knows nothing of a journal.
`records/` holds what a journal is made of: pure values, codecs and the rules of validity.

Imports no other room. Never decides anything: the coordinator does.
"""
