"""Helpers for tests of the brokers' cores: a session and a log without any I/O."""
