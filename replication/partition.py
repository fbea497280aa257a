"""One partition on this broker: its leader and leader epoch, and what may be done with its log.

Decisions only: plain functions over the state; time is passed in. The replica manager asks, wakes and answers. Guards:
nothing is appended, read or deleted under a leadership that the caller doesn't share.

Sources: KIP-107 (deletes), KIP-320 (leader epochs in requests), Kafka's `Partition`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import TO_HIGH_WATERMARK
from lowtide.protocol.types import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from lowtide.replication import in_sync_replicas
from lowtide.replication.follower_reads import FollowerReads, lacks_erasures
from lowtide.replication.former_replicas import FormerReplicas, awaited_former, note_removals
from lowtide.replication.leadership import Leadership
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.replication.topic_traffic import Traffic
from lowtide.storage.log.log import Log, LogConfig

DEFAULT_LAG_TIME_MAX_MS = 30_000

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage, PartitionImage


class PartitionChange(Enum):
    """What has changed, for watchers."""

    LOG_END = "log end"
    LOG_END_UNAWAITED = "log end, and nobody waits for the records"
    HIGH_WATERMARK = "high watermark"
    LOG_START = "log start"
    ROLE = "leadership, replica or directory"


class PartitionWatcher(Protocol):
    """Observes every change of a partition."""

    def on_partition_changed(self, change: PartitionChange) -> None:
        """Notes a change. Must not answer a request from within this call."""


class Partition:
    """The state of one partition that this broker hosts."""

    __slots__ = (
        "counted_end",
        "follower_reads",
        "former_replicas",
        "in_sync_replicas",
        "is_leader",
        "lag_time_max_ms",
        "leader_epoch",
        "leader_id",
        "leadership",
        "led_since",
        "local_broker_id",
        "log",
        "replicas",
        "rules",
        "rules_without_zstd",
        "small_batch_bytes",
        "topic_id",
        "topic_partition",
        "traffic",
        "watchers",
    )

    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        local_broker_id: BrokerId,
        log: Log,
        lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS,
        traffic: Traffic | None = None,
    ) -> None:
        """Creates a partition without a leader; `become` sets it. `lag_time_max_ms` is `replica.lag.time.max.ms`."""
        self.topic_partition = topic_partition
        self.traffic = Traffic() if traffic is None else traffic
        self.topic_id = topic_id
        self.local_broker_id = local_broker_id
        self.log = log
        self.counted_end = log.log_end_offset  # Records below are counted.
        self.leader_id: BrokerId = -1
        self.is_leader = False
        """Whether this broker leads the partition in the current leader epoch."""
        self.leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self.led_since: LeaderEpoch = NO_LEADER_EPOCH
        """The leader epoch in which the leader began to lead. A later epoch of the same leader keeps its promises."""
        self.replicas: tuple[BrokerId, ...] = ()
        self.in_sync_replicas: tuple[BrokerId, ...] = ()
        self.lag_time_max_ms = lag_time_max_ms
        self.leadership: Leadership | None = None
        """What the leader knows of the other replicas; None while this broker doesn't lead or is the only replica."""
        self.follower_reads = FollowerReads()
        """Decides whether this broker may answer consumers while it follows (rule DR7)."""
        self.former_replicas: FormerReplicas | None = None  # None while no replica was removed.
        self.watchers: dict[PartitionWatcher, None] = {}
        self.configure(log.config)

    def configure(self, config: LogConfig) -> None:
        """Applies a topic configuration to the log and to the rules for produced batches."""
        self.log.configure(config)
        self.rules = config.validation_rules
        self.rules_without_zstd = msgspec.structs.replace(self.rules, allow_zstd=False)
        self.small_batch_bytes = (
            0
            if self.topic_partition.topic in INTERNAL_TOPICS or config.asks_for_flushes
            else self.rules.unchanged_bytes
        )

    def move_to(self, log: Log) -> None:
        """Continues with a log in another directory, which has the same records."""
        log.erasures.acknowledged = self.log.erasures.acknowledged
        log.erasures.withhold(withheld=self.log.erasures.withheld)
        self.log = log
        if self.leadership is not None:
            self.leadership.log = log

    def become(self, state: PartitionImage, image: MetadataImage, now_ms: int) -> bool:
        """Applies the metadata. Returns whether the leader or the leader epoch changed.

        A single replica has committed everything in its log.
        """
        self.count_records()
        leader_epoch = state.leader_epoch
        assert leader_epoch >= self.leader_epoch, (
            f"{self.topic_partition}: leader epoch falls from {self.leader_epoch} to {leader_epoch}"
        )
        changed = leader_epoch != self.leader_epoch or state.leader != self.leader_id
        if (
            state.leader != self.leader_id or leader_epoch > self.leader_epoch + 1
        ):  # Another broker may have led in between.
            self.led_since = leader_epoch
        if changed and (state.leader != self.local_broker_id or leader_epoch > self.leader_epoch + 1):
            # Another leader may have accepted what was refused here. If that was deleted since, the producer could
            # never continue here.
            self.log.producer_state.verifications.clear()
        self.leader_id, self.leader_epoch = state.leader, leader_epoch
        self.is_leader = self.leader_id == self.local_broker_id
        note_removals(self, state, image, now_ms, is_new=changed)
        self.replicas, self.in_sync_replicas = state.replicas, state.isr
        self.log.erasures.acknowledged = state.erasures_end, state.erasures_epoch
        self.log.erasures.withhold(withheld=self.is_leader and lacks_erasures(self.log))
        if not self.is_leader or self.replicas == (self.local_broker_id,):
            self.leadership = None
            if self.is_leader:
                self.log.advance_high_watermark(self.log.log_end_offset)
        elif changed or self.leadership is None:
            self.leadership = Leadership(
                broker_id=self.local_broker_id,
                topic_id=self.topic_id,
                number=self.topic_partition.partition,
                log=self.log,
                state=state,
                image=image,
                lag_time_max_ms=self.lag_time_max_ms,
                now_ms=now_ms,
            )
        else:
            self.leadership.follow(state)
        return changed

    def count_records(self) -> None:
        """Adds the records appended as leader since the last call to the traffic counts, by their offsets."""
        end = self.log.log_end_offset
        if self.is_leader:
            self.traffic.messages_in += end - self.counted_end
        self.counted_end = end

    def tell(self, change: PartitionChange) -> None:
        """Notifies the watchers of a change."""
        for watcher in list(self.watchers):
            watcher.on_partition_changed(change)

    def advance_high_watermark(self, image: MetadataImage, now_ms: int) -> bool:
        """Raises the high watermark as far as the followers allow. Returns whether it rose."""
        return self.leadership is not None and self.log.advance_high_watermark(
            in_sync_replicas.high_watermark(self.leadership, image, now_ms)
        )

    def low_watermark(self, image: MetadataImage, now_ms: int) -> Offset:
        """Returns how far deletes have reached all replicas that must have them; -1 while unknown (rule DR3)."""
        if self.former_replicas is not None and awaited_former(self, image, now_ms):
            return UNKNOWN_OFFSET
        return self.log.log_start_offset if self.leadership is None else self.leadership.low_watermark(image, now_ms)

    @property
    def knows_what_is_committed(self) -> bool:
        """Whether the high watermark has reached this leader epoch's first offset. Before, more may be committed."""
        leadership = self.leadership
        return leadership is None or self.log.high_watermark >= leadership.epoch_start_offset

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether a write with acks=all may begin: the ISR has `min.insync.replicas` members."""
        return self.leadership is None or len(self.in_sync_replicas) >= self.leadership.min_insync_replicas

    @property
    def may_have_enough_in_sync(self) -> bool:
        """Whether the maximal ISR, with which the high watermark advances, has `min.insync.replicas` members."""
        return self.leadership is None or len(self.leadership.maximal_isr) >= self.leadership.min_insync_replicas

    def may_serve_as_follower(self, broker_epoch: BrokerEpoch, now_ms: int, limit_ms: int) -> bool:
        """Returns whether this follower may answer consumers (rule DR7) under its broker's present registration."""
        if self.is_leader or self.local_broker_id not in self.in_sync_replicas or lacks_erasures(self.log):
            return False  # Out of sync, it may lack an erasure that was acknowledged.
        return self.follower_reads.may_serve(self.log, self.leader_epoch, broker_epoch, now_ms, limit_ms)

    def check_leadership(self, current_leader_epoch: LeaderEpoch) -> ErrorCode:
        """Returns whether a client that knows `current_leader_epoch` (-1: none) may use this broker as the leader.

        Errors: FENCED_LEADER_EPOCH for an older epoch, UNKNOWN_LEADER_EPOCH for a newer one, NOT_LEADER_OR_FOLLOWER if
        this broker doesn't lead.
        """
        if current_leader_epoch not in (NO_LEADER_EPOCH, self.leader_epoch):
            return (
                ErrorCode.FENCED_LEADER_EPOCH
                if current_leader_epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def check_delete(self, offset: Offset) -> Offset | ErrorCode:
        """Returns the log start offset that a DeleteRecords to `offset` (exclusive, -1: the high watermark) would set.

        Errors, in this order: NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION for a topic that is only compacted,
        OFFSET_OUT_OF_RANGE below -1 and above the high watermark. Source: KIP-107, KIP-1161.
        """
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        policy = self.log.config.cleanup_policy
        if "compact" in policy and "delete" not in policy:
            return ErrorCode.POLICY_VIOLATION
        high_watermark = self.log.high_watermark
        if offset == TO_HIGH_WATERMARK:
            return high_watermark
        return offset if 0 <= offset <= high_watermark else ErrorCode.OFFSET_OUT_OF_RANGE
