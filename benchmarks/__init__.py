"""Benchmarks: logtx beside Kafka's own transactions, on one broker, in one run, as ratios.

`python -m benchmarks` runs them; `docs/benchmarks.md` is generated from their results. logtx
imports nothing from here, and no test asserts a time.
"""
