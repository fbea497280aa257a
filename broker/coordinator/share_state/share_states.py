"""The states of share partitions in one partition of `__share_group_state`, and the requests about them.

Pure: a request, the time and the state give records and answers. All changes come from records.

Guards: a leader that has a successor writes nothing (FENCED_LEADER_EPOCH), nor does one that knows an earlier epoch of
the state (FENCED_STATE_EPOCH); a write only moves the start offset forward; the log isn't cut before a record that a
state needs.

Source: Kafka's `ShareCoordinatorShard`, `ShareCoordinatorOffsetsManager`; KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.broker.coordinator.share_state.share_settings import ShareSettings
from lowtide.broker.coordinator.share_state.share_state import NO_EPOCH, ShareState, state_of_snapshot, state_of_update
from lowtide.broker.coordinator.share_state.state_batches import check_batches, combine
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.delete_share_group_state import DeleteStatePartition, DeleteStatePartitionResult
from lowtide.protocol.messages.initialize_share_group_state import (
    InitializeStatePartition,
    InitializeStatePartitionResult,
)
from lowtide.protocol.messages.read_share_group_state import ReadStatePartition, ReadStatePartitionResult
from lowtide.protocol.messages.read_share_group_state_summary import SummaryStatePartition, SummaryStatePartitionResult
from lowtide.protocol.messages.write_share_group_state import WriteStatePartition, WriteStatePartitionResult
from lowtide.protocol.share_state_records import (
    UNKNOWN_COUNT,
    UNKNOWN_START,
    SharePlace,
    ShareSnapshot,
    ShareStateChange,
    ShareStateValue,
    ShareUpdate,
    encode_share_state,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, TopicId

STATES_MAX: Final = 100_000
"""The most states in one partition of the topic: some tens of megabytes. Kafka has no such limit."""

TimerKey: TypeAlias = str
_PRUNE: Final[TimerKey] = "prune"
_COLD: Final[TimerKey] = "cold"

_WRITE_UNINITIALIZED: Final = "Write operation on uninitialized share partition not allowed."
_READ_UNINITIALIZED: Final = "Read operation on uninitialized share partition not allowed."
_NEGATIVE_LEADER_EPOCH: Final = "The leader epoch cannot be a negative number."
_NEGATIVE_STATE_EPOCH: Final = "The state epoch cannot be a negative number."


class ShareStatePorts(Protocol):
    """What the states need of the broker."""

    def has_partition(self, topic_id: TopicId, partition: int) -> bool:
        """Returns whether the partition exists."""

    def prune(self, states: ShareStates, start_offset: Offset) -> None:
        """Cuts the log of these states before `start_offset`.

        The records that replace the earlier ones are committed.
        """


class ShareStates:
    """The states of one partition of the topic."""

    def __init__(self, settings: ShareSettings, ports: ShareStatePorts) -> None:
        self.settings = settings
        self.states: dict[SharePlace, ShareState] = {}
        self.timers: Timers[TimerKey] = Timers()
        self._ports = ports
        self._last_offset: Offset = UNKNOWN_OFFSET
        """The offset of the last record."""
        self._last_removal: Offset = UNKNOWN_OFFSET

    # ------------------------------------------------------------------ records
    @property
    def count(self) -> int:
        """The number of states."""
        return len(self.states)

    def apply(self, change: ShareStateChange | InTransaction | EndMarker, offset: Offset) -> None:
        """Applies a record. Errors: ProtocolError for one in a transaction, which is never written here."""
        if isinstance(change, InTransaction | EndMarker):
            message = "a record about a share partition's state that is in a transaction"
            raise ProtocolError(message)
        self.note(change, offset)

    def note(self, change: ShareStateChange, offset: Offset) -> None:
        """Applies a record that was just appended."""
        self._last_offset = max(self._last_offset, offset)
        place, value = change.place, change.value
        before = self.states.get(place)
        if value is None:
            self.states.pop(place, None)
            self._last_removal = offset
        elif isinstance(value, ShareSnapshot):
            self.states[place] = state_of_snapshot(value, offset, before)
        else:
            self.states[place] = before.after(value, offset) if before is not None else state_of_update(value, offset)

    def on_loaded(self, effects: Effects) -> None:
        """Starts the timers."""
        self.timers.schedule(_PRUNE, effects.now_ms + self.settings.prune_interval_ms)
        self.timers.schedule(_COLD, effects.now_ms + self.settings.cold_snapshot_interval_ms)

    def on_unloaded(self, _effects: Effects) -> None:
        """Drops all states."""
        self.states.clear()

    # ------------------------------------------------------------------ requests
    def initialize(self, place: SharePlace, row: InitializeStatePartition, reply: Reply, effects: Effects) -> None:
        """Initializes a state, again if the epoch is later; the same epoch changes nothing.

        Errors: INVALID_REQUEST, also for a negative epoch, FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION,
        POLICY_VIOLATION above `STATES_MAX`, those of `append_error`.
        """
        if row.state_epoch < 0:
            effects.answer(
                reply, _failed(InitializeStatePartitionResult, place, ErrorCode.INVALID_REQUEST, _NEGATIVE_STATE_EPOCH)
            )
            return
        known = self.states.get(place)
        error = self._check_place(place)
        if error == ErrorCode.NONE and known is not None and row.state_epoch < known.state_epoch:
            error = ErrorCode.FENCED_STATE_EPOCH
        if error == ErrorCode.NONE and known is None and len(self.states) >= STATES_MAX:
            error = ErrorCode.POLICY_VIOLATION
        if error != ErrorCode.NONE:
            effects.answer(reply, _failed(InitializeStatePartitionResult, place, error))
            return
        if known is None or row.state_epoch > known.state_epoch:
            epoch = known.snapshot_epoch + 1 if known is not None else 0
            value = ShareSnapshot(
                snapshot_epoch=epoch,
                state_epoch=row.state_epoch,
                leader_epoch=NO_EPOCH,
                start_offset=row.start_offset,
                delivery_complete_count=UNKNOWN_COUNT if row.start_offset == UNKNOWN_START else 0,
                create_timestamp=effects.wall_ms,
                write_timestamp=effects.wall_ms,
                state_batches=[],
            )
            self._keep(place, value, effects)
        self._answer(place, reply, InitializeStatePartitionResult(partition=place.partition), effects)

    def read(self, place: SharePlace, row: ReadStatePartition, reply: Reply, effects: Effects) -> None:
        """Returns a state to the partition's leader, and fences leaders of earlier epochs.

        Errors: INVALID_REQUEST, also for a negative epoch or if the state isn't initialized, FENCED_LEADER_EPOCH,
        UNKNOWN_TOPIC_OR_PARTITION, those of `append_error`.
        """
        known = self.states.get(place)
        if known is None or row.leader_epoch < 0:
            message = _NEGATIVE_LEADER_EPOCH if row.leader_epoch < 0 else _READ_UNINITIALIZED
            effects.answer(reply, _failed(ReadStatePartitionResult, place, ErrorCode.INVALID_REQUEST, message))
            return
        error = self._check_leader(place, known, row.leader_epoch)
        if error != ErrorCode.NONE:
            effects.answer(reply, _failed(ReadStatePartitionResult, place, error))
            return
        if row.leader_epoch > known.leader_epoch:
            unchanged = WriteStatePartition(
                partition=place.partition,
                state_epoch=known.state_epoch,
                leader_epoch=row.leader_epoch,
                start_offset=known.start_offset,
                delivery_complete_count=known.delivery_complete_count,
                state_batches=[],
            )
            self._change(place, known, unchanged, row.leader_epoch, effects)
        found = ReadStatePartitionResult(
            partition=place.partition,
            state_epoch=known.state_epoch,
            start_offset=known.start_offset,
            state_batches=list(known.batches),
        )
        self._answer(place, reply, found, effects)

    def write(self, place: SharePlace, row: WriteStatePartition, reply: Reply, effects: Effects) -> None:
        """Persists a change of a share partition.

        Errors: INVALID_REQUEST, also for a negative epoch or if the state isn't initialized, FENCED_LEADER_EPOCH,
        FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, those of `append_error`.
        """
        known = self.states.get(place)
        if known is None or row.leader_epoch < 0 or row.state_epoch < 0:
            message = _NEGATIVE_STATE_EPOCH if row.state_epoch < 0 else _WRITE_UNINITIALIZED
            message = _NEGATIVE_LEADER_EPOCH if row.leader_epoch < 0 else message
            effects.answer(reply, _failed(WriteStatePartitionResult, place, ErrorCode.INVALID_REQUEST, message))
            return
        error = self._check_leader(place, known, row.leader_epoch)
        if error == ErrorCode.NONE and row.state_epoch < known.state_epoch:
            error = ErrorCode.FENCED_STATE_EPOCH
        if error == ErrorCode.NONE and not check_batches(row.state_batches):
            error = ErrorCode.INVALID_REQUEST
        if error != ErrorCode.NONE:
            effects.answer(reply, _failed(WriteStatePartitionResult, place, error))
            return
        self._change(place, known, row, known.leader_epoch, effects)
        self._answer(place, reply, WriteStatePartitionResult(partition=place.partition), effects)

    def summarize(self, place: SharePlace, row: SummaryStatePartition, reply: Reply, effects: Effects) -> None:
        """Returns the start offset of a share partition; unknown if the state isn't initialized.

        Errors: INVALID_REQUEST, FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, those of `append_error`.
        """
        known = self.states.get(place)
        error = self._check_place(place) if known is None else self._check_leader(place, known, row.leader_epoch)
        if error != ErrorCode.NONE:
            effects.answer(reply, _failed(SummaryStatePartitionResult, place, error))
            return
        found = SummaryStatePartitionResult(partition=place.partition, start_offset=UNKNOWN_START)
        if known is not None:
            found.state_epoch, found.leader_epoch = known.state_epoch, known.leader_epoch
            found.start_offset, found.delivery_complete_count = known.start_offset, known.delivery_complete_count
        self._answer(place, reply, found, effects)

    def delete(self, place: SharePlace, row: DeleteStatePartition, reply: Reply, effects: Effects) -> None:
        """Deletes a state, if there is one. Errors: INVALID_REQUEST, those of `append_error`."""
        if row.partition < 0:
            effects.answer(reply, _failed(DeleteStatePartitionResult, place, ErrorCode.INVALID_REQUEST))
            return
        if place in self.states:
            self._keep(place, None, effects)
        self._answer(place, reply, DeleteStatePartitionResult(partition=place.partition), effects)

    def forget_topics(self, deleted: Collection[TopicId], effects: Effects) -> None:
        """Deletes the states of topics that were deleted."""
        for place in [place for place in self.states if place.topic_id in deleted]:
            self._keep(place, None, effects)

    # ------------------------------------------------------------------ checks
    def _check_place(self, place: SharePlace) -> ErrorCode:
        if place.partition < 0:
            return ErrorCode.INVALID_REQUEST
        has_it = self._ports.has_partition(place.topic_id, place.partition)
        return ErrorCode.NONE if has_it else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _check_leader(self, place: SharePlace, known: ShareState, leader_epoch: int) -> ErrorCode:
        if NO_EPOCH != leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return self._check_place(place)

    # ------------------------------------------------------------------ keeping
    def _keep(self, place: SharePlace, value: ShareStateValue | None, effects: Effects) -> None:
        effects.records.append(encode_share_state(place, value))
        effects.changes.append(ShareStateChange(place, value))

    def _change(
        self, place: SharePlace, known: ShareState, row: WriteStatePartition, leader_epoch: int, effects: Effects
    ) -> None:
        """Asks for an update record, or for a snapshot after so many of them.

        A late write undoes nothing that is newer.
        """
        start_offset, complete_count = max(
            (row.start_offset, row.delivery_complete_count), (known.start_offset, known.delivery_complete_count)
        )
        update = ShareUpdate(
            snapshot_epoch=known.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete_count,
            state_batches=combine(row.state_batches, start_offset),
        )
        if known.update_count < self.settings.updates_per_snapshot:
            self._keep(place, update, effects)
        else:
            after = known.after(update, known.last_offset)
            self._keep(place, after.snapshot(create_ms=effects.wall_ms, write_ms=effects.wall_ms), effects)

    def _answer(self, place: SharePlace, reply: Reply, response: Any, effects: Effects) -> None:
        known = self.states.get(place)
        last_offset = known.last_offset if known is not None else self._last_removal
        effects.barrier = max(effects.barrier, last_offset)
        effects.answer_when_committed(reply, response, partial(_failed, type(response), place))

    # ------------------------------------------------------------------ time
    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """Prunes the log, or writes snapshots of cold states again."""
        if key == _COLD:
            self.timers.schedule(_COLD, effects.now_ms + self.settings.cold_snapshot_interval_ms)
            self._write_cold_again(effects)
        else:
            self.timers.schedule(_PRUNE, effects.now_ms + self.settings.prune_interval_ms)
            self._prune(effects)

    def _write_cold_again(self, effects: Effects) -> None:
        """Writes snapshots of cold states again, so that the log can be cut; not if all states are cold.

        A snapshot from the future was written when the wall clock was wrong, and may be old.
        """
        if all(state.is_cold for state in self.states.values()):
            return
        oldest_ms = effects.wall_ms - self.settings.cold_snapshot_interval_ms
        for place, state in self.states.items():
            if not oldest_ms < state.create_ms <= effects.wall_ms:
                self._keep(place, state.snapshot(create_ms=state.create_ms, write_ms=effects.wall_ms), effects)

    def _prune(self, effects: Effects) -> None:
        """Cuts the log before the oldest needed snapshot, once all records so far are committed."""
        needed = min((state.snapshot_offset for state in self.states.values()), default=self._last_offset + 1)

        def on_committed(error: ErrorCode, _effects: Effects) -> None:
            if error == ErrorCode.NONE:
                self._ports.prune(self, needed)

        effects.barrier = max(effects.barrier, self._last_offset)
        effects.then.append(on_committed)


def _failed(row: Callable[..., Any], place: SharePlace, error: ErrorCode, message: str | None = None) -> Any:
    return row(partition=place.partition, error_code=error, error_message=message)
