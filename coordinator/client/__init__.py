"""The RPC client: the only way for producers, consumers and operators to reach a coordinator.

`session` holds a producer's session, `queries` asks single questions, `admin` asks what operators
want to know; all over gRPC, by `connection`. `framed` has the same over frames, and is not used
yet. `pursuit` (pure) decides whom to ask when the owner is lost, and `finder` asks them.

Imports `journal`, `coordinator.protocol` and `coordinator.transport`. Never imports another part of
the coordinator.
"""
