"""`logtx chaos`: attacks a cluster of three brokers, and keeps a history of what its clients saw.

    run          a run from start to end: cluster, processes, faults, drain, last readers, verdict
    plan         which faults, when and to which process: drawn from the seed, pure
    nemesis      carries the plan out
    proxy        every client's way to a broker or a coordinator; can be cut, stalled, delayed
    workload/    the processes: producers, workers, consumers, and the last readers
    recorder     the history: what a process is about to do, and what came of it
    checker/     judges the history and the logs; shares no code with what it judges

`docs/chaos.md` says what is done and what is looked for. Imports the rooms that it attacks,
`integration.local`, `integration.live` and `integration.blocks`; no room imports it. It is part of
a checkout, never of the wheel.
"""
