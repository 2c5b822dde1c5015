"""What joins logtx to the world: blocks of input, a Kafka on this machine, Spark, the command line.

    blocks          `logtx.process`: read, process, write, exactly once
    local/          Kafka and coordinators as processes of this machine, started and watched
    inspect/        what logs show: audits and committed input offsets; needs no Spark
    spark/          sink, sources, recovery and export
    cli/            the command `logtx`
    demo/           `logtx demo`
    testing         a log with coordinators for tests; `pytest_plugin` gives it as fixtures
    live            how far a run is, for people

Imports every other room; none imports it.
"""
