"""What users read of a replica's weights: whole versions, and modules bound to them. Any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidEvent, VersionNotHeld
from .applying import TopicState
from .casting import Cast
from .live_state import LiveState
from .matching import Rename
from .resting import Resting
from .versions import Sealed
from .views import Weights

if TYPE_CHECKING:
    import torch

    from .bound import Bound

TIMEOUT_S = 30.0


class ServedWeights:
    """Of the topics of one replica."""

    def __init__(self, live: LiveState, resting: Resting) -> None:
        self._live = live
        self._resting = resting
        self._bound: list[Bound] = []

    def read(self, version: int | None, topic: str | None) -> Weights:
        """As `Replica.weights`."""
        live = self._live
        if live.recorder is None or version is not None:
            state, sealed = self._retained(version, topic)
        else:
            with live.sink.changed:
                state, sealed = self._retained(version, topic)
                live.recorder.reads_weights(state, sealed)
        try:
            return self._view(state.record.name, sealed)
        finally:
            sealed.dense.release()

    def wait(self, version: int, topic: str | None, deadline: float) -> None:
        """As `Replica.wait_version`."""
        topics, name = self._live.topics, self._live.topics.find(topic).record.name

        def reached() -> bool:
            now = topics.find(name)
            served, kept = now.served, now.find(version)
            return served is not None and (
                served.version >= version or (kept is not None and kept.position <= served.position)
            )

        self._live.waits.until(
            reached, deadline, f"version {version}", lambda partition: partition == topics.find(name).weight_partition
        )

    def bind(
        self, module: torch.nn.Module, rename: Rename | None, strict: bool, topic: str | None, follow: bool, cast: Cast
    ) -> Bound:
        """As `Replica.bind`."""
        from .bound import Bound, TopicView

        if cast not in ("none", "exact", "lossy"):
            raise InvalidEvent(f"cast={cast!r} is neither 'none', 'exact' nor 'lossy'")
        topics, sink = self._live.topics, self._live.sink
        name = topics.find(topic).record.name
        view = TopicView(
            name,
            lambda: topics.find(name).served,
            lambda version: self._held(topics.find(name), version),
            lambda sealed: self._view(name, sealed),
        )
        bound = Bound(module, view, rename=rename, strict=strict, cast=cast, follow=follow)
        if bound.error is not None:
            bound.close()
            raise bound.error
        bound.on_close = lambda: self._forget(bound)
        with sink.changed:
            sink.bounds = (*sink.bounds, bound)
        self._bound.append(bound)
        bound.refresh()
        return bound

    def close(self) -> None:
        """Modules keep what they have."""
        for bound in list(self._bound):
            bound.close()

    def _forget(self, bound: Bound) -> None:
        sink = self._live.sink
        with sink.changed:
            sink.bounds = tuple(known for known in sink.bounds if known is not bound)
        self._bound = [known for known in self._bound if known is not bound]

    def _retained(self, version: int | None, topic: str | None) -> tuple[TopicState, Sealed]:
        """The version served, or a kept one, which the caller is to release."""
        while True:
            state = self._live.topics.find(topic)
            sealed = self._held(state, version)
            if sealed.dense.retain():
                return state, sealed

    def _view(self, topic: str, sealed: Sealed) -> Weights:
        """Of a version that the caller has retained."""
        state = self._live.topics.find(topic)
        state.rests = False
        self._resting.bring_back(state, sealed, TIMEOUT_S)
        arrays = self._live.options.arrays
        mapping = sealed.dense.private() if arrays == "torch" else sealed.dense.shared()
        return Weights(topic, sealed, mapping, arrays, lambda: self._live.directory.to_names(sealed.vector))

    def _held(self, topic: TopicState, version: int | None) -> Sealed:
        """The version served, or a kept one. Raises `VersionNotHeld`."""
        sealed = topic.served if version is None else topic.find(version)
        if sealed is not None:
            return sealed
        if version is None:
            raise VersionNotHeld("nothing has been committed yet", topic=topic.record.name, remedy=_NONE_YET)
        kept = ", ".join(str(each.version) for each in topic.versions.kept)
        raise VersionNotHeld(
            f"the version is not kept here; kept are: {kept or 'none'}",
            topic=topic.record.name,
            version=version,
            remedy="Give the replica a larger keep_versions",
        )


_NONE_YET = "Use wait_version; a replica that was restored to a moment before the first version has none"
