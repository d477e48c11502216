"""The event log in Apache Kafka: partition to partition, event to record."""
