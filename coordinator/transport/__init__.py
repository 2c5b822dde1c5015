"""Connections between clients and coordinators, and of coordinators among each other.

`coordinator/protocol/frames.py` has the machine of one end, pure. Here are the two shells that run
it: `on_loop` on an event loop, for coordinators, and `in_thread` with a thread of its own, for
clients. On top of them `streams_on_loop` and `streams_in_thread` let many share a connection, by
the machine of `multiplex.py`; `answers` hands out what came for clients. `tls` lies between the
machine's bytes and the socket's. `alive` speaks for an event loop that is held up.

What a message says is the business of who uses them. Imports `protocol` and `journal`.
"""
