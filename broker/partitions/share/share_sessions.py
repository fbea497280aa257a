"""Share sessions: the partitions that a member of a share group fetches from this broker.

A session has an epoch that counts its requests, and ends with its connection (KIP-932). The number of sessions is
limited: at the limit, one session of the client with the most is evicted for a client with fewer; otherwise the new one
is refused. The partitions of all sessions are counted, so that those without a session need not be kept.

Pure. Source: Kafka's `ShareSessionCache`, `SharePartitionManager.newContext`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.broker.places import client_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import FINAL_EPOCH, INITIAL_EPOCH
from lowtide.protocol.share_state_records import SharePlace

if TYPE_CHECKING:
    from lowtide.broker.request_context import Client

PARTITIONS_MAX: Final = 100_000
"""The most partitions of all sessions: some tens of megabytes. Kafka has no such limit."""

_MAXIMUM_EPOCH: Final = 2**31 - 1


class SessionKey(NamedTuple):
    """The owner of a session. A member id has at most 36 characters, and may be chosen by the client."""

    group_id: str
    member_id: str


class ShareSession:
    """The session of one member with this broker."""

    __slots__ = ("connection", "epoch", "key", "places", "turn")

    def __init__(self, key: SessionKey, connection: Client) -> None:
        self.key = key
        self.connection = connection
        self.epoch = INITIAL_EPOCH + 1
        """The epoch of the next request."""
        self.places: dict[SharePlace, None] = {}
        self.turn = 0
        """The number of fetches. Each begins with another partition."""

    def next_turn(self) -> list[SharePlace]:
        """Returns the partitions, each time beginning with the next one."""
        places = list(self.places)
        begin = self.turn % len(places) if places else 0
        self.turn += 1
        return places[begin:] + places[:begin]

    def advance(self) -> None:
        """Moves to the epoch of the next request. 1 follows the largest epoch."""
        self.epoch = 1 if self.epoch == _MAXIMUM_EPOCH else self.epoch + 1


class ShareSessions:
    """The sessions of one broker."""

    def __init__(self) -> None:
        self.named: Counter[SharePlace] = Counter()
        """The number of sessions that have each partition."""
        self._sessions: dict[SessionKey, ShareSession] = {}
        self.partition_count = 0
        """The number of partitions of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def giving_way(self, key: SessionKey, connection: Client, sessions_max: int) -> SessionKey | None:
        """Returns the session to evict for a new one at the limit: the oldest of the client with the most.

        Returns None if that client has no more sessions than the new one's.
        """
        if key in self._sessions or len(self._sessions) < sessions_max:
            return None
        clients = {each: client_of(session.connection) for each, session in self._sessions.items()}
        counts = Counter(clients.values())
        most, count = counts.most_common(1)[0] if counts else ("", 0)
        if count <= counts[client_of(connection)] + 1:
            return None
        return next(each for each, client in clients.items() if client == most)

    def begin(
        self, key: SessionKey, connection: Client, places: Iterable[SharePlace], sessions_max: int
    ) -> ShareSession | ErrorCode:
        """Opens a session in place of the member's last one. Errors: SHARE_SESSION_LIMIT_REACHED."""
        wanted = dict.fromkeys(places)
        before = self._sessions.get(key)
        held = 0 if before is None else len(before.places)
        if before is None and len(self._sessions) >= sessions_max:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        if self.partition_count - held + len(wanted) > PARTITIONS_MAX:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        self.end(key)
        session = self._sessions[key] = ShareSession(key, connection)
        self._add(session, wanted)
        return session

    def follow(
        self, key: SessionKey, epoch: int, places: Iterable[SharePlace] = (), forgotten: Iterable[SharePlace] = ()
    ) -> ShareSession | ErrorCode:
        """Takes the next request of a session: adds partitions and forgets others. The final request changes nothing.

        Errors: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED.
        """
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        added = [place for place in dict.fromkeys(places) if place not in session.places]
        if self.partition_count + len(added) > PARTITIONS_MAX:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        self._add(session, added)
        for place in forgotten:
            if place in session.places:
                del session.places[place]
                self._leave(place)
        session.advance()
        return session

    def end(self, key: SessionKey) -> list[SharePlace]:
        """Closes a session, if there is one. Returns its partitions."""
        session = self._sessions.pop(key, None)
        if session is None:
            return []
        for place in session.places:
            self._leave(place)
        return list(session.places)

    def of_lost_connections(self) -> list[SessionKey]:
        return [key for key, session in self._sessions.items() if session.connection.closed]

    def _add(self, session: ShareSession, places: Iterable[SharePlace]) -> None:
        for place in places:
            session.places[place] = None
            self.named[place] += 1
            self.partition_count += 1

    def _leave(self, place: SharePlace) -> None:
        self.partition_count -= 1
        self.named[place] -= 1
        if not self.named[place]:
            del self.named[place]
