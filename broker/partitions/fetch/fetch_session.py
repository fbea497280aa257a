"""Incremental fetch sessions (KIP-227): the broker remembers the partitions of a client, which need not repeat them.

A session has an id, and an epoch that counts its requests. It knows which of its partitions have changed: it watches
them between requests. A fetch visits only those and the partitions that the request names. A partition is left alone
when its reader knows all its offsets and has nothing to read (`fetch_targets`).

The cache has all sessions of a broker. It is bounded (`fetch_session_slots`): a session too many is declined with
session id 0, which every client must understand.

Pure: time and randomness are passed in. Observed on Kafka 4.3.1: after a wrong epoch a session lives on; one that
forgets its last partition is closed; sessions outlive connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lowtide.broker.partitions.fetch.fetch_session_slots import NO_SESSION, SessionSlots
from lowtide.broker.partitions.fetch.fetch_targets import (
    CONSUMER,
    NO_RECORDS,
    FetchTarget,
    forgotten,
    requested_targets,
    target_of,
)
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import UNKNOWN_BROKER_EPOCH, ZERO_TOPIC_ID, BrokerEpoch, BrokerId
from lowtide.replication.leadership import FetchTimes
from lowtide.replication.partition import PartitionChange

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Iterable

    from lowtide.broker.partitions.fetch.fetch_targets import TargetKey
    from lowtide.protocol.messages.fetch import FetchRequest, FetchTopic, PartitionData
    from lowtide.runtime.random import Random

FINAL_EPOCH, INITIAL_EPOCH, _MAXIMUM_EPOCH = -1, 0, 2**31 - 1


class WaitingFetch(Protocol):
    """A fetch of a session that waits for changes."""

    def look(self) -> None:
        """Tests whether the fetch can be answered, after a partition changed."""

    def hold(self) -> None:
        """Answers the fetch soon: a follower lacks records that nobody waits for."""

    def wake(self) -> None:
        """Answers the fetch now."""


_WAKES_CONSUMERS: Final = frozenset({PartitionChange.HIGH_WATERMARK, PartitionChange.ROLE})
_WAKES_FOLLOWERS: Final = frozenset({PartitionChange.LOG_END, PartitionChange.LOG_START, PartitionChange.ROLE})
"""Not the high watermark: that causes half as many fetches again (KAFKA-9731)."""


class FetchSession:
    """The partitions of one session, and the `changed` ones, which the next fetch visits in this order.

    A partition that had records goes to the end. `waiting` is the parked fetch of this session.
    """

    __slots__ = (
        "_wakes",
        "broker_epoch",
        "changed",
        "epoch",
        "last_used_ms",
        "replica_id",
        "session_id",
        "targets",
        "times",
        "uses_topic_ids",
        "waiting",
    )

    def __init__(
        self,
        session_id: int,
        targets: dict[TargetKey, FetchTarget],
        now_ms: int,
        *,
        uses_topic_ids: bool,
        replica_id: BrokerId = CONSUMER,
        broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH,
    ) -> None:
        self.session_id, self.epoch = session_id, 1
        self.targets = targets
        self.changed: dict[FetchTarget, None] = dict.fromkeys(targets.values())
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = now_ms
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.times = FetchTimes()
        self.waiting: WaitingFetch | None = None
        self._wakes = _WAKES_CONSUMERS if replica_id < 0 else _WAKES_FOLLOWERS
        for target in targets.values():
            target.session, target.is_followed = self, replica_id >= 0

    def on_changed(self, target: FetchTarget, change: PartitionChange) -> None:
        """Visits this partition with the waiting fetch, or the next one."""
        target.at_end = False  # Also if a read that is not answered yet found the end.
        if target not in self.changed:
            self.changed[target] = None
            if target.follower is not None:
                target.follower.note_idle_until_now()
        if self.waiting is not None:
            if change in self._wakes:
                self.waiting.look()
            elif change is PartitionChange.LOG_END_UNAWAITED and self.replica_id >= 0:
                self.waiting.hold()

    def on_answered(self, target: FetchTarget, answer: PartitionData) -> None:
        """Leaves the partition alone until it changes, if this response has all there is. Called after `tell`."""
        if answer.records is not NO_RECORDS:
            if self.changed.pop(target, self) is None:
                self.changed[target] = None
        elif (
            target.at_end
            and target.watched is not None
            and (target.follower is not None or self.replica_id < 0)
            and not target.has_news(answer)
        ):
            self.changed.pop(target, None)

    def leave_idle(self) -> None:
        """Visits only partitions with more records, or that changed since the read."""
        self.changed = {target: None for target in self.changed if not target.at_end and target.watched is not None}

    def visit_all(self) -> list[FetchTarget]:
        """Visits every partition, because earlier results are no longer reliable. Returns them."""
        self.changed = dict.fromkeys(self.targets.values())
        return list(self.changed)

    def advance(self, now_ms: int, among: OrderedDict[int, FetchSession]) -> None:
        """Continues the session with a request. It becomes the most recently used one of `among`."""
        self.epoch = 1 if self.epoch == _MAXIMUM_EPOCH else self.epoch + 1
        if self.waiting is not None:
            self.waiting.wake()  # The session now watches for the new request.
        self.last_used_ms = now_ms
        among.move_to_end(self.session_id)

    @property
    def followed_count(self) -> int:
        """The number of partitions with a known position of the follower."""
        return sum(target.follower is not None for target in self.targets.values())

    def visit(self, topic: FetchTopic) -> None:
        """Visits the partitions of a topic that a request names. Adds those that the session does not have."""
        of = topic.topic if topic.topic_id == ZERO_TOPIC_ID else topic.topic_id
        for row in topic.partitions:
            key = (of, row.partition)
            target = self.targets.get(key)
            if target is None:
                target = self.targets[key] = target_of(topic, row)
                target.session, target.is_followed = self, self.replica_id >= 0
            else:
                target.ask(row)
            self.changed[target] = None

    def remove(self, key: TargetKey) -> None:
        """Removes a partition, if the session has it."""
        target = self.targets.pop(key, None)
        if target is not None:
            self.changed.pop(target, None)
            target.unwatch()
            target.session = None

    def close(self) -> None:
        """Ends the session."""
        if self.waiting is not None:
            self.waiting.wake()
        for target in self.targets.values():
            target.unwatch()
            target.session = None
        self.changed.clear()


class FetchPlan(msgspec.Struct, kw_only=True):
    """What one request fetches: `targets` in order. With `incremental`, only partitions with news are answered."""

    error_code: int = ErrorCode.NONE
    session_id: int = NO_SESSION
    targets: Iterable[FetchTarget] = ()
    session: FetchSession | None = None
    incremental: bool = False

    @property
    def has_idle(self) -> bool:
        """Whether some partitions of the session have not changed and need no visit."""
        return self.session is not None and len(self.session.targets) > len(self.session.changed)


class FetchSessionCache:
    """All sessions of a broker."""

    def __init__(self, slots: int, source: Random) -> None:
        """`slots` is `max.incremental.fetch.session.cache.slots`; `source` gives session ids."""
        self.slots: SessionSlots[FetchSession] = SessionSlots(slots, source)
        self.by_id = self.slots.sessions

    def __len__(self) -> int:
        """Returns the number of open sessions."""
        return len(self.by_id)

    def plan(
        self,
        request: FetchRequest,
        api_version: int,
        now_ms: int,
        *,
        replica_id: BrokerId = CONSUMER,
        broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH,
        opens: bool = True,
    ) -> FetchPlan:
        """Returns what the request fetches, with its session opened, continued or closed.

        A follower's ends with its registration. Without `opens` a new session is declined.

        Errors (`error_code`): FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        uses_topic_ids = api_version >= TOPIC_IDS_SINCE
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            known = self._known(request, (replica_id, broker_epoch), uses_topic_ids=uses_topic_ids)
            if not isinstance(known, FetchSession):
                return FetchPlan(error_code=known)
            known.advance(now_ms, self.by_id)
            return self._continue(known, request)
        if request.session_id != NO_SESSION:
            self.slots.close(request.session_id)
        targets, session = requested_targets(request), None
        is_opened = opens and request.session_epoch == INITIAL_EPOCH
        if is_opened and self.slots.has_room(request, len(targets), now_ms, is_follower=replica_id >= 0):
            session = FetchSession(
                self.slots.new_id(),
                targets,
                now_ms,
                uses_topic_ids=uses_topic_ids,
                replica_id=replica_id,
                broker_epoch=broker_epoch,
            )
            self.slots.add(session)
        session_id = NO_SESSION if session is None else session.session_id
        return FetchPlan(targets=targets.values(), session=session, session_id=session_id)

    def _known(
        self, request: FetchRequest, reader: tuple[BrokerId, BrokerEpoch], *, uses_topic_ids: bool
    ) -> FetchSession | ErrorCode:
        """Returns the session that the request continues, or the error."""
        session = self.by_id.get(request.session_id)
        if session is not None and (session.replica_id, session.broker_epoch) != reader:
            if session.replica_id == reader[0]:
                self.slots.close(session.session_id)
            session = None
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return session if session.uses_topic_ids == uses_topic_ids else ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    def _continue(self, session: FetchSession, request: FetchRequest) -> FetchPlan:
        """Adds, changes and removes the partitions that the request names.

        Closes a session without partitions, and one beyond the bounds of `slots`: its client starts over without one.
        """
        before = len(session.targets)
        for topic in request.topics:
            session.visit(topic)
        if request.forgotten_topics_data:
            for key in forgotten(request.forgotten_topics_data):
                session.remove(key)
        grown = len(session.targets) - before
        if grown:
            self.slots.count(grown)
        if not session.targets:
            self.slots.close(session.session_id)
            return FetchPlan()
        if grown > 0 and self.slots.are_exceeded(request, is_follower=session.replica_id >= 0):
            self.slots.close(session.session_id)
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchPlan(
            targets=list(session.changed), session=session, session_id=session.session_id, incremental=True
        )
