"""Producers: the session core and the publishers of weights, gradients, rows and KV."""

from .publisher import Publisher
from .receipt import Outcome, Receipt
from .session import Session

__all__ = ["Outcome", "Publisher", "Receipt", "Session"]
