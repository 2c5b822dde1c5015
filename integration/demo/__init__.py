"""`logtx demo`: books a year of flights in a ledger, and kills its processes meanwhile.

Three worker processes book flights in transactions. They and the coordinators are killed with
SIGKILL, or paused and woken as zombies. Two auditor processes check whether the ledger holds
exactly the flights of the file. `docs/demo.md` says what is shown and how it is counted.

    run          plays the parts, one after the other
    part         what both parts share: the stage, and the loop that follows a run
    supervisor   the workers' part: starts everything, follows the journal, gives the verdict
    publisher    a thread: flights.csv → topic `flights`
    worker       `flights` → topic `airport_ledger` and the input offsets, in one transaction
    auditor      reads the ledger, read_committed or read_uncommitted
    monkey       decides which process to kill or pause, from what the journal shows
    deeds        decide which kills and pauses count

    spark/       Spark's part: a streaming query books the flights, and its driver is killed

Imports every room below it, and `blocks`, `live`, `local` and `spark` of this one. Only the command
line imports it. It reads the journal only through `journal`, and reports of a fault only what the
journal and the ledger show.
"""
