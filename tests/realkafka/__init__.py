"""A real Apache Kafka for the tests that need one."""
