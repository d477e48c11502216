"""Publishes for a broker's keeper that rows have expired."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt

from ..client import Client, connect
from ..errors import ParamstreamError

PREFIX = "__expiry-"
"""Of the names of the producers that delete expired rows."""

TIMEOUT_S = 10.0


class Expirer:
    """A producer of the keeper's own name, which a restart of the keeper takes over. It connects with the first deletion."""

    def __init__(self, endpoint: str, identity: str) -> None:
        self._endpoint = endpoint
        self._producer = f"{PREFIX}{identity[:12]}"
        self._client: Client | None = None

    def delete(self, topic: str, table: str, keys: npt.NDArray[np.int64], up_to: int) -> None:
        """Delete the rows where they were last written at or below `up_to`; returns once that is durable (accepted, under "none").

        Raises what publishing raises; the next call connects anew.
        """
        try:
            if self._client is None:
                self._client = connect(self._endpoint, timeout=TIMEOUT_S)
            publisher = self._client.publisher(topic, self._producer, timeout=TIMEOUT_S)
            publisher.delete_rows(table, keys, up_to=up_to, timeout=TIMEOUT_S)
            publisher.flush(TIMEOUT_S)
        except ParamstreamError:
            self.close()
            raise

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # What was not answered is deleted once more by the next look, or was deleted.
            with suppress(ParamstreamError):
                client.close(TIMEOUT_S)
