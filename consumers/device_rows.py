"""Rows of a replica on a device: gathered there from the HBM tier where it lies on that device, and brought there otherwise."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import InvalidEvent
from ..events.arrays import as_torch
from ..events.row_keys import Keys
from ..tiers.hbm import HbmTable, Held
from ..tiers.store import TieredStore
from ..transport.calls import TopicRecord
from .row_reads import RowReads


class DeviceRows:
    """Of one replica. Any thread."""

    def __init__(self, store: TieredStore, reads: RowReads) -> None:
        self._store = store
        self._reads = reads

    def look_up(
        self, topic: TopicRecord, table: str, keys: Keys, device: str | torch.device
    ) -> tuple[torch.Tensor, npt.NDArray[np.bool_]]:
        """As `RowReads.look_up`, with the values in a tensor of the caller's own on `device`."""
        wanted = _device_of(device)
        above = self._above(topic, table)
        if above is not None and self._store.hbm is not None and self._store.hbm.device == wanted:
            return above.lookup(keys)
        values, found = self._reads.look_up(topic, table, keys)
        return _tensor_of(values).to(wanted), found

    @contextmanager
    def hold(self, topic: TopicRecord, table: str, keys: Keys) -> Generator[Held]:
        """The rows of a batch as `HbmTable.hold` has them; without an HBM tier a copy of them in the host's memory."""
        above = self._above(topic, table)
        if above is not None:
            with above.hold(keys) as held:
                yield held
            return
        distinct, inverse = np.unique(keys, return_inverse=True)
        values, found = self._reads.look_up(topic, table, distinct)
        yield Held(_tensor_of(values), torch.from_numpy(inverse.astype(np.int64)), found[inverse])

    def prefetch(self, topic: TopicRecord, table: str, keys: Keys) -> int:
        """Brings rows to the HBM tier, if there is one; how many came."""
        above, hbm = self._above(topic, table), self._store.hbm
        return 0 if above is None or hbm is None else hbm.prefetch(above, keys)

    def _above(self, topic: TopicRecord, table: str) -> HbmTable | None:
        spec = self._reads.spec(topic, table)
        hbm = self._store.hbm
        if hbm is None:
            return None
        return hbm.table((topic.id, table), spec.dim, spec.dtype, lambda keys: self._reads.look_up(topic, table, keys))


def _tensor_of(values: npt.NDArray[Any]) -> torch.Tensor:
    """Over the same memory."""
    return as_torch(values.reshape(-1).view(np.uint8), values.dtype.name, values.shape)


def _device_of(device: str | torch.device) -> torch.device:
    """With its number. Raises `InvalidEvent` for what is no device here."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:  # The last is torch's where it has no CUDA.
        raise InvalidEvent(f"device={device!r} is no device here: {error}") from None
