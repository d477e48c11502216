"""Positions, version vectors, stamps, the delivery gate, histories and their checkers.

This room knows order and nothing else: no tensors, sockets or tiers.
"""
