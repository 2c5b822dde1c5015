"""Joins logtx to its surroundings: blocks of input, a local Kafka, Spark, the command line.

    blocks          `logtx.process`: read, process, write, exactly once
    groups          shows consumer groups, resets and deletes them
    local/          starts and watches Kafka and coordinators as processes of this machine
    inspect/        reads logs for audits and committed input offsets; needs no Spark
    spark/          sink, sources, recovery and export
    cli/            the command `logtx`
    demo/           `logtx demo`
    testing         a log with coordinators for tests; `pytest_plugin` gives it as fixtures
    live            shows people the progress of a run

This room imports the rooms below it. Only `chaos` imports it.
"""
