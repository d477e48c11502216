"""Positions, version vectors, stamps, the delivery gate, and the checkers of delivery logs.

This room knows order and nothing else: no tensors, sockets or tiers.
"""
