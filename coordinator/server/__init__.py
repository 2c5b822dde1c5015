"""What a coordinator process offers: streams of clients, metrics, and the retention guard.

`streams` serves clients from the runtimes, `topics` and `bindings` look up what a request needs to
know about data topics and consumer groups, `switching` checks switches of topics and `rules` asks
for those of topics that are created later, `metrics` answers `/metrics`, and `retention` aborts
transactions before the broker deletes their data. `opened` serves each connection by what its
first message asks for.

Imports `runtime`, `core`, `membership`, `transport`, `protocol`, and `client` to ask other
coordinators. Changes a shard only by a command.
"""
