"""The state machine of one journal partition. Pure: no I/O, no clock, no randomness, no tasks.

`shard` decides and replays; `tenure` says when a client may be told of a decision, from one OWNER
record to the first surprise; `replica` follows a journal that another coordinator owns; `snapshot`
turns a shard into records and back. The other modules are parts of the shard.

Imports `journal` and `coordinator.protocol`. Calls the outside world only through `tenure.Shell`.
"""
