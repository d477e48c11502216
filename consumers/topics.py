"""The topics that a replica follows, as its users name them."""

from __future__ import annotations

from ..errors import InvalidEvent, ParamstreamError, UnknownTopic
from .applying import Applier, TopicState


class Topics:
    """Until `close`: from then on each call but that one raises `ParamstreamError`. Any thread."""

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self.closed = False

    def find(self, name: str | None) -> TopicState:
        """The topic of that name; None where there is one only. Raises `UnknownTopic`, or `InvalidEvent` where there are several."""
        topics = self.each(None)
        if name is None:
            if len(topics) != 1:
                names = ", ".join(repr(state.record.name) for state in topics)
                raise InvalidEvent(f"this replica follows several topics ({names})", remedy="Say which with topic=")
            return topics[0]
        for state in topics:
            if state.record.name == name:
                return state
        raise UnknownTopic("this replica does not follow the topic", topic=name)

    def each(self, name: str | None) -> list[TopicState]:
        """The topic of that name, or all."""
        self.check_open()
        return list(self._applier.topics.values()) if name is None else [self.find(name)]

    def check_open(self) -> None:
        if self.closed:
            raise ParamstreamError("the replica is closed", remedy="Make another one")

    def close(self) -> None:
        self.closed = True
