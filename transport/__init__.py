"""The one ZeroMQ socket factory, loops, heartbeats and the control frames."""
