"""Event logs: append, read, claim and trim, in memory and on the local disk."""
