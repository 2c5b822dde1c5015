"""Producer, Transaction and Branch: records go straight to the topics, a coordinator decides.

`core/` is the pure bookkeeping of one transaction; the other modules join it to librdkafka and to a
coordinator. `producer.Producer` and `branch.Branch` are the public faces.

Imports `journal`, `coordinator.client` and `coordinator.protocol`. Never decides the fate of a
transaction by itself: a fate that it does not know it asks for, by TxId.
"""
