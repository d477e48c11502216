"""What a client's link calls: each answer goes to the session that it is for."""

from __future__ import annotations

from ..errors import ParamstreamError
from ..transport.directory import Directory
from ..transport.messages import Ack, AnyMessage, Demoted, Fetched, Heartbeat, Refused, Welcome
from .session import Session
from .watch import Watch


class SessionRouter:
    """The client's link handler: hands each answer to the session it is for, by incarnation."""

    directory: Directory
    watch: Watch

    def __init__(self) -> None:
        self.sessions: tuple[Session, ...] = ()
        """Replaced as a whole. A session that is closed or fenced stays until everything it sent has its outcome."""

    def add(self, session: Session) -> None:
        self.sessions = (*(each for each in self.sessions if not each.settled), session)

    def connected(self, welcome: Welcome) -> None:
        if hasattr(self, "directory"):
            self.directory.forget_names()
            self.watch.connected()
        for session in self._opened():
            session.connected(welcome)

    def lost(self, error: ParamstreamError) -> None:
        for session in self.sessions:
            session.lost(error)

    def message(self, message: AnyMessage) -> None:
        for session in self._opened():
            match message:
                case Ack() | Refused() if message.incarnation == session.incarnation:
                    session.answered(message)
                case Heartbeat():
                    session.heartbeat(message)
                case Demoted(topic=topic):
                    # A client's own link follows nothing: it hears this of partitions whose topic was deleted.
                    self.directory.forget(topic)
                    session.deleted(topic)
                case _:
                    pass

    def event(self, frame: memoryview) -> None:
        """A client's own link follows nothing."""

    def fetched(self, answer: Fetched, frames: list[memoryview]) -> None:
        """A client's own link fetches nothing."""

    def drained(self) -> None:
        """Sessions act on each answer."""

    def tick(self, now: float) -> None:
        for session in self._opened():
            session.tick(now)

    def _opened(self) -> list[Session]:
        return [session for session in self.sessions if session.incarnation]
