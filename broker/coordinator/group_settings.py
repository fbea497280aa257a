"""The group settings of a broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import field

from lowtide.broker.config.key import Value


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Each setting with its default and its key. Times are in milliseconds."""

    session_timeout_min_ms: int = field(default=6_000, name="group.min.session.timeout.ms")
    session_timeout_max_ms: int = field(default=1_800_000, name="group.max.session.timeout.ms")
    initial_rebalance_delay_ms: int = field(default=3_000, name="group.initial.rebalance.delay.ms")
    max_size: int = field(default=2_147_483_647, name="group.max.size")
    offset_metadata_max_bytes: int = field(default=4_096, name="offset.metadata.max.bytes")
    commit_timeout_ms: int = field(default=5_000, name="offsets.commit.timeout.ms")
    offsets_retention_ms: int = field(default=10_080 * 60_000, name="offsets.retention.ms")
    retention_check_interval_ms: int = field(default=600_000, name="offsets.retention.check.interval.ms")
    load_buffer_bytes: int = field(default=5 << 20, name="offsets.load.buffer.size")
    topic_partition_count: int = field(default=50, name="offsets.topic.num.partitions")
    topic_replication_factor: int = field(default=3, name="offsets.topic.replication.factor")
    topic_segment_bytes: int = field(default=100 << 20, name="offsets.topic.segment.bytes")
    topic_minimum_in_sync: None = None
    """The offsets topic has the default of all topics, as in Kafka."""
    protocols: tuple[str, ...] = field(
        default=("classic", "consumer", "streams"), name="group.coordinator.rebalance.protocols"
    )
    consumer_session_timeout_ms: int = field(default=45_000, name="group.consumer.session.timeout.ms")
    consumer_session_timeout_min_ms: int = field(default=45_000, name="group.consumer.min.session.timeout.ms")
    consumer_session_timeout_max_ms: int = field(default=60_000, name="group.consumer.max.session.timeout.ms")
    consumer_heartbeat_interval_ms: int = field(default=5_000, name="group.consumer.heartbeat.interval.ms")
    consumer_heartbeat_interval_min_ms: int = field(default=5_000, name="group.consumer.min.heartbeat.interval.ms")
    consumer_heartbeat_interval_max_ms: int = field(default=15_000, name="group.consumer.max.heartbeat.interval.ms")
    consumer_max_size: int = field(default=2_147_483_647, name="group.consumer.max.size")
    consumer_assignors: tuple[str, ...] = field(default=("uniform", "range"), name="group.consumer.assignors")
    consumer_assignment_interval_ms: int = field(default=1_000, name="group.consumer.assignment.interval.ms")
    consumer_assignment_interval_min_ms: int = field(default=0, name="group.consumer.min.assignment.interval.ms")
    consumer_assignment_interval_max_ms: int = field(default=15_000, name="group.consumer.max.assignment.interval.ms")
    consumer_regex_refresh_interval_ms: int = field(default=600_000, name="group.consumer.regex.refresh.interval.ms")
    consumer_migration_policy: str = field(default="bidirectional", name="group.consumer.migration.policy")
    share_session_timeout_ms: int = field(default=45_000, name="group.share.session.timeout.ms")
    share_session_timeout_min_ms: int = field(default=45_000, name="group.share.min.session.timeout.ms")
    share_session_timeout_max_ms: int = field(default=60_000, name="group.share.max.session.timeout.ms")
    share_heartbeat_interval_ms: int = field(default=5_000, name="group.share.heartbeat.interval.ms")
    share_heartbeat_interval_min_ms: int = field(default=5_000, name="group.share.min.heartbeat.interval.ms")
    share_heartbeat_interval_max_ms: int = field(default=15_000, name="group.share.max.heartbeat.interval.ms")
    share_assignment_interval_ms: int = field(default=1_000, name="group.share.assignment.interval.ms")
    share_assignment_interval_min_ms: int = field(default=0, name="group.share.min.assignment.interval.ms")
    share_assignment_interval_max_ms: int = field(default=15_000, name="group.share.max.assignment.interval.ms")
    share_initialize_retry_ms: int = field(default=30_000, name="group.share.initialize.retry.interval.ms")
    share_max_size: int = field(default=200, name="group.share.max.size")
    streams_session_timeout_ms: int = field(default=45_000, name="group.streams.session.timeout.ms")
    streams_session_timeout_min_ms: int = field(default=45_000, name="group.streams.min.session.timeout.ms")
    streams_session_timeout_max_ms: int = field(default=60_000, name="group.streams.max.session.timeout.ms")
    streams_heartbeat_interval_ms: int = field(default=5_000, name="group.streams.heartbeat.interval.ms")
    streams_heartbeat_interval_min_ms: int = field(default=5_000, name="group.streams.min.heartbeat.interval.ms")
    streams_heartbeat_interval_max_ms: int = field(default=15_000, name="group.streams.max.heartbeat.interval.ms")
    streams_assignment_interval_ms: int = field(default=1_000, name="group.streams.assignment.interval.ms")
    streams_assignment_interval_min_ms: int = field(default=0, name="group.streams.min.assignment.interval.ms")
    streams_assignment_interval_max_ms: int = field(default=15_000, name="group.streams.max.assignment.interval.ms")
    streams_initial_rebalance_delay_ms: int = field(default=3_000, name="group.streams.initial.rebalance.delay.ms")
    streams_max_size: int = field(default=2_147_483_647, name="group.streams.max.size")
    streams_num_standby_replicas: int = field(default=0, name="group.streams.num.standby.replicas")
    streams_max_standby_replicas: int = field(default=2, name="group.streams.max.standby.replicas")
    streams_num_warmup_replicas: int = field(default=2, name="group.streams.num.warmup.replicas")
    streams_max_warmup_replicas: int = field(default=20, name="group.streams.max.warmup.replicas")
    streams_task_offset_interval_ms: int = field(default=60_000, name="group.streams.task.offset.interval.ms")
    streams_task_offset_interval_min_ms: int = field(default=15_000, name="group.streams.min.task.offset.interval.ms")
    streams_acceptable_recovery_lag: int = field(default=10_000, name="group.streams.acceptable.recovery.lag")
    streams_rack_aware_tags: tuple[str, ...] = field(default=(), name="group.streams.rack.aware.assignment.tags")
    groups_max: int = field(default=100_000, name="lowtide.groups.max")
    groups_created_per_second: int = field(default=1_000, name="lowtide.groups.created.per.second")
    offsets_max: int = field(default=5_000_000, name="lowtide.offsets.max")
    offsets_metadata_bytes_max: int = field(default=64 << 20, name="lowtide.offsets.metadata.bytes.max")

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether there may be consumer groups (KIP-848)."""
        return "consumer" in self.protocols

    @property
    def serves_streams_groups(self) -> bool:
        """Whether there may be streams groups (KIP-1071)."""
        return "streams" in self.protocols

    @property
    def may_upgrade(self) -> bool:
        """Whether classic groups may become consumer groups."""
        return self.consumer_migration_policy in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        """Whether consumer groups may become classic groups."""
        return self.consumer_migration_policy in ("bidirectional", "downgrade")


def group_settings(values: Mapping[str, Value]) -> GroupSettings:
    """Returns the group settings among all values of a configuration."""
    minutes = values["offsets.retention.minutes"]
    assert isinstance(minutes, int)
    policy = str(values["group.consumer.migration.policy"]).lower()
    converted = {"offsets.retention.ms": minutes * 60_000, "group.consumer.migration.policy": policy}
    return msgspec.convert({**values, **converted}, GroupSettings)
