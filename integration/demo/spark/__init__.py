"""`logtx demo --spark`: streams the flights through Spark into the ledger, exactly once.

A streaming query reads topic `flights` and writes `airport_ledger` through the format "logtx". Its
driver is killed twice with a transaction open, and its successor goes on. Then another process
recovers what was committed, audits the logs and exports the ledger to Parquet, by Spark jobs, and
compares the export with the file. `docs/demo.md` says what is shown and how it is counted.

    supervisor   starts everything, follows the journal, gives the verdict
    driver       the streaming query
    killer       decides when the driver dies, from what the journal and the ledger show
    inspector    recovers, audits, exports, and compares with the file
"""
