"""The metadata store: what became of each transaction and where it wrote, to be asked and watched.

    core/       keys, values, and the projection of the journal onto them; pure
    base        what a store does; `keyed`: all of it but reading and writing keys
    memory      a store in this process; `rocks`: one in a directory; `etcd`: one for all
    watching    watches of stores that only this process writes; `polling`: of any other store
    projector   follows the journal, applies it, and makes a store again that was lost
    sweeper     deletes what no reader needs any more
    service     answers questions of clients; `asking`: what they read

The journal is the truth, and the store follows it: no transaction waits for it, and nothing that
decides or delivers one reads it. Imports `journal` and `coordinator.protocol` only.

Source: PIP-471, "Data Model".
"""
