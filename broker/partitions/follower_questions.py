"""The requests of a follower before it can fetch: for the range of the leader's log, or the end of an epoch.

Guards: an answer is used only for a partition that still waits for it, in the phase in which it was asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.broker.partitions.leader_endpoint import LeaderEpochEnd, LeaderRange, ask_epochs, ask_ranges
from lowtide.replication.follower import Decision, Delay, FollowedPartition, decide_range, truncation
from lowtide.replication.follower_phase import FollowerEvent, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.network.peer_client import PeerClient
    from lowtide.protocol.errors import ErrorCode
    from lowtide.protocol.types import BrokerId, TopicPartition
    from lowtide.replication.fetch_plan import FollowerFetchPlan
    from lowtide.runtime.clock import Clock


class QuestionParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a fetcher that its questions need."""

    broker_id: BrokerId
    """Our own."""
    plan: FollowerFetchPlan
    clock: Clock
    timeout_ms: Callable[[], int]
    carry_out: Callable[[FollowedPartition, Decision], None]
    """Called with the decision that follows from an answer."""


class FollowerQuestions:
    """The questions to one leader."""

    def __init__(self, parts: QuestionParts) -> None:
        self._parts = parts
        self._waiting: dict[TopicPartition, FollowedPartition] = {}
        self._ends_at_start: set[TopicPartition] = set()
        """Partitions whose log may end at the leader's log start, so that its records were never compared."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, following: FollowedPartition, event: FollowerEvent) -> None:
        """Asks about a partition in the next round; `event` says what."""
        following.on_event(event)
        self._waiting[following.key] = following
        self._parts.plan.touch(following)

    def remove(self, key: TopicPartition) -> None:
        self._waiting.pop(key, None)
        self._ends_at_start.discard(key)

    async def ask(self, client: PeerClient) -> None:
        """Sends the questions that are due. Errors: PeerError; then all are asked again."""
        parts = self._parts
        ranges = self._due(Phase.ASKING_RANGE)
        if ranges:
            found = await ask_ranges(client, parts.broker_id, ranges, parts.timeout_ms())
            for following in ranges:
                self._on_range(following, found.get(following.key))
        epochs = self._due(Phase.ASKING_EPOCH)
        if epochs:
            ends = await ask_epochs(client, parts.broker_id, epochs, parts.timeout_ms())
            for following in epochs:
                self._on_epoch(following, ends.get(following.key))

    def _due(self, phase: Phase) -> list[FollowedPartition]:
        now_ms = self._parts.clock.monotonic_ms()
        return [
            following
            for following in self._waiting.values()
            if following.phase is phase and following.delayed_until_ms <= now_ms
        ]

    def _is_awaited(self, following: FollowedPartition, phase: Phase) -> bool:
        return not following.has_left and following.phase is phase and self._waiting.get(following.key) is following

    def _on_range(self, following: FollowedPartition, found: LeaderRange | ErrorCode | None) -> None:
        if not self._is_awaited(following, Phase.ASKING_RANGE):
            return
        if following.key in self._ends_at_start:
            self._on_start(following, found)
            return
        self._end(following)
        if isinstance(found, LeaderRange):
            self._parts.carry_out(following, decide_range(following, found.start, found.end))
        else:
            self._parts.carry_out(
                following, Delay(found.name if found is not None else "no answer to ListOffsets", lagging=True)
            )

    def _on_start(self, following: FollowedPartition, found: LeaderRange | ErrorCode | None) -> None:
        """Resets the log if the leader's log start requires it. The question is repeated until that is known."""
        if not isinstance(found, LeaderRange):
            self._parts.carry_out(following, Delay("the leader's log start isn't known", lagging=True))
            return
        self._end(following)
        decision = decide_range(following, found.start, found.end)
        if not isinstance(decision, Delay):
            self._parts.carry_out(following, decision)

    def _end(self, following: FollowedPartition) -> None:
        self.remove(following.key)
        following.on_event(FollowerEvent.ANSWERED)
        self._parts.plan.touch(following)

    def _on_epoch(self, following: FollowedPartition, found: LeaderEpochEnd | ErrorCode | None) -> None:
        if not self._is_awaited(following, Phase.ASKING_EPOCH):
            return
        if not isinstance(found, LeaderEpochEnd):
            self._parts.carry_out(
                following, Delay(found.name if found is not None else "no answer to OffsetForLeaderEpoch", lagging=True)
            )
            return
        self._end(following)
        step = truncation(following.log, found.leader_epoch, found.end_offset)
        if step.offset < following.log.log_end_offset:
            self._parts.carry_out(following, step)
        elif found.end_offset == following.log.log_end_offset and found.leader_epoch < following.leader_epoch:
            # The leader also answers this for an epoch before its first one, which begins at its log start.
            self._ends_at_start.add(following.key)
            self.add(following, FollowerEvent.ASK_RANGE)
