"""One module for each family of anomalies, and what they read: `Facts` in, findings out. Pure.

`wire`, `avro` and `journal` parse headers and journal records from the documented formats alone.
`history` and `logs` index what was written down. The other modules look for anomalies.

Imports nothing of logtx. Never opens a file.
"""
