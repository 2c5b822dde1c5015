"""`logtx demo --spark`: the flights go as a stream through Spark into the ledger, exactly once.

A streaming query reads topic `flights` and writes `airport_ledger` through the format "logtx"; its
driver is killed twice with a transaction open, and goes on. Then a Spark job of another process
recovers what was committed, audits the logs, exports the ledger to Parquet, and holds it to the
file. `docs/demo.md` says what is shown and how it is counted.

    supervisor   starts everything, watches the journal, says the verdict
    driver       the streaming query
    killer       decides when the driver dies, by what the journal and the ledger show
    inspector    recover, audit, export, and the comparison with the file
"""
