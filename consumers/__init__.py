"""Consumers: the subscription core, replicas, restore and raw subscriptions."""
