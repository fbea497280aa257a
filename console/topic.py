"""The page of a topic: its settings, and the offsets, replicas and retention of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import replicas_in
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.admin.retained import known, whole_sentences
from lowtide.console import arguments
from lowtide.console.answers import bad
from lowtide.console.arguments import Parameters
from lowtide.console.insight import replica_values, segments_of
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import PartitionDescription
    from lowtide.admin.observation import PartitionSegments
    from lowtide.console.sessions import ConsoleSession

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
"""The keys about retention; `lowtide configs` shows all."""


async def topic_of(client: AdminClient, name: str) -> TopicDescription:
    """Describes a topic. Errors: AdminError."""
    topic = (await client.describe_topics([name]))[name]
    if isinstance(topic, AdminError):
        raise topic
    return topic


def chosen_numbers(topic: TopicDescription, given: Parameters) -> list[int]:
    """Returns the chosen partitions of a topic, by default all. Errors: RefusedError."""
    numbers = list(topic.partitions) if given.get("partitions") is None else arguments.partitions(given)
    if missing := set(numbers) - set(topic.partitions):
        raise bad(f"The topic has no partition {min(missing)}.")
    return numbers


async def topic_page(session: ConsoleSession, name: str) -> dict[str, Any]:
    """Returns the page. Errors: AdminError."""
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
    """Offsets of partitions, from their leaders."""

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
    """Returns a row of the page; values that only Lowtide returns are null for other brokers."""
    places = replica_values(segments)
    retained = None if segments is None else segments.described.retained
    sentences = None if segments is None else whole_sentences(segments.described.retained, segments.checked_at_ms)
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
        "kept_sentences": sentences,
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
    """Returns size and lag of replicas by broker and partition; none if the user may not see them."""
    keys = [TopicPartition(topic.name, number) for number in topic.partitions]
    try:
        answers = await client.describe_log_dirs(partitions=keys)
    except AdminError:
        return {}
    return {
        (broker_id, key.partition): {"bytes": replica.size_bytes, "lag": replica.offset_lag}
        for broker_id, key, replica in replicas_in(answers)
        if not replica.is_future
    }


async def settings_of(client: AdminClient, name: str) -> list[dict[str, Any]]:
    """Returns the keys about retention; none if the user may not see them."""
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    try:
        found = (await client.describe_configs([resource], keys=SETTINGS))[resource]
    except AdminError:
        return []
    if isinstance(found, AdminError):
        return []
    entries = [found[key] for key in SETTINGS if key in found]
    return [{"key": entry.key, "value": entry.value, "set": not entry.is_default} for entry in entries]


def _offset(found: ListedOffset | AdminError | None) -> int | None:
    return found.offset if isinstance(found, ListedOffset) and found.offset >= 0 else None
