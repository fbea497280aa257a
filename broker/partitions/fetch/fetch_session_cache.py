"""The incremental fetch sessions of a broker (KIP-227): opens, continues and closes them.

The cache is bounded (`fetch_session_slots`): a session too many is declined with session id 0, which every client must
understand.

Pure: time and randomness are passed in. Observed on Kafka 4.3.1: after a wrong epoch a session lives on; one that
forgets its last partition is closed; sessions outlive connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.broker.partitions.fetch.fetch_rules import FetchPlan, forgotten, requested_targets
from lowtide.broker.partitions.fetch.fetch_session import (
    CONSUMER,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
)
from lowtide.broker.partitions.fetch.fetch_session_slots import MAXIMUM_CACHED_PARTITIONS, NO_SESSION, SessionSlots
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.follower_state import UNKNOWN_BROKER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.broker.partitions.fetch.fetch_session import FetchTarget, TargetKey
    from lowtide.protocol.messages.fetch import FetchRequest
    from lowtide.protocol.types import BrokerEpoch, BrokerId
    from lowtide.runtime.random import Random


class FetchSessionCache:
    """All sessions of a broker."""

    def __init__(self, slots: int, source: Random) -> None:
        """`slots` is `max.incremental.fetch.session.cache.slots`; `source` gives session ids."""
        self.slots: SessionSlots[FetchSession] = SessionSlots(slots, source)
        self.by_id = self.slots.sessions

    def __len__(self) -> int:
        """Returns the number of open sessions."""
        return len(self.by_id)

    def plan(  # noqa: PLR0913  options of the plan, by keyword
        self,
        request: FetchRequest,
        api_version: int,
        now_ms: int,
        *,
        replica_id: BrokerId = CONSUMER,
        broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH,
        opens: bool = True,
        targets: dict[TargetKey, FetchTarget] | None = None,
    ) -> FetchPlan:
        """Returns what the request fetches, with its session opened, continued or closed.

        A follower's ends with its registration. Without `opens` a new session is declined. `targets` are those that the
        request names, where they have been collected already.

        Errors (`error_code`): FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        uses_topic_ids = api_version >= TOPIC_IDS_SINCE
        if request.session_epoch == FINAL_EPOCH:
            if request.session_id != NO_SESSION:
                self.slots.close(request.session_id)
            return FetchPlan(targets=(requested_targets(request) if targets is None else targets).values())
        if request.session_epoch == INITIAL_EPOCH:
            self.slots.close(request.session_id)
            targets = requested_targets(request) if targets is None else targets
            session = None
            if opens and self.slots.has_room(len(targets), now_ms, is_follower=replica_id >= 0):
                session_id = self.slots.new_id()
                session = FetchSession(
                    session_id,
                    targets,
                    now_ms,
                    uses_topic_ids=uses_topic_ids,
                    replica_id=replica_id,
                    broker_epoch=broker_epoch,
                )
                self.slots.add(session)
            return FetchPlan(
                targets=targets.values(), session=session, session_id=session.session_id if session else NO_SESSION
            )
        known = self.resume(request, now_ms, (replica_id, broker_epoch), uses_topic_ids=uses_topic_ids)
        if not isinstance(known, FetchSession):
            return FetchPlan(error_code=known)
        before = len(known.targets)
        if request.topics:
            self.update(known, requested_targets(request).items())
        if request.forgotten_topics_data:
            self.forget(known, forgotten(request.forgotten_topics_data))
        return self.updated(known, before)

    def close(self, session: FetchSession) -> FetchPlan:
        """Closes a session that its request makes too large. The client starts over and gets none."""
        self.slots.close(session.session_id)
        return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def resume(
        self, request: FetchRequest, now_ms: int, reader: tuple[BrokerId, BrokerEpoch], *, uses_topic_ids: bool
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
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.advance(now_ms, self.by_id)
        return session

    def updated(self, session: FetchSession, before: int) -> FetchPlan:
        """Returns the plan after the request changed its session, which had `before` partitions."""
        if not session.targets:
            self.slots.close(session.session_id)
            return FetchPlan()
        too_many = self.slots.partitions > MAXIMUM_CACHED_PARTITIONS and session.replica_id < 0
        if len(session.targets) > before and too_many:
            return self.close(session)
        return FetchPlan(
            targets=list(session.changed), session=session, session_id=session.session_id, incremental=True
        )

    def update(self, session: FetchSession, targets: Iterable[tuple[TargetKey, FetchTarget]]) -> None:
        """Adds or changes the partitions that the request names."""
        before = len(session.targets)
        for key, wanted in targets:
            known = session.targets.get(key)
            if known is None:
                session.add(key, wanted)
                continue
            known.ask(
                wanted.current_leader_epoch,
                wanted.fetch_offset,
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
                wanted.partition_max_bytes,
            )
            session.changed[known] = None
        if len(session.targets) != before:
            self.slots.count(len(session.targets) - before)

    def forget(self, session: FetchSession, keys: Iterable[TargetKey]) -> None:
        """Removes the partitions that the request forgets."""
        before = len(session.targets)
        for key in keys:
            session.remove(key)
        if len(session.targets) != before:
            self.slots.count(len(session.targets) - before)
