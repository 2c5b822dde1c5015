"""The processes of a chaos run.

    producer   appends unique values to keys, in transactions and plainly
    worker     reads the values and writes one record for each, exactly once
    consumer   reads along, in a group or alone, at one isolation level
    final      reads everything from the beginning, after the load

Each is started as `python -m … DIRECTORY NUMBER LIFE`; the run directory has the settings.
They write to the history before they act (`recorder.py`), and end on SIGTERM.
"""
