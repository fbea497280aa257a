"""Incremental fetch sessions (KIP-227): the partitions that a client fetches are remembered, so that it need not repeat them.

A session has an id and an epoch that counts its requests. The cache is bounded in sessions and in partitions; when it is full and
no session has been idle for long enough, a new one is declined with session id 0, which every client must understand.

Pure: time and randomness are passed in. Observed on Kafka 4.3.1: after a wrong epoch a session lives on; one that forgets its last
partition is closed; sessions outlive connections.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchRequest, PartitionData
from lowtide.protocol.types import ZERO_TOPIC_ID, LeaderEpoch, Offset, TopicId

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
NO_SESSION = 0
EVICT_AFTER_IDLE_MS = 120_000
"""A session idle for this long makes room for a new one (`min.incremental.fetch.session.eviction.ms` of Kafka)."""

MAXIMUM_CACHED_PARTITIONS = 100_000
"""Partitions in all sessions together: some 30 MB."""

_MAXIMUM_SESSION_ID = 2**31 - 1
_MAXIMUM_EPOCH = 2**31 - 1

TargetKey = tuple[str | TopicId, int]


class FetchTarget(msgspec.Struct, kw_only=True):
    """One partition that a client fetches, and what it was told of it last."""

    topic: str
    topic_id: TopicId
    partition: int
    fetch_offset: Offset
    maximum_bytes: int
    current_leader_epoch: LeaderEpoch
    last_fetched_epoch: LeaderEpoch
    told_high_watermark: Offset = -1
    told_log_start_offset: Offset = -1

    @property
    def key(self) -> TargetKey:
        """What tells it from others within its session."""
        return (self.topic if self.topic_id == ZERO_TOPIC_ID else self.topic_id, self.partition)

    def has_news(self, answer: PartitionData) -> bool:
        """Whether an incremental answer must list this partition."""
        return (
            len(answer.records or b"") > 0
            or answer.error_code != ErrorCode.NONE
            or answer.high_watermark != self.told_high_watermark
            or answer.log_start_offset != self.told_log_start_offset
            or answer.diverging_epoch is not None
        )

    def tell(self, answer: PartitionData) -> None:
        """Remember what the client now knows. After an error it is told again."""
        failed = answer.error_code != ErrorCode.NONE
        self.told_high_watermark = -1 if failed else answer.high_watermark
        self.told_log_start_offset = -1 if failed else answer.log_start_offset


class FetchSession:
    """The partitions of one session in the order in which they are read: one that had records goes to the end."""

    __slots__ = ("epoch", "last_used_ms", "session_id", "targets", "uses_topic_ids")

    def __init__(self, session_id: int, targets: OrderedDict[TargetKey, FetchTarget], now_ms: int, *, uses_topic_ids: bool) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.targets = targets
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = now_ms


class FetchPlan(msgspec.Struct, kw_only=True):
    """What one request fetches: `targets` in order; with `incremental`, only partitions with news are answered."""

    error_code: int = ErrorCode.NONE
    session_id: int = NO_SESSION
    targets: Iterable[FetchTarget] = ()
    session: FetchSession | None = None
    incremental: bool = False


class FetchSessionCache:
    """All sessions of a broker."""

    def __init__(self, slots: int, source: random.Random) -> None:
        """`slots` is `max.incremental.fetch.session.cache.slots`; `source` gives session ids."""
        self._slots = slots
        self._source = source
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._cached_partitions = 0

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def plan(self, request: FetchRequest, api_version: int, now_ms: int) -> FetchPlan:
        """What the request fetches, with its session opened, continued or closed.

        Errors (`error_code`): FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        uses_topic_ids = api_version >= TOPIC_IDS_SINCE
        if request.session_epoch == FINAL_EPOCH:
            self._close(request.session_id)
            return FetchPlan(targets=requested_targets(request).values())
        if request.session_epoch == INITIAL_EPOCH:
            self._close(request.session_id)
            targets = requested_targets(request)
            session = self._open(targets, now_ms, uses_topic_ids=uses_topic_ids)
            return FetchPlan(targets=targets.values(), session=session, session_id=session.session_id if session else NO_SESSION)
        return self._continue(request, now_ms, uses_topic_ids=uses_topic_ids)

    def _continue(self, request: FetchRequest, now_ms: int, *, uses_topic_ids: bool) -> FetchPlan:
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchPlan(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == _MAXIMUM_EPOCH else session.epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        before = len(session.targets)
        self._update(session, request)
        self._cached_partitions += len(session.targets) - before
        if not session.targets:
            self._close(session.session_id)
            return FetchPlan()
        if len(session.targets) > before and self._cached_partitions > MAXIMUM_CACHED_PARTITIONS:
            # Its client begins anew, and is then told that there is no session for so much.
            self._close(session.session_id)
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchPlan(targets=session.targets.values(), session=session, session_id=session.session_id, incremental=True)

    @staticmethod
    def _update(session: FetchSession, request: FetchRequest) -> None:
        for key, wanted in requested_targets(request).items():
            known = session.targets.get(key)
            if known is None:
                session.targets[key] = wanted
                continue
            known.fetch_offset, known.maximum_bytes = wanted.fetch_offset, wanted.maximum_bytes
            known.current_leader_epoch, known.last_fetched_epoch = wanted.current_leader_epoch, wanted.last_fetched_epoch
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic if forgotten.topic_id == ZERO_TOPIC_ID else forgotten.topic_id
            for partition in forgotten.partitions:
                session.targets.pop((name, partition), None)

    def _open(self, targets: OrderedDict[TargetKey, FetchTarget], now_ms: int, *, uses_topic_ids: bool) -> FetchSession | None:
        if self._cached_partitions + len(targets) > MAXIMUM_CACHED_PARTITIONS or not self._has_slot(now_ms):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._source.randint(1, _MAXIMUM_SESSION_ID)
        session = FetchSession(session_id, targets, now_ms, uses_topic_ids=uses_topic_ids)
        self._sessions[session_id] = session
        self._cached_partitions += len(targets)
        return session

    def _has_slot(self, now_ms: int) -> bool:
        """Whether there is a slot, after evicting the session that was used longest ago if it is idle."""
        if len(self._sessions) >= self._slots and self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms >= EVICT_AFTER_IDLE_MS:
                self._close(oldest.session_id)
        return len(self._sessions) < self._slots

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._cached_partitions -= len(session.targets)


def requested_targets(request: FetchRequest) -> OrderedDict[TargetKey, FetchTarget]:
    """The partitions that the request names, in its order; of one named twice the last mention counts, as in Kafka."""
    targets: OrderedDict[TargetKey, FetchTarget] = OrderedDict()
    for topic in request.topics:
        name, topic_id = topic.topic, topic.topic_id
        of = name if topic_id == ZERO_TOPIC_ID else topic_id
        for row in topic.partitions:
            targets[(of, row.partition)] = FetchTarget(
                topic=name,
                topic_id=topic_id,
                partition=row.partition,
                fetch_offset=row.fetch_offset,
                maximum_bytes=row.partition_max_bytes,
                current_leader_epoch=row.current_leader_epoch,
                last_fetched_epoch=row.last_fetched_epoch,
            )
    return targets
