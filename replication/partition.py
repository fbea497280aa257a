"""One partition on this broker: who leads it, in which epoch, and what may be done with its log.

Decisions only: everything here is a plain function over the state, and time is passed in. Who is asked, woken or answered is the
replica manager's part. Guards: nothing is appended, read or deleted under a leadership that the caller doesn't share.

Sources: KIP-107 (deletes), KIP-320 (leader epochs in requests), KIP-101 (end offset of an epoch), Kafka's `Partition`.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import TO_HIGH_WATERMARK
from lowtide.protocol.types import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from lowtide.storage.log import AppendedBatch, Log, LogConfig
from lowtide.storage.validator import ValidatedBatch, ValidationRules

MAXIMUM_DECOMPRESSED_BYTES = 128 << 20
"""A compressed batch may not unpack to more: above the largest frame (100 MiB), far below a bomb."""

QUICK_RECORDS = 10_000
"""Also librdkafka's `batch.num.messages`. Records of all sizes are walked at a microsecond and a half each."""

QUICK_BYTES = 4 << 20
"""What the slowest codec decompresses in some ten milliseconds."""

QUICK_COMPRESSION_BYTES = 128 << 10
"""What the slowest codec compresses in some five milliseconds."""


class EpochEndOffset(msgspec.Struct, frozen=True, gc=False):
    """Where a leader epoch ends: the largest epoch at or below the one asked for, and its end offset (exclusive)."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


class Partition:
    """The state of one partition that this broker hosts."""

    __slots__ = (
        "in_sync_replicas",
        "leader_epoch",
        "leader_id",
        "local_broker_id",
        "log",
        "partition_epoch",
        "replicas",
        "rules",
        "rules_without_zstd",
        "topic_id",
        "topic_partition",
    )

    def __init__(self, *, topic_partition: TopicPartition, topic_id: TopicId, local_broker_id: BrokerId, log: Log) -> None:
        """A hosted partition without a leader; `become` tells it who leads."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.local_broker_id = local_broker_id
        self.log = log
        self.leader_id: BrokerId = -1
        self.leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[BrokerId, ...] = ()
        self.in_sync_replicas: tuple[BrokerId, ...] = ()
        self.configure(log.config)

    def configure(self, config: LogConfig) -> None:
        """Take over a topic configuration: the log's, and the rules for what producers send."""
        self.log.configure(config)
        self.rules = ValidationRules(
            max_message_bytes=config.max_message_bytes,
            timestamp_type="log_append" if config.message_timestamp_type == "LogAppendTime" else "create",
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            compacted="compact" in config.cleanup_policy,
            compression_type=config.compression_type,
            max_decompressed_bytes=MAXIMUM_DECOMPRESSED_BYTES,
            allow_zstd=True,
            quick_records=QUICK_RECORDS,
            quick_bytes=QUICK_BYTES,
            quick_compression_bytes=QUICK_COMPRESSION_BYTES,
        )
        self.rules_without_zstd = msgspec.structs.replace(self.rules, allow_zstd=False)

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition in the current leader epoch."""
        return self.leader_id == self.local_broker_id

    @property
    def low_watermark(self) -> Offset:
        """The smallest log start offset of all live replicas (KIP-107): of the only one, its own."""
        return self.log.log_start_offset

    def become(
        self,
        *,
        leader_id: BrokerId,
        leader_epoch: LeaderEpoch,
        partition_epoch: int,
        replicas: tuple[BrokerId, ...],
        in_sync: tuple[BrokerId, ...],
    ) -> bool:
        """Take over what the metadata say. Returns whether the leadership changed: another leader or another leader epoch.

        The only replica of a partition has committed all that its log holds.
        """
        assert leader_epoch >= self.leader_epoch, f"{self.topic_partition}: leader epoch falls from {self.leader_epoch} to {leader_epoch}"
        changed = leader_epoch != self.leader_epoch or leader_id != self.leader_id
        self.leader_id, self.leader_epoch, self.partition_epoch = leader_id, leader_epoch, partition_epoch
        self.replicas, self.in_sync_replicas = replicas, in_sync
        if self.is_leader and in_sync == (self.local_broker_id,):
            self.log.advance_high_watermark(self.log.log_end_offset)
        return changed

    def check_leadership(self, current_leader_epoch: LeaderEpoch) -> ErrorCode:
        """Whether a client that knows `current_leader_epoch` (-1: none) may be served here as by the leader.

        Errors: FENCED_LEADER_EPOCH for an older epoch, UNKNOWN_LEADER_EPOCH for a newer one, NOT_LEADER_OR_FOLLOWER elsewhere.
        """
        if current_leader_epoch not in (NO_LEADER_EPOCH, self.leader_epoch):
            return ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.leader_id == self.local_broker_id else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def append(self, batch: ValidatedBatch, now_ms: int) -> AppendedBatch | ErrorCode:
        """Append as leader. The high watermark follows at once while this broker is the whole in-sync replica set.

        `now_ms` is wall-clock time. Errors: those of `Log.append_as_leader`.
        """
        log = self.log
        appended = log.append_as_leader(batch, leader_epoch=self.leader_epoch, now_ms=now_ms)
        if isinstance(appended, AppendedBatch) and not appended.duplicate:
            log.advance_high_watermark(log.log_end_offset)
        return appended

    def check_delete(self, offset: Offset) -> Offset | ErrorCode:
        """What a DeleteRecords to `offset` (exclusive, -1 for the high watermark) would set the log start offset to.

        The offset comes back as `int`, a refusal as `ErrorCode`: NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION for a topic that is only
        compacted, OFFSET_OUT_OF_RANGE below -1 and above the high watermark, in this order. Source: KIP-107, KIP-1161.
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

    def end_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> EpochEndOffset:
        """The end (exclusive) of the largest epoch at or below `leader_epoch`; undefined when there is none (KIP-101, KIP-279).

        The current epoch ends at the log's end, also when nothing was appended in it.
        """
        if leader_epoch == self.leader_epoch:
            return EpochEndOffset(leader_epoch, self.log.log_end_offset)
        found_epoch, end_offset = self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)
        return EpochEndOffset(found_epoch, end_offset)

    def diverging_epoch(self, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch) -> EpochEndOffset | ErrorCode | None:
        """How a reader whose last record has `last_fetched_epoch` differs from this log; None when it doesn't (KIP-595).

        Errors: OFFSET_OUT_OF_RANGE for an epoch that this log never had. The range of the offset is checked before this.
        """
        end = self.end_offset_for_epoch(last_fetched_epoch)
        if end.leader_epoch < 0 or end.end_offset < 0:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if end.leader_epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return end
        return None
