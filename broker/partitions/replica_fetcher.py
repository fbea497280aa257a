"""Follows one leader: a task that repeatedly fetches all partitions that this broker follows there.

`replication/follower.py` decides what an answer means, and `replication/fetch_plan.py` what to fetch next. Records are
appended at once. For truncations, log starts and flushes only the affected partition waits for the disk.

Guards: an answer is used only under the registration, leader epoch and topic id of its request (DR6, DR8); a received
log start is durable before it is reported (DR1).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.partitions.follower_questions import FollowerQuestions, QuestionParts
from lowtide.broker.partitions.truncation_lines import TruncationLines
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import NO_LEADER_EPOCH
from lowtide.replication.fetch_plan import OLD_FETCH_VERSION, Fetch, FetchLimits, FollowerFetchPlan
from lowtide.replication.follower import (
    Decision,
    Delay,
    FollowedPartition,
    NextStep,
    Reset,
    Truncate,
    append_fetched,
    decide,
    first_truncation,
    note_truncated,
)
from lowtide.replication.follower_phase import FollowerEvent, Phase
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.errors import StorageError, is_passing

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.network.peer_client import PeerClient, PeerClients
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.partitions.replication_throttle import ReplicationThrottle
    from lowtide.metadata.broker_image import BrokerImage
    from lowtide.metadata.session import MetadataSession
    from lowtide.protocol.messages.fetch import FetchResponse, PartitionData
    from lowtide.protocol.types import BrokerId, Offset, TopicPartition
    from lowtide.runtime.clock import Clock

TURN_MS: Final = 2
"""How long rows of an answer are processed before other work runs."""

UNREGISTERED_PAUSE_MS: Final = 100
"""The pause while this broker is fenced, or the leader is not registered."""

WARNING_INTERVAL_MS: Final = 60_000
"""The minimum time between two warnings about one replica."""

_SESSION_RETRIES: Final = 3
"""The consecutive refused sessions before a pause."""


class FetcherParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that all fetchers of a broker share."""

    session: MetadataSession
    replicas: ReplicaManager
    peers: PeerClients
    clock: Clock
    log: Any
    truncations: TruncationLines
    limits: Callable[[], FetchLimits]
    """Returns the current configuration."""
    timeout_ms: Callable[[], int]
    """`replica.socket.timeout.ms`."""
    throttle: ReplicationThrottle
    """Limits all fetchers together."""
    on_settled: Callable[[TopicPartition], None]
    """Called when a log no longer waits for the disk, whichever fetcher has it now."""
    on_idle: Callable[[ReplicaFetcher], None]
    """Called when no partition is left, before the task ends."""


class ReplicaFetcher:
    """Fetches from one leader."""

    def __init__(self, leader_id: BrokerId, parts: FetcherParts, *, version: int) -> None:
        self.leader_id = leader_id
        self.plan = FollowerFetchPlan(
            parts.session.broker_id,
            version=version,
            throttle=lambda following: parts.throttle.wait_ms(*following.key),
        )
        self.fetched_bytes = 0
        self.fetches = 0
        self.failures = 0
        self._parts = parts
        self._wake = asyncio.Event()
        questions = QuestionParts(
            broker_id=parts.session.broker_id,
            plan=self.plan,
            clock=parts.clock,
            timeout_ms=parts.timeout_ms,
            carry_out=self._apply,
        )
        self._questions = FollowerQuestions(questions)
        self._refused_sessions = 0
        self._connected: tuple[PeerClient, BrokerImage] | None = None  # For this registration of the leader.
        self._leader_is_new = False

    # ------------------------------------------------------------------ what is followed
    def add(self, following: FollowedPartition) -> None:
        """Follows a partition, possibly in a new leader epoch."""
        self.plan.add(following)
        log = following.log
        if log.truncating:
            self.plan.wait_for_disk(following)
        if following.waits_for_flush:
            self._parts.replicas.log_manager.flush(log)
        if self.plan.version == OLD_FETCH_VERSION and log.leader_epochs.latest >= 0:
            self._ask(following, FollowerEvent.ASK_EPOCH)
        elif (step := first_truncation(log)) is not None:
            self._truncate(following, step)
        self._wake.set()

    def _ask(self, following: FollowedPartition, event: FollowerEvent) -> None:
        self._questions.add(following, event)
        self._wake.set()

    def remove(self, key: TopicPartition) -> None:
        self.plan.remove(key)
        self._questions.remove(key)
        self._wake.set()

    def on_disk(self, key: TopicPartition) -> None:
        following = self.plan.followed.get(key)
        if following is not None:
            self.plan.touch(following)
            self.plan.on_disk_of(following)
        self._wake.set()

    def on_leader_changed(self) -> None:
        """Disconnects if the leader has registered again: a dead machine would never answer the request."""
        leader = self._parts.session.image.brokers.get(self.leader_id)
        if self._connected is not None and leader is not None and leader.epoch != self._connected[1].epoch:
            self._leader_is_new = True
            self._connected[0].disconnect("it has registered again")
            self._connected = None
        self._wake.set()

    # ------------------------------------------------------------------ the task
    async def run(self) -> None:
        """Fetches until no partition is left."""
        while self.plan.followed:
            pause_ms = await self._round()
            if pause_ms is not None and self.plan.followed:
                await self._pause(pause_ms)
        self._parts.on_idle(self)

    async def _round(self) -> int | None:
        """Sends one request and handles its answer. Returns the pause, which any event ends, or None."""
        parts = self._parts
        client = self._client()
        if client is None:
            return UNREGISTERED_PAUSE_MS
        limits = parts.limits()
        try:
            if self._questions:
                await self._questions.ask(client)
            hold_ms = self.plan.hold_ms(parts.clock.monotonic_ms())
            if hold_ms > 0:
                return hold_ms
            fetch = self.plan.next_fetch(parts.clock.monotonic_ms(), parts.session.broker_epoch, limits)
            if fetch is None:
                return self._idle_ms()
            answer = await client.request(ApiKey.FETCH, fetch.version, fetch.request, parts.timeout_ms())
            self.fetches += 1
            return await self._on_answer(fetch, answer)
        except PeerError as error:
            self.failures += 1
            self.plan.start_full_session()
            if self._leader_is_new:
                self._leader_is_new = False
                return None
            if self.plan.followed:
                count, reason = len(self.plan.followed), str(error)
                parts.log.info("replicas can't be fetched", leader=self.leader_id, partitions=count, reason=reason)
            return limits.backoff_ms

    def _client(self) -> PeerClient | None:
        """Returns the connection to the leader; None while one of the two brokers is not registered."""
        parts = self._parts
        leader = parts.session.image.brokers.get(self.leader_id)
        is_fenced = parts.replicas.is_fenced is not None and parts.replicas.is_fenced()
        if leader is None or is_fenced or parts.session.broker_epoch == 0:
            return None
        connected = self._connected
        if connected is None or connected[1] is not leader or connected[0].closed:
            connected = self._connected = (parts.peers.client_of(leader, "fetch"), leader)
        self._leader_is_new = False
        return connected[0]

    def _idle_ms(self) -> int:
        """Returns the pause until a delayed partition is due."""
        due_ms = self.plan.next_due_ms
        limit_ms = self._parts.limits().wait_ms
        return limit_ms if due_ms is None else max(min(due_ms - self._parts.clock.monotonic_ms(), limit_ms), 1)

    async def _pause(self, pause_ms: int) -> None:
        """Waits for this time, or until an event."""
        self._wake.clear()
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    # ------------------------------------------------------------------ answers
    async def _on_answer(self, fetch: Fetch, answer: FetchResponse) -> int | None:
        parts = self._parts
        if fetch.broker_epoch != parts.session.broker_epoch:
            self.plan.start_full_session()
            return None
        rows = self.plan.on_answer(fetch, answer, parts.clock.monotonic_ms())
        if isinstance(rows, ErrorCode):
            return self._on_session_refused(rows)
        self._refused_sessions = 0
        rises: list[FollowedPartition] = []
        turn_ends_ms = parts.clock.monotonic_ms() + TURN_MS
        for following, row in rows:
            if following.has_left or following.phase is not Phase.FETCHING:  # A partition may be listed twice.
                continue
            decision = decide(following, row)
            if decision is NextStep.APPEND:
                self._append(following, fetch, row, rises)
            elif decision is NextStep.ASK_RANGE:
                self._ask(following, FollowerEvent.ASK_RANGE)
            else:
                self._apply(following, decision)
            if parts.clock.monotonic_ms() >= turn_ends_ms:
                self._request_log_starts(rises)
                rises = []
                await asyncio.sleep(0)
                turn_ends_ms = parts.clock.monotonic_ms() + TURN_MS
        self._request_log_starts(rises)
        return None

    def _on_session_refused(self, error: ErrorCode) -> int | None:
        self._refused_sessions += 1
        self._parts.log.info("fetch session is refused", leader=self.leader_id, error=error.name)
        return None if self._refused_sessions <= _SESSION_RETRIES else self._parts.limits().backoff_ms

    def _apply(self, following: FollowedPartition, decision: Decision) -> None:
        """Carries out a decision that no longer needs the answer."""
        if isinstance(decision, Truncate):
            self._truncate(following, decision)
        elif isinstance(decision, Reset):
            self._reset(following, decision.offset)
        elif isinstance(decision, Delay):
            self._delay(following, decision)

    def _append(
        self, following: FollowedPartition, fetch: Fetch, row: PartitionData, rises: list[FollowedPartition]
    ) -> None:
        parts, log = self._parts, following.log
        try:
            taken = append_fetched(following, row, parts.clock.wall_ms())
        except StorageError as error:
            parts.replicas.log_manager.fail_directory_of(log, error)
            if error.is_passing:
                self._delay(following, Delay(f"its records could not be appended: {error}"))
            return
        if taken.starts_over is not None:
            self._reset(following, row.log_start_offset, taken.starts_over)
            return
        if taken.removed:
            parts.replicas.log_manager.remove_segments(log, taken.removed)
        if taken.error is not ErrorCode.NONE:
            self._delay(following, Delay(f"{taken.error.name} when its records were appended"))
            if not taken.counts:
                return
        self.fetched_bytes += taken.appended_bytes
        following.partition.traffic.replication_bytes_in += taken.appended_bytes
        if row.records:
            parts.throttle.record(*following.key, len(row.records))
        following.partition.follower_reads.note_answer(
            leader_epoch=following.leader_epoch,
            broker_epoch=fetch.broker_epoch,
            leader_log_start_offset=row.log_start_offset,
            sent_ms=fetch.sent_ms,
            session=self.plan.session,
        )
        if row.log_start_offset > log.log_start_pending:
            rises.append(following)
        if taken.has_grown and following.waits_for_flush:
            self.plan.wait_for_disk(following)
            parts.replicas.log_manager.flush(log)
        if taken.has_news:
            parts.replicas.on_follower_appended(following.partition)

    def _request_log_starts(self, rises: list[FollowedPartition]) -> None:
        """Raises log starts to the leader's, in one journal frame. They are visible when that is durable."""
        if not rises:
            return
        for following in rises:
            self.plan.wait_for_disk(following)
        increments = [LogStartIncrement(following.log, following.received_log_start) for following in rises]
        self._parts.replicas.request_log_starts(increments, partial(self._on_log_starts_durable, rises))

    def _on_log_starts_durable(self, rises: list[FollowedPartition]) -> None:
        for following in rises:
            if following.backoff_ms and not following.has_left and following.phase is Phase.FETCHING:
                # Its disk was full. There may be room now, and the leader waits for the report.
                self.plan.end_delay(following)
            self._parts.replicas.on_follower_appended(following.partition)
        self.plan.on_disk()
        self._wake.set()

    # ------------------------------------------------------------------ truncations
    def _truncate(self, following: FollowedPartition, step: Truncate) -> None:
        log = following.log
        before, high_watermark = log.log_end_offset, log.high_watermark
        if step.offset >= before and log.log_start_offset < before:
            self._delay(following, Delay("nothing diverges that could be truncated", lagging=True))
            return
        following.on_event(FollowerEvent.CUT)
        self.plan.wait_for_disk(following)
        self._parts.replicas.log_manager.truncate(log, step.offset, partial(self._on_truncated, following, step))
        note_truncated(log, step)
        self._parts.truncations.tell(
            "log is truncated to what its leader has",
            is_lossy=log.log_end_offset < high_watermark,
            partition=str(following.key),
            leader=self.leader_id,
            leader_epoch=following.leader_epoch,
            log_end_offset=log.log_end_offset,
            before=before,
            high_watermark_before=high_watermark,
        )

    def _on_truncated(self, following: FollowedPartition, step: Truncate, error: OSError | None) -> None:
        # A Fetch without an epoch is answered as if nothing diverged. A leader knows no epochs below its log start.
        is_old = self.plan.version == OLD_FETCH_VERSION
        has_epoch = following.log.leader_epochs.latest != NO_LEADER_EPOCH
        self._on_cut(following, error, asks=is_old if has_epoch else error is not None)

    def _on_cut(self, following: FollowedPartition, error: OSError | None, *, asks: bool = False) -> None:
        """Continues after a truncation, or after a pause if there was no disk space or descriptor for it.

        `asks`: first asks the leader where the last leader epoch ends.
        """
        lacks_room = error is not None and is_passing(error)
        if (error is None or lacks_room) and not following.has_left:
            if asks:
                self._ask(following, FollowerEvent.ASK_EPOCH)
            else:
                following.on_event(FollowerEvent.SETTLED)
        self._parts.on_settled(following.key)
        if lacks_room and not following.has_left:
            self._delay(following, Delay(f"its log can't be cut: {error}"))

    def _reset(self, following: FollowedPartition, offset: Offset, reason: str = "its leader starts above it") -> None:
        following.on_event(FollowerEvent.CUT)
        self.plan.wait_for_disk(following)
        log = following.log
        self._parts.truncations.tell(
            "log starts over where its leader's does",
            partition=str(following.key),
            leader=self.leader_id,
            leader_epoch=following.leader_epoch,
            log_start_offset=offset,
            log_end_offset_before=log.log_end_offset,
            reason=reason,
        )
        self._parts.replicas.log_manager.restart_at(
            log, offset, following.leader_epoch, lambda: not following.has_left, partial(self._on_reset, following)
        )

    def _on_reset(self, following: FollowedPartition, error: OSError | None) -> None:
        self._parts.replicas.on_follower_appended(following.partition)
        self._on_cut(following, error)

    # ------------------------------------------------------------------ delays
    def _delay(self, following: FollowedPartition, delay: Delay) -> None:
        now_ms = self._parts.clock.monotonic_ms()
        following.back_off(now_ms, self._parts.limits().backoff_ms, lagging=delay.lagging)
        lasts = not delay.lagging or following.backoff_ms >= self._parts.limits().backoff_ms
        if lasts and now_ms - following.warned_ms >= WARNING_INTERVAL_MS:
            following.warned_ms = now_ms
            self._parts.log.warning(
                "replica is not fetched for a while",
                partition=str(following.key),
                leader=self.leader_id,
                reason=delay.reason,
            )
        self.plan.delay(following, following.delayed_until_ms)
