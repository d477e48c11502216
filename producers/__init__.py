"""Producers: the session core and the publishers of weights, gradients, rows and KV."""
