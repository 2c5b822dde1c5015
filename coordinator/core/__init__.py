"""The state machine of one journal partition. Pure: no I/O, no clock, no chance, no tasks.

`shard` decides and replays; `tenure` says when a decision may be told, from one OWNER record to
the first surprise; `replica` follows a journal that another coordinator owns; `snapshot` writes
and reads what a shard knows. The other modules are the shard's parts.

Imports `journal` and `coordinator.protocol`. Never calls the world but through `tenure.Shell`.
"""
