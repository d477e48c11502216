"""Consumers: the subscription core, replicas with atomic versions, bound modules, and raw subscriptions.

This room does not know how a broker works inside; it sees events, heartbeats and the answers to its requests.
"""
