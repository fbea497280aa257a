"""The page of one topic: each partition with its offsets and replicas, its settings, and what keeps its oldest segment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.configs import ConfigEntry, ConfigResource, ResourceType
from lowtide.admin.errors import AdminError
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.console.insight import known, replica_values, segments_of
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import PartitionDescription
    from lowtide.admin.log_dirs import LogDir
    from lowtide.admin.observation import PartitionSegments
    from lowtide.console.sessions import Session

SETTINGS: Final = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "segment.bytes",
    "segment.ms",
    "min.insync.replicas",
    "file.delete.delay.ms",
    "max.message.bytes",
)
"""Those that say what is kept; all others are `lowtide configs`'s."""


async def topic_of(client: AdminClient, name: str) -> TopicDescription:
    """The topic. Errors: AdminError."""
    topic = (await client.describe_topics([name]))[name]
    if isinstance(topic, AdminError):
        raise topic
    return topic


async def topic_page(session: Session, name: str) -> dict[str, Any]:
    """Errors: AdminError."""
    client = session.client
    topic = await topic_of(client, name)
    led = [TopicPartition(name, number) for number, row in topic.partitions.items() if row.leader is not None]
    starts, ends, stable, replicas, settings, segments = await asyncio.gather(
        client.list_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST)),
        client.list_offsets(dict.fromkeys(led, OffsetSpec.LATEST)),
        client.list_offsets(dict.fromkeys(led, OffsetSpec.LATEST), read_committed=True),
        replica_rows(client, topic),
        settings_of(client, name),
        segments_of(session, led, 1),
    )
    offsets = _Offsets(starts, ends, stable)
    return {
        "name": name,
        "id": topic.topic_id_text,
        "internal": topic.is_internal,
        "settings": settings,
        "partitions": [
            _partition(row, key, offsets, replicas, segments.get(key))
            for key, row in ((TopicPartition(name, number), row) for number, row in topic.partitions.items())
        ],
    }


class _Offsets(NamedTuple):
    """What the leaders say of their logs."""

    starts: Mapping[TopicPartition, ListedOffset | AdminError]
    ends: Mapping[TopicPartition, ListedOffset | AdminError]
    stable: Mapping[TopicPartition, ListedOffset | AdminError]


def _partition(
    row: PartitionDescription,
    key: TopicPartition,
    offsets: _Offsets,
    replicas: Mapping[tuple[int, int], Mapping[str, Any]],
    segments: PartitionSegments | None,
) -> dict[str, Any]:
    """One row of the page; what only Lowtide tells is null elsewhere."""
    places = replica_values(segments)
    retained = None if segments is None else segments.described.retained
    return {
        "partition": key.partition,
        "leader": row.leader,
        "leader_epoch": row.leader_epoch,
        "log_start": _offset(offsets.starts.get(key)),
        "high_watermark": _offset(offsets.ends.get(key)),
        "last_stable": _offset(offsets.stable.get(key)),
        "log_end": None if retained is None else known(retained.log_end_offset),
        "segments": None if retained is None else retained.segment_count,
        "kept": None if segments is None else segments.explanation,
        "replicas": [
            {
                "broker": broker_id,
                "in_sync": broker_id in row.isr,
                "offline": broker_id in row.offline,
                **replicas.get((broker_id, key.partition), _UNKNOWN),
                **places.get(broker_id, {}),
            }
            for broker_id in row.replicas
        ],
    }


_UNKNOWN: Final[Mapping[str, Any]] = {"bytes": None, "lag": None}


async def replica_rows(client: AdminClient, topic: TopicDescription) -> dict[tuple[int, int], dict[str, Any]]:
    """By broker and partition, what its disk says of the replica; empty where the user may not ask."""
    keys = [TopicPartition(topic.name, number) for number in topic.partitions]
    try:
        answers = await client.describe_log_dirs(partitions=keys)
    except AdminError:
        return {}
    return {
        (broker_id, key.partition): {"bytes": replica.size_bytes, "lag": replica.offset_lag}
        for broker_id, directories in answers.items()
        for directory in _directories(directories)
        for key, replica in directory.replicas.items()
        if not replica.is_future
    }


def _directories(answer: Mapping[str, LogDir] | AdminError) -> list[LogDir]:
    return [] if isinstance(answer, AdminError) else list(answer.values())


async def settings_of(client: AdminClient, name: str) -> list[dict[str, Any]]:
    """The keys that say what is kept; none where the user may not see them."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        found = (await client.describe_configs([resource], keys=SETTINGS))[resource]
    except AdminError:
        return []
    if isinstance(found, AdminError):
        return []
    return [{"key": key, "value": entry.value, "set": not entry.is_default} for key, entry in _ordered(found)]


def _ordered(found: Mapping[str, ConfigEntry]) -> list[tuple[str, ConfigEntry]]:
    return [(key, found[key]) for key in SETTINGS if key in found]


def _offset(found: ListedOffset | AdminError | None) -> int | None:
    return found.offset if isinstance(found, ListedOffset) and found.offset >= 0 else None
