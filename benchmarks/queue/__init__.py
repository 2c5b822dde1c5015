"""Measures queues beside consumers, and beside Kafka's share groups; see `__main__`."""
