"""Consumer: buffers pending transactions, and delivers each when it reads its commit marker.

`core/` sorts the records of one partition, and decisions into their serial order; pure. `spill/`
keeps on disk what does not fit into memory. The other modules join them to librdkafka, to the
journal and to what the application calls.

Imports `journal`, `coordinator.client` and `coordinator.protocol`. Never delivers by a guess: a
marker, or the journal, says what became of a transaction.
"""
