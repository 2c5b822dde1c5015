"""The log: an interface in confluent-kafka's shape, and what implements it.

Owns `interface.Log`, Kafka (`kafka`), a log in this process with faults at hand (`memory/`), and
the choice between them (`open`). Imports only the errors. Never looks into a record.
"""
