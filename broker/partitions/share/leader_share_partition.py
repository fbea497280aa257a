"""A share partition at the leader of its partition: loads its state, writes changes one at a time, and expires locks.

    loading ── the share coordinator has answered ──> loaded ── leadership, topic or state has changed ──> ended

While it loads, fetches wait. After it has ended, the next fetch creates another one, which loads the stored state.
Acknowledgements without an answer are then refused; their records are delivered again.

Dead letters are written one batch at a time, and again until they are written or a reason does not pass.

Guards: nothing is delivered or acknowledged under another leader epoch than the one under which the state was loaded;
an acknowledgement is answered when the share coordinator has stored it.

Source: KIP-932, KIP-1191; Kafka's `SharePartition`, `SharePartitionManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from lowtide.broker.partitions.share.dead_letters import LETTERS_MAX, LetterWriter
from lowtide.broker.partitions.share.share_partition import NOTHING_TO_WRITE, SharePartition
from lowtide.broker.partitions.share.share_rules import ShareRules
from lowtide.broker.partitions.share.share_values import AcknowledgeType
from lowtide.broker.promises import Spawn
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.partition import PartitionChange

if TYPE_CHECKING:
    from lowtide.broker.partitions.share.share_reading import ShareRead
    from lowtide.broker.partitions.share.share_values import (
        AcknowledgedRange,
        GivenUpRange,
        ShareCounts,
        StateWrite,
        StoredState,
    )
    from lowtide.protocol.share_state_records import SharePlace
    from lowtide.protocol.types import LeaderEpoch, Offset
    from lowtide.replication.partition import Partition
    from lowtide.runtime.clock import Clock

RETRY_MS: Final = (50, 100, 200, 400, 800, 1_000)
"""The delays before a request to the share coordinator is retried; the last one repeats."""

LETTER_RETRY_MS: Final = (1_000, 2_000, 4_000, 8_000, 16_000, 30_000)
"""The delays before dead letters are written again; the last one repeats. Kafka's, which gives up after five tries."""

WRITES_MAX: Final = 12
"""How often a write is tried: for some ten seconds, in which another share coordinator is elected and loads."""

_FENCED: Final = {
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.INVALID_REQUEST: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""Errors of a share coordinator that end the share partition, with the errors for members. Others are retried."""

Answer = Callable[[ErrorCode], None]


class StateKeeper(Protocol):
    """Reads and writes stored states."""

    async def read(self, place: SharePlace, leader_epoch: LeaderEpoch) -> StoredState | ErrorCode: ...
    async def write(
        self, place: SharePlace, leader_epoch: LeaderEpoch, state_epoch: int, write: StateWrite
    ) -> ErrorCode:
        """Stores a change. It may be tried again."""
        ...


class Waiter(Protocol):
    """A fetch that waits for records of a share partition."""

    def look(self, share: LeaderSharePartition) -> None:
        """Wakes waiting fetches, because there may be records."""
        ...


class SharePorts(msgspec.Struct, frozen=True, kw_only=True):
    """What a share partition needs of its broker."""

    keeper: StateKeeper
    letters: LetterWriter
    rules_of: Callable[[str], ShareRules]
    """Returns the configuration of a group."""
    leads: Callable[[Partition], bool]
    """Whether this broker leads a partition."""
    begin_offset: Callable[[Partition, ShareRules], Any]
    """Awaited: returns where a group without a start offset begins."""
    is_named: Callable[[SharePlace], bool]
    """Whether any share session has a share partition."""
    on_ended: Callable[[LeaderSharePartition], None]
    counts: ShareCounts
    clock: Clock
    loop: asyncio.AbstractEventLoop
    spawn: Spawn
    log: Any


class LeaderSharePartition:
    """One share partition, from its first fetch under a leadership on."""

    __slots__ = (
        "_answers",
        "_letter_reason",
        "_ports",
        "_timer",
        "_timer_ms",
        "_waiting",
        "_writes_letters",
        "error",
        "led_since",
        "partition",
        "place",
        "state",
    )

    def __init__(self, place: SharePlace, partition: Partition, ports: SharePorts) -> None:
        """Begins to load the state. This broker leads the partition."""
        self.place = place
        self.partition = partition
        self.led_since = partition.led_since
        self.state: SharePartition | None = None
        """None while it loads."""
        self.error = ErrorCode.NONE
        """Why it has ended; NONE before."""
        self._ports = ports
        self._waiting: dict[Waiter, None] = {}
        self._answers: list[tuple[int, Answer]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._writes_letters = False
        self._letter_reason = ""
        """The last logged reason why dead letters were not written."""
        partition.watchers[self] = None
        ports.spawn(self._load(), name="load share partition")

    @property
    def has_ended(self) -> bool:
        """Whether it can no longer be used."""
        return self.error != ErrorCode.NONE

    @property
    def rules(self) -> ShareRules:
        """The configuration of its group now."""
        return self._ports.rules_of(self.place.group_id)

    # ------------------------------------------------------------------ members
    def read(self, visit: Callable[[SharePartition, int], ShareRead]) -> ShareRead:
        """Lets `visit` read and acquire records, and then starts the writes and timers that follow."""
        assert self.state is not None, "it is loaded"
        self.state.follow(self.rules.limits)
        outcome = visit(self.state, self._ports.clock.monotonic_ms())
        self._ports.counts.acquired += outcome.count
        self.proceed()
        return outcome

    def acknowledge(self, member_id: str, ranges: Sequence[AcknowledgedRange], answer: Answer) -> None:
        """Takes acknowledgements; `answer` gets the outcome once, perhaps within this call.

        Errors: INVALID_RECORD_STATE if the group may not renew locks; those of `SharePartition.acknowledge` and of a
        share coordinator that can't store them; NOT_LEADER_OR_FOLLOWER.
        """
        state = self._in_force()
        if state is None or (not self.rules.renews and any(AcknowledgeType.RENEW in each.types for each in ranges)):
            answer(self.error if self.has_ended else ErrorCode.INVALID_RECORD_STATE)
            return
        number = state.acknowledge(member_id, ranges, self._ports.clock.monotonic_ms())
        if not isinstance(number, ErrorCode):
            self._ports.counts.note(ranges)
        if isinstance(number, ErrorCode):
            answer(number)
        elif number == NOTHING_TO_WRITE:
            answer(ErrorCode.NONE)
        else:
            self._answers.append((number, answer))
        self.proceed()

    def _in_force(self) -> SharePartition | None:
        """Returns the state with the current limits; None while it loads, and after it has ended."""
        if self.state is None or self.has_ended:
            return None
        self.state.follow(self.rules.limits)
        return self.state

    def release(self, member_id: str) -> None:
        """Makes a member's records available again: its session has ended."""
        state = self._in_force()
        if state is not None and state.release(member_id):
            self.proceed()
            self._wake()
        self.leave_if_idle()

    def leave_if_idle(self) -> None:
        """Ends the share partition if no session has it and nothing would be lost."""
        if not self.has_ended and not self._ports.is_named(self.place) and (self.state is None or self.state.is_idle):
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # ------------------------------------------------------------------ waiting
    def watch(self, waiter: Waiter) -> None:
        """Calls `waiter.look` when there may be records."""
        self._waiting[waiter] = None

    def unwatch(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)

    def _wake(self) -> None:
        for waiter in list(self._waiting):
            waiter.look(self)

    def on_partition_changed(self, change: PartitionChange) -> None:
        if change is PartitionChange.HIGH_WATERMARK:
            self._wake()
        elif change is PartitionChange.ROLE:
            self.check()
        elif change is PartitionChange.LOG_START and self.state is not None:
            self.state.move_start(self.partition.log.log_start_offset)
            self.proceed()
            self._wake()

    def check(self) -> None:
        """Ends the share partition if this broker no longer leads the partition, or leads it in another leadership."""
        if not (self._ports.leads(self.partition) and self.partition.led_since == self.led_since):
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def end(self, error: ErrorCode) -> None:
        """Ends the share partition: members get this error. May be called twice."""
        if self.has_ended:
            return
        self.error = error
        self.partition.watchers.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._ports.on_ended(self)
        answers, self._answers = self._answers, []
        for _number, answer in answers:
            answer(error)
        self._wake()
        self._waiting.clear()

    # ------------------------------------------------------------------ the share coordinator
    async def _load(self) -> None:
        stored: StoredState | ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
        tries = 0
        while not self.has_ended:
            stored = await self._ports.keeper.read(self.place, self.led_since)
            if not isinstance(stored, ErrorCode) or stored in _FENCED:
                break
            await asyncio.sleep(RETRY_MS[min(tries, len(RETRY_MS) - 1)] / 1000)
            tries += 1
            self.leave_if_idle()
        if self.has_ended:
            return
        if isinstance(stored, ErrorCode):
            self._ports.log.info("a share partition can't be loaded", partition=str(self.place), error=stored.name)
            self.end(_FENCED[stored])
            return
        await self._begin(stored)

    async def _begin(self, stored: StoredState) -> None:
        rules, log = self.rules, self.partition.log
        offset: Offset = log.log_start_offset
        if stored.start_offset < 0:
            found = await self._ports.begin_offset(self.partition, rules)
            offset = max(found, log.log_start_offset)
        if self.has_ended:
            return
        try:
            self.state = SharePartition(stored, offset, rules.limits)
        except ValueError as error:
            self._ports.log.error(
                "the state of a share partition is invalid", partition=str(self.place), reason=str(error)
            )
            self.end(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        self.proceed()
        self._wake()

    def proceed(self) -> None:
        """Starts the next writes, of the state and of dead letters, and sets the timer of the next lock."""
        if self.state is None or self.has_ended:
            return
        write = self.state.take_write()
        if write is not None:
            self._ports.spawn(self._write(self.state, write), name="write share partition")
        if self.state.deleted_letter_count:
            self._note_deleted(self.state)
        if not self._writes_letters and self.state.given_up(1):
            self._writes_letters = True
            self._ports.spawn(self._write_letters(self.state), name="write dead letters")
        self._set_timer(self.state.next_deadline_ms)

    async def _write(self, state: SharePartition, write: StateWrite) -> None:
        error = ErrorCode.NONE
        for tries in range(WRITES_MAX):
            if self.has_ended:
                return
            error = await self._ports.keeper.write(self.place, self.led_since, state.state_epoch, write)
            if error == ErrorCode.NONE or error in _FENCED:
                break
            await asyncio.sleep(RETRY_MS[min(tries, len(RETRY_MS) - 1)] / 1000)
        if self.has_ended:
            return
        state.complete_write(is_stored=error == ErrorCode.NONE)
        if error in _FENCED:
            self._ports.log.info("a share partition is fenced", partition=str(self.place), error=error.name)
            self.end(_FENCED[error])
            return
        done = [answer for number, answer in self._answers if number <= write.number]
        self._answers = [each for each in self._answers if each[0] > write.number]
        for answer in done:
            answer(error)
        self.proceed()
        self._wake()
        self.leave_if_idle()

    # ------------------------------------------------------------------ dead letters
    async def _write_letters(self, state: SharePartition) -> None:
        """Writes all dead letters that are due, one batch at a time."""
        tries = 0
        try:
            while given_up := self._due_letters(state):
                outcome = await self._ports.letters.write(self.place, self.partition, self.rules, given_up)
                self._log_letters(outcome.reason)
                if self.has_ended:
                    return
                if outcome.done_offset is None:
                    await asyncio.sleep(LETTER_RETRY_MS[min(tries, len(LETTER_RETRY_MS) - 1)] / 1000)
                    tries += 1
                    continue
                tries = 0
                for each in given_up:
                    state.archive(each.first_offset, min(each.last_offset, outcome.done_offset))
                self.proceed()
                self._wake()
        finally:
            self._writes_letters = False
        self.leave_if_idle()

    def _due_letters(self, state: SharePartition) -> list[GivenUpRange]:
        return [] if self.has_ended else state.given_up(LETTERS_MAX)

    def _log_letters(self, reason: str) -> None:
        """Logs why dead letters are not written, once for each reason in a row."""
        if reason and reason != self._letter_reason:
            self._ports.log.error("dead letters were not written", partition=str(self.place), reason=reason)
        self._letter_reason = reason

    def _note_deleted(self, state: SharePartition) -> None:
        count, state.deleted_letter_count = state.deleted_letter_count, 0
        self._ports.counts.of_group(self.place.group_id).deleted += count
        self._ports.log.warning(
            "given-up records were deleted before their dead letters were written",
            partition=str(self.place),
            count=count,
        )

    # ------------------------------------------------------------------ time
    def _set_timer(self, deadline_ms: int | None) -> None:
        """Sets the single timer to the earliest deadline. An earlier timer stays."""
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(deadline_ms - self._ports.clock.monotonic_ms(), 0)
        self._timer = self._ports.loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        state = self._in_force()
        if state is None:
            return
        expired = state.expire(self._ports.clock.monotonic_ms())
        self._ports.counts.timed_out += expired
        self.proceed()
        if expired:
            self._wake()
        self.leave_if_idle()
