"""One journal partition on an event loop: loaded, followed, bid for, served, given away.

`partition` moves it from role to role, `candidate` follows and bids, `serving` joins a tenure of
the core to the journal and to what writes markers and input offsets.

Imports `journal`, the core, the protocol, membership and `tasks`. Never talks to a client: it calls
back.
"""
