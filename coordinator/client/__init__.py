"""The only way for producers, consumers and operators to reach a coordinator.

`session` holds a producer's session, `queries` asks single questions, `admin` asks what operators
want to know, all by `connection`. `metadata` asks the metadata store, by `metadata_calls`.
`pursuit` (pure) decides whom to ask when the owner is lost, and `finder` asks them.

Imports `journal`, `coordinator.protocol` and `coordinator.transport`. Never imports another part of
the coordinator.
"""
