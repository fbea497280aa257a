"""What a broker's configuration says about groups."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lowtide.broker.config.key import Value


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Kafka's keys by their names, times in milliseconds."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2_147_483_647
    offset_metadata_max_bytes: int = 4_096
    commit_timeout_ms: int = 5_000
    offsets_retention_ms: int = 10_080 * 60_000
    retention_check_interval_ms: int = 600_000
    load_buffer_bytes: int = 5 << 20
    topic_partition_count: int = 50
    topic_replication_factor: int = 3
    topic_segment_bytes: int = 100 << 20
    protocols: tuple[str, ...] = ("classic", "consumer", "streams")
    consumer_session_timeout_ms: int = 45_000
    consumer_session_timeout_min_ms: int = 45_000
    consumer_session_timeout_max_ms: int = 60_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_heartbeat_interval_min_ms: int = 5_000
    consumer_heartbeat_interval_max_ms: int = 15_000
    consumer_max_size: int = 2_147_483_647
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_assignment_interval_ms: int = 1_000
    consumer_assignment_interval_min_ms: int = 0
    consumer_assignment_interval_max_ms: int = 15_000
    consumer_regex_refresh_interval_ms: int = 600_000
    consumer_migration_policy: str = "bidirectional"
    share_session_timeout_ms: int = 45_000
    share_session_timeout_min_ms: int = 45_000
    share_session_timeout_max_ms: int = 60_000
    share_heartbeat_interval_ms: int = 5_000
    share_heartbeat_interval_min_ms: int = 5_000
    share_heartbeat_interval_max_ms: int = 15_000
    share_assignment_interval_ms: int = 1_000
    share_assignment_interval_min_ms: int = 0
    share_assignment_interval_max_ms: int = 15_000
    share_initialize_retry_ms: int = 30_000
    share_max_size: int = 200
    groups_max: int = 100_000
    groups_created_per_second: int = 1_000
    offsets_max: int = 5_000_000
    offsets_metadata_bytes_max: int = 64 << 20

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether there may be groups whose partitions the broker assigns."""
        return "consumer" in self.protocols

    @property
    def may_upgrade(self) -> bool:
        """Whether classic groups may become ones whose partitions the broker assigns."""
        return self.consumer_migration_policy in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        """Whether groups whose partitions the broker assigns may become classic ones."""
        return self.consumer_migration_policy in ("bidirectional", "downgrade")


def group_settings(values: Mapping[str, Value]) -> GroupSettings:
    """The settings among all values of a configuration."""

    def number(name: str) -> int:
        value = values[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    def names(name: str) -> tuple[str, ...]:
        value = values[name]
        assert isinstance(value, tuple), f"{name} is {value!r}"
        return value

    return GroupSettings(
        session_timeout_min_ms=number("group.min.session.timeout.ms"),
        session_timeout_max_ms=number("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms"),
        max_size=number("group.max.size"),
        offset_metadata_max_bytes=number("offset.metadata.max.bytes"),
        commit_timeout_ms=number("offsets.commit.timeout.ms"),
        offsets_retention_ms=number("offsets.retention.minutes") * 60_000,
        retention_check_interval_ms=number("offsets.retention.check.interval.ms"),
        load_buffer_bytes=number("offsets.load.buffer.size"),
        topic_partition_count=number("offsets.topic.num.partitions"),
        topic_replication_factor=number("offsets.topic.replication.factor"),
        topic_segment_bytes=number("offsets.topic.segment.bytes"),
        protocols=names("group.coordinator.rebalance.protocols"),
        consumer_session_timeout_ms=number("group.consumer.session.timeout.ms"),
        consumer_session_timeout_min_ms=number("group.consumer.min.session.timeout.ms"),
        consumer_session_timeout_max_ms=number("group.consumer.max.session.timeout.ms"),
        consumer_heartbeat_interval_ms=number("group.consumer.heartbeat.interval.ms"),
        consumer_heartbeat_interval_min_ms=number("group.consumer.min.heartbeat.interval.ms"),
        consumer_heartbeat_interval_max_ms=number("group.consumer.max.heartbeat.interval.ms"),
        consumer_max_size=number("group.consumer.max.size"),
        consumer_assignors=names("group.consumer.assignors"),
        consumer_assignment_interval_ms=number("group.consumer.assignment.interval.ms"),
        consumer_assignment_interval_min_ms=number("group.consumer.min.assignment.interval.ms"),
        consumer_assignment_interval_max_ms=number("group.consumer.max.assignment.interval.ms"),
        consumer_regex_refresh_interval_ms=number("group.consumer.regex.refresh.interval.ms"),
        consumer_migration_policy=str(values["group.consumer.migration.policy"]).lower(),
        share_session_timeout_ms=number("group.share.session.timeout.ms"),
        share_session_timeout_min_ms=number("group.share.min.session.timeout.ms"),
        share_session_timeout_max_ms=number("group.share.max.session.timeout.ms"),
        share_heartbeat_interval_ms=number("group.share.heartbeat.interval.ms"),
        share_heartbeat_interval_min_ms=number("group.share.min.heartbeat.interval.ms"),
        share_heartbeat_interval_max_ms=number("group.share.max.heartbeat.interval.ms"),
        share_assignment_interval_ms=number("group.share.assignment.interval.ms"),
        share_assignment_interval_min_ms=number("group.share.min.assignment.interval.ms"),
        share_assignment_interval_max_ms=number("group.share.max.assignment.interval.ms"),
        share_initialize_retry_ms=number("group.share.initialize.retry.interval.ms"),
        share_max_size=number("group.share.max.size"),
        groups_max=number("lowtide.groups.max"),
        groups_created_per_second=number("lowtide.groups.created.per.second"),
        offsets_max=number("lowtide.offsets.max"),
        offsets_metadata_bytes_max=number("lowtide.offsets.metadata.bytes.max"),
    )
