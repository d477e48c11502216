"""Paying for memory before a lock is taken.

A budget that is short asks its holders for bytes, and they take their locks for that: so whoever charges it holds none. But only under
the lock can be seen how much is needed. So that is looked up, charged without the lock, and spent under it; if it was too little
after all, because another thread was faster, it goes round again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from ..budget import Budget
from .index import Charge

Result = TypeVar("Result")


class CreditShort(Exception):
    """What was charged beforehand does not suffice, by `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        super().__init__(f"{nbytes} bytes short")


class Credit:
    """Bytes charged to a budget and not spent yet."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes

    def spend(self, nbytes: int) -> None:
        """Takes bytes out of it. Raises `CreditShort` with nothing taken."""
        if nbytes > self.left:
            raise CreditShort(nbytes - self.left)
        self.left -= nbytes


def paid(
    budget: Budget, lock: AbstractContextManager[bool], price: Callable[[], int], act: Callable[[Charge], Result]
) -> Result:
    """Does `act` under the lock, which is free on entry, with about `price()` bytes (asked under it too) that were charged before.

    Raises `StorageFull` from the budget, before `act` or between two tries of it; `act` changes nothing where its charge raises.
    """
    short = 0
    while True:
        with lock:
            wanted = price() + short
        budget.charge(wanted)
        credit = Credit(wanted)
        try:
            with lock:
                return act(credit.spend)
        except CreditShort as error:
            short += error.nbytes
        finally:
            budget.refund(credit.left)
