"""Benchmarks: logtx beside Kafka's own transactions, on one broker, in one run, as ratios.

`python -m benchmarks` runs them; `docs/benchmarks.md` is generated from their results. Nothing
here is imported by logtx, and no time is asserted by a test.
"""
