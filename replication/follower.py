"""A follower's side of one partition: what an answer of its leader means for its log.

What `decide` says is carried out by the broker, for truncations have to be durable before anything else is written.
Records are taken over at once (`take`), as a leader appends.

Guards: an answer counts only in the leader epoch in which it was asked for; an answer that says where the logs part
says nothing else (KAFKA-14704); a log is emptied only for a leader whose log is known to start at or above its end,
never because offsets merely don't fit (KAFKA-2143, KAFKA-7414). A follower whose log ends at the leader's log start,
too, is reset, unless it learned in this leader epoch that nothing of it diverges: below its log start the leader has
nothing to compare with.

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
"""One of the two brokers has older metadata than the other, which passes soon."""

LAGGING_BACKOFF_MS: Final = 20
"""The first rest after one of those; it doubles up to `replica.fetch.backoff.ms`."""


class Following(msgspec.Struct, kw_only=True):
    """One partition that is followed in one leader epoch of one leader."""

    partition: Partition
    leader_epoch: LeaderEpoch
    phase: Phase = Phase.FETCHING
    delayed_until_ms: int = 0
    backoff_ms: int = 0
    warned_ms: int = NEVER_MS
    """When it was last logged that it isn't fetched for a while."""
    heard: bool = False
    """Whether the leader has answered in this leader epoch that nothing diverges."""
    received_log_start: Offset = UNKNOWN_OFFSET
    """The leader's log start, as it said last."""
    lag: int = 0
    """Records below the leader's high watermark that aren't here, as of the last answer."""
    throttled_until_ms: int = 0
    """Before, it isn't asked whether it may fetch records again."""
    has_left: bool = False
    """It isn't followed any more, or under another leader epoch by another one of these."""

    @property
    def log(self) -> Log:
        """The partition's log."""
        return self.partition.log

    @property
    def key(self) -> TopicPartition:
        """The partition's name."""
        return self.partition.topic_partition

    @property
    def topic_id(self) -> TopicId:
        """The topic's id."""
        return self.partition.topic_id

    @property
    def is_in_sync(self) -> bool:
        """Whether it lacks nothing of what is committed, as far as is known. A new one isn't."""
        return self.heard and self.lag == 0

    @property
    def waits_for_flush(self) -> bool:
        """Whether what its log ends with must be on the disk before it is reported, also where another led when it came."""
        return self.log.flush_is_due

    def on_event(self, event: FollowerEvent) -> None:
        """Go into the phase that follows. Raises AssertionError where the event can't happen in this one."""
        self.phase = next_phase(self.phase, event)

    def back_off(self, now_ms: int, maximum_ms: int, *, lagging: bool) -> None:
        """Rest: after an error that passes soon shortly, and longer each time."""
        self.backoff_ms = min(max(self.backoff_ms * 2, LAGGING_BACKOFF_MS), maximum_ms) if lagging else maximum_ms
        self.delayed_until_ms = now_ms + self.backoff_ms


class Truncate(msgspec.Struct, frozen=True, gc=False):
    """Cut the log at `offset`, its new end. `epoch` is the leader's last leader epoch below it, -1 if that isn't known.

    `again`: the same has to be asked once more, for this log doesn't know the leader's epoch (KIP-279).
    """

    offset: Offset
    epoch: LeaderEpoch = NO_LEADER_EPOCH
    again: bool = False


class Reset(msgspec.Struct, frozen=True, gc=False):
    """Empty the log; it starts and continues at `offset`, the leader's log start."""

    offset: Offset


class Delay(msgspec.Struct, frozen=True, gc=False):
    """Ask again later. `lagging` as in `LAGGING_ERRORS`."""

    reason: str
    lagging: bool = False


class Simple(Enum):
    """Decisions without a value."""

    TAKE = "take over what the answer brings"
    ASK_RANGE = "ask for the leader's log start and log end"


Decision: TypeAlias = Truncate | Reset | Delay | Simple


class Taken(msgspec.Struct):
    """What `take` did. `removed` are segments that gave way, to be unlinked.

    With an error nothing of the answer counts, but for a disk that is full (`counts`): deletes must reach it, for they
    make room.
    """

    error: ErrorCode = ErrorCode.NONE
    counts: bool = True
    appended_bytes: int = 0
    has_grown: bool = False
    """Whether the log has more records, which a full disk doesn't rule out."""
    has_news: bool = False
    """Whether a consumer may see more than before."""
    removed: Sequence[RemovedSegment] = ()


def decide(following: Following, row: PartitionData) -> Decision:
    """What to do with the answer to a fetch that was sent at the log's present end, in the present leader epoch."""
    error = row.error_code
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Simple.ASK_RANGE
    if error != ErrorCode.NONE:
        code = ErrorCode(error)
        return Delay(code.name, lagging=code in LAGGING_ERRORS)
    log = following.log
    if row.diverging_epoch is not None:
        return truncation(log, row.diverging_epoch.epoch, row.diverging_epoch.end_offset)
    start = row.log_start_offset
    if must_reset(following, start):
        return Reset(start)
    return Simple.TAKE


def must_reset(following: Following, leader_log_start: Offset) -> bool:
    """Whether the leader's log starts above all that this one has, or where it ends without its last record being compared."""
    log = following.log
    if log.log_end_offset < leader_log_start:
        return True
    return log.log_end_offset == leader_log_start > log.log_start_offset and not following.heard


def truncation(log: Log, leader_epoch: LeaderEpoch, end_offset: Offset) -> Truncate:
    """Where to cut, if the leader says that the largest epoch at or below our last one is `leader_epoch`, and ends at `end_offset`.

    A leader that knows no epoch (-1) leaves what is committed, as far as that is known here. Source: KIP-101, KIP-279,
    AbstractFetcherThread.getOffsetTruncationState.
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
        return Truncate(min(own_end, log_end_offset), own_epoch, again=True)
    return Truncate(min(own_end, end_offset, log_end_offset), leader_epoch)


def note_truncated(log: Log, step: Truncate) -> None:
    """The log was cut.

    One that has nothing left takes the leader's word for the epoch below, or it would get the same answer again.
    """
    if log.log_end_offset == log.log_start_offset and step.epoch >= 0:
        log.leader_epochs.assign(step.epoch, log.log_end_offset)


def first_truncation(log: Log) -> Truncate | None:
    """What has to go before anything is fetched or asked: without leader epochs it is not known what diverges above the high watermark."""
    if log.leader_epochs.latest == NO_LEADER_EPOCH and log.high_watermark < log.log_end_offset:
        return Truncate(log.high_watermark)
    return None


def decide_range(following: Following, leader_log_start: Offset, leader_log_end: Offset) -> Decision:
    """What to do when the leader found our log end out of range, and then returned its own log start and end.

    Ahead of the leader: what it doesn't have goes. That loses records only where an unclean election, or a leader that
    lost its disk, has lost them before. Below its log start: a new beginning. Neither: the answer is out of date by
    now, and nothing is touched. Source: AbstractFetcherThread.fetchOffsetAndTruncate.
    """
    log = following.log
    if leader_log_end < log.log_end_offset:
        return Truncate(leader_log_end)
    if must_reset(following, leader_log_start):
        return Reset(leader_log_start)
    return Delay("OFFSET_OUT_OF_RANGE, and in range when asked again")


def take(following: Following, row: PartitionData, wall_ms: int) -> Taken:
    """Append what the answer brings and follow the leader's high watermark.

    The leader's log start is left to the journal. Batches of a later leader epoch than the one in which was asked are
    left (KAFKA-18723). Errors: those of `Log.append_as_follower`.
    """
    log = following.log
    before, end_before = log.high_watermark, log.log_end_offset
    taken = Taken()
    records = row.records
    if records:
        assert isinstance(records, bytes | bytearray | memoryview), type(records)
        appended = log.append_as_follower(memoryview(records), now_ms=wall_ms, maximum_epoch=following.leader_epoch)
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
