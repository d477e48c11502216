"""Brokers: the partition core, takeover and ownership, and the shell that serves them."""
