"""The one ZeroMQ socket factory, connections with their heartbeats, and the control frames between clients and brokers.

This room moves frames; it does not know what a payload means.
"""
