"""A partition as one share group consumes it: which member gets which records, and what becomes of them.

A record is available, then acquired by one member for a time, then acknowledged, available again, or given up.
Acknowledgements take effect when the share coordinator has stored them: one write is under way at a time, and the next
one has everything that came meanwhile. Changes without an acknowledgement (an expired lock, a closed session) take
effect at once, and are part of the next write too.

Every delivery counts, however it ends: released, expired, or with the member gone. A record that has failed half as
often as it may is delivered with fewer others, and the last time alone. So a record that no member can process is given
up alone.

With dead letters a record that is given up becomes archiving first. When that is stored, its dead letter is written,
and then it is archived. So a crash may cause a second dead letter, but loses none.

Guards: no record is acquired by two members at once, none is delivered more often than the limit allows, and the start
offset never falls; a dead letter is written only after the decision is stored.

Pure: time is passed in, and the caller carries out the writes.

Sources: KIP-932, KIP-1191, KIP-1206, KIP-1222, KIP-1226; Kafka's `SharePartition` (KAFKA-17541 and KAFKA-19972 where
the KIP is silent).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from lowtide.broker.partitions.share.share_runs import FINAL, RecordState, Run, Runs
from lowtide.broker.partitions.share.share_values import (
    AcknowledgedRange,
    AcknowledgeType,
    AcquiredRange,
    AcquireLimits,
    FetchedBatch,
    GivenUpRange,
    ShareLimits,
    StateBatch,
    StateWrite,
    StoredState,
    add_batch,
    join_acquired,
)
from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from lowtide.protocol.types import Offset

_STATES: Final = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
}

_BUSY: Final = frozenset({RecordState.ACQUIRED, RecordState.ARCHIVING})

NOTHING_TO_WRITE: Final = 0
"""The number of no write: the acknowledgements count already."""


class SharePartition:
    """The state of one share partition."""

    __slots__ = (
        "_has_given_up",
        "_number",
        "_runs",
        "_start_is_unwritten",
        "_under_way",
        "deleted_letter_count",
        "limits",
        "state_epoch",
    )

    def __init__(self, stored: StoredState, start_offset: Offset, limits: ShareLimits) -> None:
        """Begins with the stored state.

        `start_offset` is where a group without a start offset begins, or the log start if that is higher. Offsets
        between stored batches were not acknowledged: they are available. A new start offset is part of the first write,
        so that no later leader chooses another one. Errors: ValueError for batches out of order.
        """
        self.state_epoch = stored.state_epoch
        self.limits = limits
        self.deleted_letter_count = 0
        """The number of given-up records that were deleted before their dead letters were written."""
        self._has_given_up = True
        """Whether there may be records without dead letters, so that others cost no search."""
        self._number = 0
        self._under_way = False
        self._start_is_unwritten = stored.start_offset < 0
        """Whether the next write must have the start offset, because it has passed unwritten changes."""
        self._runs = Runs(stored.start_offset if stored.start_offset >= 0 else start_offset)
        for batch in stored.batches:
            if batch.last_offset < batch.first_offset or batch.first_offset < self._runs.end_offset:
                raise ValueError(f"stored batch {batch} does not lie at or above {self._runs.end_offset}")
            state = RecordState.AVAILABLE if batch.state is RecordState.ACQUIRED else batch.state
            self._runs.append(batch.first_offset - 1, RecordState.AVAILABLE)
            self._runs.append(batch.last_offset, state, batch.delivery_count)
        for run in self._runs:
            if run.state is RecordState.ARCHIVING:  # The reason is not stored.
                run.is_rejected = run.delivery_count < limits.delivery_count_limit
        self.move_start(start_offset)

    def follow(self, limits: ShareLimits) -> None:
        """Takes over new limits. Existing locks keep their time."""
        self.limits = limits

    # ------------------------------------------------------------------ looking
    @property
    def start_offset(self) -> Offset:
        """All records below it are final. It never falls."""
        return self._runs.start_offset

    @property
    def end_offset(self) -> Offset:
        """No record at or above it was ever acquired."""
        return self._runs.end_offset

    @property
    def next_fetch_offset(self) -> Offset:
        """The first available record, where the log is to be read next."""
        return next((run.first_offset for run in self._runs if run.can_be_acquired), self._runs.end_offset)

    @property
    def may_acquire(self) -> bool:
        """Whether a read at `next_fetch_offset` may acquire records."""
        return self.next_fetch_offset < self._runs.end_offset or self._has_room

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next acquisition lock expires, on the monotonic clock; None without a lock."""
        return min((run.lock_deadline_ms for run in self._runs if _is_locked(run)), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether it may end: no record is acquired, no change is unwritten, and no dead letter is to be written."""
        if self._under_way or self._start_is_unwritten:
            return False
        return not any(run.state in _BUSY or run.unwritten for run in self._runs)

    @property
    def _has_room(self) -> bool:
        return self._runs.end_offset - self._runs.start_offset < self.limits.record_locks_max

    # ------------------------------------------------------------------ delivery
    def acquire(
        self, member_id: str, fetch_offset: Offset, batches: Sequence[FetchedBatch], wanted: AcquireLimits, now_ms: int
    ) -> list[AcquiredRange]:
        """Acquires for a member what is available in batches that were read at `fetch_offset`, in log order.

        Offsets between the batches, and hidden batches, are archived. That need not be stored, because the log has it.
        """
        acquired: list[AcquiredRange] = []
        offset, left = max(fetch_offset, self._runs.start_offset), wanted.records_max
        stop = self._delivery_end(offset, wanted)
        for batch in batches:
            if left <= 0 or offset > self._runs.end_offset or offset == stop:
                break
            if batch.last_offset < offset:
                continue
            last_offset = batch.last_offset if self._has_room else min(batch.last_offset, self._runs.end_offset - 1)
            if stop is not None:
                last_offset = min(last_offset, stop - 1)
            if batch.is_hidden:
                self._archive(offset, last_offset)
            else:
                self._archive(offset, min(batch.base_offset - 1, last_offset))
                self._runs.append(last_offset, RecordState.AVAILABLE)
                most = left if wanted.is_strict else batch.last_offset - offset + 1
                taken = self._take(member_id, max(batch.base_offset, offset), last_offset, most, now_ms)
                left -= sum(each.last_offset - each.first_offset + 1 for each in taken)
                join_acquired(acquired, taken, wanted.batch_size)
            offset = last_offset + 1
            if last_offset < batch.last_offset:
                break
        self._settle()
        return acquired

    def _delivery_end(self, offset: Offset, wanted: AcquireLimits) -> Offset | None:
        """Returns where a delivery from `offset` must end (exclusive) to isolate records that failed often.

        Returns None if it may end anywhere. Such a delivery has half of the adjacent records that failed equally
        often; if it is their last one, each record is delivered alone.
        """
        runs = [run for run in self._runs.around(offset, self._runs.end_offset) if run.can_be_acquired]
        apart = next(
            (index for index, run in enumerate(runs) if run.delivery_count >= self.limits.isolation_count), None
        )
        if apart is None:
            return None
        begin, count = max(runs[apart].first_offset, offset), runs[apart].delivery_count
        if apart > 0 or wanted.is_joined:
            return begin
        if count >= self.limits.delivery_count_limit - 1:
            return begin + 1
        end = begin
        for run in runs:
            if run.delivery_count != count or run.first_offset > end:
                break
            end = run.last_offset + 1
        return begin + max(min(end - begin, wanted.records_max) // 2, 1)

    def _archive(self, first_offset: Offset, last_offset: Offset) -> None:
        self._runs.append(last_offset, RecordState.AVAILABLE)
        for run in self._runs.between(first_offset, last_offset):
            if run.can_be_acquired:
                run.state = RecordState.ARCHIVED

    def _take(
        self, member_id: str, first_offset: Offset, last_offset: Offset, most: int, now_ms: int
    ) -> list[AcquiredRange]:
        taken: list[AcquiredRange] = []
        for run in self._runs.around(first_offset, last_offset):
            if not run.can_be_acquired:
                continue
            first = max(run.first_offset, first_offset)
            last = min(run.last_offset, last_offset, first + most - 1)
            is_whole = first == run.first_offset and last == run.last_offset
            for piece in [run] if is_whole else self._runs.between(first, last):
                piece.state, piece.member_id = RecordState.ACQUIRED, member_id
                piece.delivery_count += 1
                piece.lock_deadline_ms = now_ms + self.limits.lock_duration_ms
                taken.append(AcquiredRange(piece.first_offset, piece.last_offset, piece.delivery_count))
                most -= piece.count
            if most <= 0:
                break
        return taken

    # ------------------------------------------------------------------ acknowledgement
    def acknowledge(self, member_id: str, ranges: Sequence[AcknowledgedRange], now_ms: int) -> int | ErrorCode:
        """Takes a member's acknowledgements of acquired records: all of them, or none if one range is wrong.

        The ranges are in order of their offsets. A range has one type, or one for each of its records. Returns the
        number of the write after which they count, 0 if they count already. Offsets below the start offset are skipped.

        Errors: INVALID_REQUEST for offsets that were never acquired; INVALID_RECORD_STATE for those that the member
        does not have now.
        """
        for given in ranges:
            if given.last_offset < self._runs.start_offset:
                continue
            if given.last_offset >= self._runs.end_offset:
                return ErrorCode.INVALID_REQUEST
            for run in self._runs.around(max(given.first_offset, self._runs.start_offset), given.last_offset):
                if not _is_locked(run) or run.member_id != member_id:
                    return ErrorCode.INVALID_RECORD_STATE
        number, has_changed = self._number + 1, False
        pieces = [piece for given in ranges for piece in given.pieces() if piece[1] >= self._runs.start_offset]
        for index, run in self._runs.cut_for(
            [(max(first, self._runs.start_offset), last) for first, last, _ in pieces]
        ):
            kind = pieces[index][2]
            if kind is AcknowledgeType.RENEW:
                run.lock_deadline_ms = now_ms + self.limits.lock_duration_ms
            else:
                run.next_state, run.write, has_changed = self._state_after(kind, run), number, True
        self._runs.merge()
        return number if has_changed else NOTHING_TO_WRITE

    def _state_after(self, kind: AcknowledgeType, run: Run) -> RecordState:
        """Returns the state after an acknowledgement, or after a delivery without one, which counts as RELEASE.

        A record is given up if it is rejected, or has used up its deliveries.
        """
        run.is_rejected = kind is AcknowledgeType.REJECT
        is_spent = kind is AcknowledgeType.RELEASE and run.delivery_count >= self.limits.delivery_count_limit
        if not run.is_rejected and not is_spent:
            return _STATES[kind]
        self._has_given_up = self._has_given_up or self.limits.has_dead_letters
        return RecordState.ARCHIVING if self.limits.has_dead_letters else RecordState.ARCHIVED

    def release(self, member_id: str) -> int:
        """Releases a member's records, or gives up those that have used up their deliveries: its session has ended.

        The delivery counts: one of these records may have ended the member. Returns the number of records.
        """
        return self._unlock_all(lambda run: run.member_id == member_id)

    def expire(self, now_ms: int) -> int:
        """Releases records whose locks have expired, or gives up those that have used up their deliveries.

        Returns the number of records.
        """
        return self._unlock_all(lambda run: run.lock_deadline_ms <= now_ms)

    def _unlock_all(self, ends: Callable[[Run], bool]) -> int:
        """Ends the deliveries that `ends` selects and that were not acknowledged. Returns the number of records."""
        unlocked = 0
        for run in self._runs:
            if _is_locked(run) and ends(run):
                unlocked += _unlock(run, self._state_after(AcknowledgeType.RELEASE, run))
        self._settle()
        return unlocked

    def move_start(self, offset: Offset) -> None:
        """Drops offsets below the log's new start, also those whose dead letters aren't written. May do nothing."""
        for run in self._runs.around(self._runs.start_offset, offset - 1):
            if RecordState.ARCHIVING in (run.state, run.next_state):
                self.deleted_letter_count += min(run.last_offset, offset - 1) - run.first_offset + 1
        self._runs.drop_below(offset)
        self._settle()

    # ------------------------------------------------------------------ dead letters
    def given_up(self, count_max: int) -> list[GivenUpRange]:
        """Returns the first records whose dead letters are to be written, up to about `count_max` offsets."""
        found: list[GivenUpRange] = []
        if not self._has_given_up:
            return found
        self._has_given_up = False
        for run in self._runs:
            if RecordState.ARCHIVING not in (run.state, run.next_state):
                continue
            self._has_given_up = True
            if count_max > 0 and run.state is RecordState.ARCHIVING and not run.unwritten and not run.write:
                found.append(GivenUpRange(run.first_offset, run.last_offset, run.delivery_count, run.is_rejected))
                count_max -= run.count
        return found

    def archive(self, first_offset: Offset, last_offset: Offset) -> None:
        """Archives given-up records (both offsets inclusive) whose dead letters are written, or can't be."""
        for run in self._runs.between(max(first_offset, self._runs.start_offset), last_offset):
            if run.state is RecordState.ARCHIVING:
                run.state, run.unwritten = RecordState.ARCHIVED, True
        self._settle()

    # ------------------------------------------------------------------ writes
    def take_write(self) -> StateWrite | None:
        """Returns the next write; None if one is under way, or nothing has changed."""
        number = self._number + 1
        waits = self._start_is_unwritten or any(run.unwritten or run.write == number for run in self._runs)
        if self._under_way or not waits:
            return None
        self._number, self._under_way, self._start_is_unwritten = number, True, False
        start_offset, batches, complete = self._runs.start_offset, list[StateBatch](), 0
        for run in self._runs:
            state, delivery_count = _stored_as(run, number)
            is_final = state in FINAL
            if is_final and run.first_offset == start_offset:
                start_offset = run.last_offset + 1
            elif is_final:
                complete += run.count
            if (run.unwritten or run.write == number) and run.first_offset >= start_offset:
                add_batch(batches, StateBatch(run.first_offset, run.last_offset, state, delivery_count))
            if run.unwritten:
                run.unwritten, run.write = False, number
        self._runs.merge()
        return StateWrite(number=number, start_offset=start_offset, complete_count=complete, batches=tuple(batches))

    def complete_write(self, *, is_stored: bool) -> None:
        """Ends the write that is under way.

        If it is not stored, its acknowledgements don't count, and its other changes are part of the next write.
        """
        assert self._under_way, "a write is completed once"
        self._under_way = False
        self._start_is_unwritten = self._start_is_unwritten or not is_stored
        for run in self._runs:
            if run.write != self._number:
                continue
            if run.next_state is None:
                run.unwritten = run.unwritten or not is_stored
            elif is_stored:
                _unlock(run, run.next_state)
                run.unwritten = False
            run.next_state, run.write = None, 0
        self._settle()

    def _settle(self) -> None:
        """Moves the start offset past final records."""
        start_offset = self._runs.start_offset
        for run in self._runs:
            if not run.is_final:
                break
            start_offset = run.last_offset + 1
            self._start_is_unwritten = self._start_is_unwritten or run.unwritten
        self._runs.drop_below(start_offset)
        self._runs.merge()


def _is_locked(run: Run) -> bool:
    """Returns whether a member has it and has not acknowledged it."""
    return run.state is RecordState.ACQUIRED and run.next_state is None


def _stored_as(run: Run, number: int) -> tuple[RecordState, int]:
    """Returns state and delivery count of a run in a write. An acquired run is stored as it was before."""
    if run.next_state is not None and run.write == number:
        return run.next_state, run.delivery_count
    if run.state is RecordState.ACQUIRED:
        return RecordState.AVAILABLE, run.delivery_count - 1
    return run.state, run.delivery_count


def _unlock(run: Run, state: RecordState) -> int:
    run.state, run.member_id, run.lock_deadline_ms, run.unwritten = state, "", 0, True
    return run.count
