"""What a coordinator's process offers: streams of clients, metrics, and the retention guard.

`streams` serves clients from the runtimes, `topics` and `bindings` look up what a request needs
to know of data topics and consumer groups, `metrics` answers `/metrics`, `retention` ends
transactions before the broker deletes their data.

Imports the runtimes and whatever these import. Never changes a shard but by a command.
"""
