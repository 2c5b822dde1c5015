"""Transactions on any Kafka-compatible log."""
