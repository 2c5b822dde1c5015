"""Which coordinators exist, which of them are reached or presumed dead, and what each serves.

`members` and `balance` are pure policies; `peers` keeps the streams to the other coordinators, by
`links`. All of it is a guess that may be wrong: safety rests on the journal alone.

Imports `journal`, `coordinator.protocol`, `coordinator.tasks` and `coordinator.transport`. Never
appends to a journal and never decides a command.
"""
