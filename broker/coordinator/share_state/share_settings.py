"""The settings of the share coordinator, and whether share groups are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import field

from lowtide.broker.config.key import Value

SHARE_GROUPS_KEY: Final = "group.share.enable"
"""Internal, as in Kafka 4.0: share groups are served only in tests until they are complete."""


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Each setting with its default and its key. Times are in milliseconds."""

    updates_per_snapshot: int = field(default=500, name="share.coordinator.snapshot.update.records.per.snapshot")
    commit_timeout_ms: int = field(default=5_000, name="share.coordinator.write.timeout.ms")
    """How long a record may take to be committed."""
    load_buffer_bytes: int = field(default=5 << 20, name="share.coordinator.load.buffer.size")
    cold_snapshot_interval_ms: int = field(
        default=300_000, name="share.coordinator.cold.partition.snapshot.interval.ms"
    )
    prune_interval_ms: int = field(default=300_000, name="share.coordinator.state.topic.prune.interval.ms")
    topic_partition_count: int = field(default=50, name="share.coordinator.state.topic.num.partitions")
    topic_replication_factor: int = field(default=3, name="share.coordinator.state.topic.replication.factor")
    topic_minimum_in_sync: int = field(default=2, name="share.coordinator.state.topic.min.isr")
    topic_segment_bytes: int = field(default=100 << 20, name="share.coordinator.state.topic.segment.bytes")


def share_settings(values: Mapping[str, Value]) -> ShareSettings:
    """Returns the settings of the share coordinator among all values of a configuration."""
    return msgspec.convert(values, ShareSettings)


def share_groups_enabled(values: Mapping[str, Value]) -> bool:
    """Returns whether a broker with this configuration serves share groups: their APIs and their feature level."""
    return values[SHARE_GROUPS_KEY] is True
