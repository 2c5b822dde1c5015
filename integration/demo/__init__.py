"""`logtx demo`: a year of flights booked in a ledger, while its processes are killed.

Three worker processes book flights in transactions; they and the coordinators are killed with
SIGKILL, or paused and woken as zombies; two auditor processes tell whether the ledger is exactly
the file. `docs/demo.md` says what is shown and how it is counted.

    run          plays the parts, one after the other
    part         what both parts have in common: the stage, and the loop that follows a part
    supervisor   the workers' part: starts everything, watches the journal, says the verdict
    publisher    a thread: flights.csv → topic `flights`
    worker       `flights` → topic `airport_ledger` and the input offsets, in one transaction
    auditor      reads the ledger, read_committed or read_uncommitted
    monkey       decides whom to kill or pause, by what the journal shows
    deeds        say what counts of that

    spark/       Spark's part: the same by a streaming query, whose driver is killed

Imports every room, and `inspect`, `local` and `spark` of this one. Nothing but the command line
imports it. Never reads the journal other than through `journal`, and never tells of a fault what
the journal and the ledger do not show.
"""
