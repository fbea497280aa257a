"""Decides how a follower handles an answer of its leader, for one partition.

The broker carries out what `decide` returns, because a truncation must be durable before anything else is written.
`append_fetched` appends records at once, as a leader does.

Guards: an answer is valid only in the leader epoch in which it was requested. An answer with a diverging epoch carries
nothing else (KAFKA-14704). A log is emptied only for a leader whose log is known to start at or above its end, never
merely because offsets don't fit (KAFKA-2143, KAFKA-7414). A follower whose log ends exactly at the leader's log start
is reset too, unless the leader has confirmed in this epoch that the logs match: below its log start a leader cannot
compare.

Sources: KIP-101, KIP-279, KIP-320, KIP-595; Kafka's AbstractFetcherThread and ReplicaFetcherThread.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicId, TopicPartition
from lowtide.replication.follower_phase import FollowerEvent, Phase, next_phase
from lowtide.replication.leadership import NEVER_MS
from lowtide.storage.compaction.compaction import without_deleted_beginning
from lowtide.storage.log.log_erasures import NotSearchedError
from lowtide.storage.log.segments.segment_files import RemovedSegment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.protocol.messages.fetch import PartitionData
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.log import Log

LAGGING_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""One of the two brokers has older metadata than the other, which soon resolves itself."""

LAGGING_BACKOFF_MS: Final = 20
"""The first backoff after one of these errors; it doubles up to `replica.fetch.backoff.ms`."""


class FollowedPartition(msgspec.Struct, kw_only=True):
    """One partition that this broker follows, in one leader epoch of one leader."""

    partition: Partition
    leader_epoch: LeaderEpoch
    phase: Phase = Phase.FETCHING
    delayed_until_ms: int = 0
    backoff_ms: int = 0
    warned_ms: int = NEVER_MS
    """When a warning about its delay was last logged."""
    heard: bool = False
    """Whether the leader has answered in this leader epoch without a diverging epoch."""
    received_log_start: Offset = UNKNOWN_OFFSET
    """The leader's log start as last reported."""
    met_erasure_end: Offset = 0
    """The exclusive end of the last erasure for which the log started over."""
    erasures_before: Offset = 0
    """The same when the copying of the log began: the leader had all erasures below it then."""
    lag: int = 0
    """Records below the leader's high watermark that are missing here, as of the last answer."""
    throttled_until_ms: int = 0
    """The throttle is not checked again before."""
    has_left: bool = False
    """No longer followed, or followed in another leader epoch by another object."""

    @property
    def log(self) -> Log:
        return self.partition.log

    @property
    def key(self) -> TopicPartition:
        return self.partition.topic_partition

    @property
    def topic_id(self) -> TopicId:
        return self.partition.topic_id

    @property
    def is_in_sync(self) -> bool:
        """Whether it is known to have everything committed. A new one is not."""
        return self.heard and self.lag == 0

    @property
    def waits_for_flush(self) -> bool:
        """Whether the end of its log must be flushed before it is reported, also if an earlier leader sent it."""
        return self.log.flush_is_due

    def on_event(self, event: FollowerEvent) -> None:
        """Enters the next phase. Raises AssertionError if the event is impossible in this phase."""
        self.phase = next_phase(self.phase, event)

    def back_off(self, now_ms: int, maximum_ms: int, *, lagging: bool) -> None:
        """Delays the partition. With `lagging` the delay starts short and doubles."""
        self.backoff_ms = min(max(self.backoff_ms * 2, LAGGING_BACKOFF_MS), maximum_ms) if lagging else maximum_ms
        self.delayed_until_ms = now_ms + self.backoff_ms


class Truncate(msgspec.Struct, frozen=True, gc=False):
    """Truncate the log to `offset`, its new end. `epoch` is the leader's last epoch below it, -1 if unknown."""

    offset: Offset
    epoch: LeaderEpoch = NO_LEADER_EPOCH


class Reset(msgspec.Struct, frozen=True, gc=False):
    """Empty the log; it starts and continues at `offset`, the leader's log start."""

    offset: Offset


class Delay(msgspec.Struct, frozen=True, gc=False):
    """Retry later. `lagging` means one of `LAGGING_ERRORS`."""

    reason: str
    lagging: bool = False


class NextStep(Enum):
    """Decisions without a value."""

    APPEND = "append what the answer has"
    ASK_RANGE = "ask for the leader's log start and log end"


Decision: TypeAlias = Truncate | Reset | Delay | NextStep


class FetchedAppend(msgspec.Struct):
    """The outcome of `append_fetched`. `removed` are segments that a rolled log replaced, to be unlinked.

    After an error nothing of the answer is valid, except when the disk is full (`counts`): deletes must still arrive,
    because they free space.
    """

    error: ErrorCode = ErrorCode.NONE
    counts: bool = True
    appended_bytes: int = 0
    has_grown: bool = False
    """Whether records were appended, which is possible even when the disk is full."""
    has_news: bool = False
    """Whether a consumer may see more than before."""
    removed: Sequence[RemovedSegment] = ()
    starts_over: str | None = None
    """Why the log must be emptied and copied again; then nothing of the answer is valid."""


def decide(following: FollowedPartition, row: PartitionData) -> Decision:
    """Returns what to do with the answer to a fetch at the log's current end, in the current leader epoch."""
    error = row.error_code
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return NextStep.ASK_RANGE
    if error != ErrorCode.NONE:
        code = ErrorCode(error)
        return Delay(code.name, lagging=code in LAGGING_ERRORS)
    log = following.log
    if row.diverging_epoch is not None:
        return truncation(log, row.diverging_epoch.epoch, row.diverging_epoch.end_offset)
    start = row.log_start_offset
    if must_reset(following, start):
        return Reset(start)
    return NextStep.APPEND


def must_reset(following: FollowedPartition, leader_log_start: Offset) -> bool:
    """Returns whether the leader's log starts above this log's end, or at its end with the last record not compared."""
    log = following.log
    if log.log_end_offset < leader_log_start:
        return True
    return log.log_end_offset == leader_log_start > log.log_start_offset and not following.heard


def truncation(log: Log, leader_epoch: LeaderEpoch, end_offset: Offset) -> Truncate:
    """Returns where to truncate if the leader's largest epoch at or below ours is `leader_epoch`, up to `end_offset`.

    A leader that knows no such epoch (-1) leaves what is committed, as far as that is known here. Source: KIP-101,
    KIP-279, AbstractFetcherThread.getOffsetTruncationState.
    """
    if end_offset < 0:
        return Truncate(log.high_watermark)
    log_end_offset = log.log_end_offset
    if leader_epoch < 0:
        return Truncate(min(end_offset, log_end_offset))
    own_epoch, own_end = log.leader_epochs.end_offset_for(leader_epoch, log_end_offset)
    if own_epoch < 0:
        return Truncate(min(end_offset, log_end_offset), leader_epoch)
    if own_epoch < leader_epoch:
        return Truncate(min(own_end, log_end_offset), own_epoch)
    return Truncate(min(own_end, end_offset, log_end_offset), leader_epoch)


def note_truncated(log: Log, step: Truncate) -> None:
    """Records a truncation. An empty log adopts the leader's epoch, otherwise it would get the same answer again."""
    if log.log_end_offset == log.log_start_offset and step.epoch >= 0:
        log.leader_epochs.assign(step.epoch, log.log_end_offset)


def first_truncation(log: Log) -> Truncate | None:
    """Returns the truncation that must come before the first fetch, if any.

    Without leader epochs it is unknown what diverges above the high watermark.
    """
    if log.leader_epochs.latest == NO_LEADER_EPOCH and log.high_watermark < log.log_end_offset:
        return Truncate(log.high_watermark)
    return None


def decide_range(following: FollowedPartition, leader_log_start: Offset, leader_log_end: Offset) -> Decision:
    """Returns what to do when our log end is out of the leader's range, given the leader's log start and log end.

    Ahead of the leader: truncate. That loses records only where an unclean election or a lost disk lost them before.
    Below its log start: reset. Otherwise the answer is outdated and nothing changes. Source:
    AbstractFetcherThread.fetchOffsetAndTruncate.
    """
    log = following.log
    if leader_log_end < log.log_end_offset:
        return Truncate(leader_log_end)
    if must_reset(following, leader_log_start):
        return Reset(leader_log_start)
    return Delay("OFFSET_OUT_OF_RANGE, and in range when asked again")


def append_fetched(following: FollowedPartition, row: PartitionData, wall_ms: int) -> FetchedAppend:
    """Appends the fetched records and follows the leader's high watermark.

    The journal handles the leader's log start. Batches of a later leader epoch than the requested one are skipped
    (KAFKA-18723). Errors: those of `Log.append_as_follower`.
    """
    log = following.log
    before, end_before = log.high_watermark, log.log_end_offset
    taken = FetchedAppend()
    records = row.records
    if records:
        assert isinstance(records, bytes | bytearray | memoryview), type(records)
        received = memoryview(records)
        is_empty = log.log_start_offset == end_before
        if is_empty and int.from_bytes(received[:8], "big") < end_before <= log.erasures.deleted_to:  # Its base offset.
            received = without_deleted_beginning(received, end_before)
        if is_empty:
            log.erasures.copied_at = row.high_watermark
            following.erasures_before = following.met_erasure_end
        broker_id = following.partition.local_broker_id
        try:
            appended = log.append_as_follower(
                received,
                now_ms=wall_ms,
                maximum_epoch=following.leader_epoch,
                broker_id=broker_id,
                erasures_before=following.erasures_before,
            )
        except NotSearchedError as error:
            following.met_erasure_end = error.offset + 1
            taken.starts_over = str(error)
            return taken
        if isinstance(appended, ErrorCode):
            taken.error, taken.counts = appended, log.disk_full and not log.offline
            if not taken.counts:
                return taken
        else:
            taken.appended_bytes, taken.removed = appended.size_bytes, appended.removed
        taken.has_grown = log.log_end_offset != end_before
    following.heard = True
    if taken.error is ErrorCode.NONE:
        following.backoff_ms = 0
    following.received_log_start = row.log_start_offset
    following.lag = max(row.high_watermark - log.log_end_offset, 0)
    log.advance_high_watermark(row.high_watermark)
    taken.has_news = log.high_watermark != before
    return taken
