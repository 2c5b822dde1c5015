"""Consumer: buffers pending transactions, and delivers each when it reads its commit marker.

`core/` is pure: it sorts the records of one partition, and puts decisions into their serial order.
`spill/` keeps on disk what does not fit into memory. The other modules connect both to librdkafka,
to the journal and to the application's calls.

Imports `journal`, `coordinator.client` and `coordinator.protocol`. Never guesses what became of a
transaction: a marker or the journal says it.
"""
