"""Producer, Transaction and Branch: records straight to the topics, decisions from a coordinator.

`core/` is the bookkeeping of one transaction, pure; the other modules join it to librdkafka and
to a coordinator. `producer.Producer` and `branch.Branch` are the public faces.

Imports `journal`, `coordinator.client` and `coordinator.protocol`. Never decides the fate of a
transaction by itself: what it does not know it asks for, by TxId.
"""
