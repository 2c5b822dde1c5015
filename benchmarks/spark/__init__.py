"""The Spark benchmark: exactly-once beside Spark's own Kafka connector, and the audit's speed."""
