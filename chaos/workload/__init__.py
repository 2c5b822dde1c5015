"""The processes of a chaos run.

    producer   appends unique values to keys, in transactions and plainly
    worker     reads them and writes one record for each, exactly once
    consumer   reads along, in a group or alone, at one isolation level
    final      reads everything from the beginning, when all is over

Each is `python -m … DIRECTORY NUMBER INCARNATION`: the run directory has the settings. They write
the history before they act (`recorder.py`), and end on SIGTERM.
"""
