"""One module for each family of anomalies, and what they read: `Facts` in, findings out. Pure.

`wire`, `avro` and `journal` parse headers and journal records from the documented formats alone;
`history` and `logs` index what was written down; the others look for what must never be.

Imports nothing of logtx. Never opens a file.
"""
