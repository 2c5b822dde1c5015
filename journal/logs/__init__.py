"""The log: an interface in confluent-kafka's shape, and its implementations.

Owns `interface.Log`, Kafka (`kafka`, on `kafka_offsets`, `kafka_topics` and `kafka_cluster`), a log
within this process that can be made to fail (`memory/`), and the choice between them (`open`).
Imports only the errors. Never looks into a record.
"""
