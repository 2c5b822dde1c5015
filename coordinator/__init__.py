"""The coordinator: decides each transaction with one append to a journal partition that it owns.

    protocol/    what clients and coordinators say to each other, and its form on the wire
    core/        the state machine of one journal partition, and its tenure; pure
    client/      how producers, consumers and operators find and ask the owner of a partition
    membership/  which coordinators there are, who is presumed dead, who serves what
    runtime/     one journal partition served or followed: the core, the journal, the writers
    store/       the metadata store: a projection of the journal, to be asked and watched
    server/      streams of clients, topic knowledge, metrics, the retention guard
    ownership    joins membership and runtimes: planned moves, and leaving
    service      the process; `embedded` runs one in a thread, `ready` says when one serves
    tasks        tasks whose failure ends the process

Imports only `journal`. Producers and consumers import only `client` and `protocol` from here. The
coordinator never touches the records of a transaction: it writes markers and reads its own journal.
"""
