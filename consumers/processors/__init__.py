"""Processors: events in, events out, exactly once."""
