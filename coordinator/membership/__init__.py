"""Which coordinators there are: who is reached, who is presumed dead, and who serves what.

`members` and `balance` are pure policies; `peers` keeps the streams to the other coordinators.
What it says is a guess that may be wrong: safety rests on the journal alone.

Imports `journal` and `coordinator.tasks`. Never appends and never decides.
"""
