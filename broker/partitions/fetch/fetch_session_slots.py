"""Bounds the open fetch sessions, and chooses the one that makes room for another.

The cache is bounded in sessions and in partitions. When it is full of either and no session has been idle for long
enough, a new one is declined. One of a follower takes the place of a client's. Sessions keep the names of their topics,
which may have 32 KiB, so none has a name that is too long for a topic. Pure: time and randomness are passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from lowtide.replication.topic_names import MAX_TOPIC_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Sized

    from lowtide.protocol.messages.fetch import FetchRequest
    from lowtide.protocol.types import BrokerId
    from lowtide.runtime.random import Random

NO_SESSION: Final = 0
"""The id of no session."""

EVICT_AFTER_IDLE_MS = 120_000
"""A session idle for this long makes room for a new one (`min.incremental.fetch.session.eviction.ms` of Kafka)."""

MAXIMUM_CACHED_PARTITIONS = 100_000
"""Partitions in all sessions together: some 30 MB."""

_MAXIMUM_SESSION_ID = 2**31 - 1


class CachedSession(Protocol):
    """A session, as the slots see it."""

    session_id: int
    replica_id: BrokerId
    last_used_ms: int

    @property
    def targets(self) -> Sized:
        """Returns the number of its partitions."""
        ...

    def close(self) -> None:
        """Ends the session."""
        ...


SessionT = TypeVar("SessionT", bound=CachedSession)


class SessionSlots(Generic[SessionT]):
    """The open sessions of a broker by id, least recently used first."""

    def __init__(self, slots: int, source: Random) -> None:
        """`slots` is `max.incremental.fetch.session.cache.slots`; `source` gives session ids."""
        self.sessions: OrderedDict[int, SessionT] = OrderedDict()
        self.partitions = 0
        """The partitions of all sessions."""
        self._slots = slots
        self._source = source

    def add(self, session: SessionT) -> None:
        """Adds a session with an id of `new_id`, after `has_room`."""
        self.sessions[session.session_id] = session
        self.partitions += len(session.targets)

    def count(self, partitions: int) -> None:
        """Counts `partitions` more of an open session; fewer if negative."""
        self.partitions += partitions

    def new_id(self) -> int:
        """Returns an id that no session has."""
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self.sessions:
            session_id = self._source.randint(1, _MAXIMUM_SESSION_ID)
        return session_id

    def has_room(self, request: FetchRequest, partitions: int, now_ms: int, *, is_follower: bool) -> bool:
        """Returns whether a session may be opened, after evicting idle ones, or a client's for a follower."""
        if _has_long_names(request):
            return False
        if is_follower:
            if len(self.sessions) >= self._slots:
                client = next((session for session in self.sessions.values() if session.replica_id < 0), None)
                if client is not None:
                    self.close(client.session_id)
            return len(self.sessions) < self._slots
        if partitions > MAXIMUM_CACHED_PARTITIONS:
            return False
        while self.sessions and not self._fits(partitions):
            oldest = next(iter(self.sessions.values()))
            if now_ms - oldest.last_used_ms < EVICT_AFTER_IDLE_MS:
                return False
            self.close(oldest.session_id)
        return self._fits(partitions)

    def are_exceeded(self, request: FetchRequest, *, is_follower: bool) -> bool:
        """Returns whether a session must end after a request has added partitions to it."""
        return (self.partitions > MAXIMUM_CACHED_PARTITIONS and not is_follower) or _has_long_names(request)

    def _fits(self, partitions: int) -> bool:
        return len(self.sessions) < self._slots and self.partitions + partitions <= MAXIMUM_CACHED_PARTITIONS

    def close(self, session_id: int) -> None:
        """Closes the session of this id, if there is one."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.targets)
            session.close()


def _has_long_names(request: FetchRequest) -> bool:
    return any(len(topic.topic) > MAX_TOPIC_NAME_LENGTH for topic in request.topics)
