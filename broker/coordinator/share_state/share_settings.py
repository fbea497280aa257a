"""The settings of the coordinator of share groups' states, out of a broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lowtide.broker.config.key import Value


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """By Kafka's names, `share.coordinator.*`; times in milliseconds."""

    updates_per_snapshot: int = 500
    commit_timeout_ms: int = 5_000
    """How long a record may take to be committed: `share.coordinator.write.timeout.ms`."""
    load_buffer_bytes: int = 5 << 20
    cold_snapshot_interval_ms: int = 300_000
    prune_interval_ms: int = 300_000
    topic_partition_count: int = 50
    topic_replication_factor: int = 3
    topic_minimum_in_sync: int = 2
    topic_segment_bytes: int = 100 << 20


def share_settings(values: Mapping[str, Value]) -> ShareSettings:
    """The settings among all values of a configuration."""

    def number(name: str) -> int:
        value = values[f"share.coordinator.{name}"]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    return ShareSettings(
        updates_per_snapshot=number("snapshot.update.records.per.snapshot"),
        commit_timeout_ms=number("write.timeout.ms"),
        load_buffer_bytes=number("load.buffer.size"),
        cold_snapshot_interval_ms=number("cold.partition.snapshot.interval.ms"),
        prune_interval_ms=number("state.topic.prune.interval.ms"),
        topic_partition_count=number("state.topic.num.partitions"),
        topic_replication_factor=number("state.topic.replication.factor"),
        topic_minimum_in_sync=number("state.topic.min.isr"),
        topic_segment_bytes=number("state.topic.segment.bytes"),
    )
