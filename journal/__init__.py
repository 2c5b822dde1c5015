"""The ground floor: what a transaction is called, what the journal says, and the log under both.

Owns TxId, the headers `TxId` and `TxCtl`, positions, all errors, the journal's records and how
to read them. `logs/` is the log itself (Kafka, or one in memory) and knows nothing of a journal.
`records/` is what stands in a journal: pure values, codecs and the rules of validity.

Imports no other room. Never decides anything: that is the coordinator's.
"""
