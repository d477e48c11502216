"""One stream for model parameters: weights, rows, gradients and KV as versioned events.

This file is the list of public names and nothing else.
"""

__all__: list[str] = []
