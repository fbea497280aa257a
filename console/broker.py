"""The pages of a broker and of a setting: configurations with their sources, log directories, and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.cluster_description import describe_all_brokers
from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.console.answers import RefusedError, meaning_of, sentence_of
from lowtide.console.arguments import Parameters, number, text
from lowtide.console.cluster import counts_of, disk_values
from lowtide.console.insight import health_of, health_value
from lowtide.protocol.config_values import ConfigResourceType, ConfigSource
from lowtide.protocol.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.admin.configs import ConfigEntry
    from lowtide.admin.log_dirs import LogDir, ReplicaSize
    from lowtide.console.sessions import ConsoleSession

ID_MAX: Final = 2**31 - 1
TOPICS_ASKED_MAX: Final = 1_000
"""How many topics are asked whether they set a key; the page says how many are not."""

REPLICAS_SHOWN_MAX: Final = 2_000

_NOWHERE: Final = (None, None)

SOURCES: Final[Mapping[int, str]] = {
    ConfigSource.TOPIC: "the topic",
    ConfigSource.DYNAMIC_BROKER: "the broker, set while it runs",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "all brokers, set while they run",
    ConfigSource.STATIC_BROKER: "the broker's file",
    ConfigSource.DEFAULT: "default",
}


async def broker_page(session: ConsoleSession, given: Parameters) -> dict[str, Any]:
    """Returns the page of a broker. Errors: RefusedError, AdminError."""
    client, broker_id = session.client, BrokerId(number(given, "broker", 0, ID_MAX))
    cluster, topics, directories, health = await asyncio.gather(
        describe_all_brokers(client),
        client.list_topics(include_internal=True),
        _directories(client, broker_id),
        health_of(session),
    )
    row = next((each for each in cluster.brokers if each.broker_id == broker_id), None)
    described = health.get(broker_id)
    return {
        "id": broker_id,
        "known": row is not None,
        "address": None if row is None else str(row.address),
        "rack": None if row is None else row.rack,
        "fenced": row is not None and row.is_fenced,
        "controller": cluster.controller_id == broker_id,
        **counts_of(broker_id, topics)._asdict(),
        **disk_values(directories, described),
        "health": health_value(described),
        **replicas_of(broker_id, topics, directories),
    }


async def _directories(client: AdminClient, broker_id: BrokerId) -> Mapping[str, LogDir] | AdminError:
    try:
        return (await client.describe_log_dirs([broker_id]))[broker_id]
    except AdminError as error:
        return error


def replicas_of(
    broker_id: BrokerId, topics: Mapping[str, TopicDescription], directories: Mapping[str, LogDir] | AdminError
) -> dict[str, Any]:
    """Returns the replicas of a broker, the largest first, with the directory of each."""
    places: dict[TopicPartition, tuple[str, ReplicaSize]] = {}
    for path, found in () if isinstance(directories, AdminError) else directories.items():
        for key, replica in found.replicas.items():
            if not replica.is_future:
                places[key] = (path, replica)
    rows: list[dict[str, Any]] = []
    for name, topic in topics.items():
        for row in topic.partitions.values():
            if broker_id in row.replicas:
                directory, size = places.get(TopicPartition(name, row.partition), _NOWHERE)
                rows.append(
                    {
                        "topic": name,
                        "partition": row.partition,
                        "leads": row.leader == broker_id,
                        "preferred": row.replicas[0] == broker_id,
                        "in_sync": broker_id in row.isr,
                        "bytes": None if size is None else size.size_bytes,
                        "lag": None if size is None else size.offset_lag,
                        "directory": directory,
                    }
                )
    rows.sort(key=lambda each: (-(each["bytes"] or 0), each["topic"], each["partition"]))
    return {"replicas_shown": rows[:REPLICAS_SHOWN_MAX], "replicas_left_out": max(0, len(rows) - REPLICAS_SHOWN_MAX)}


# ---------------------------------------------------------------------- settings
async def broker_settings(session: ConsoleSession, given: Parameters) -> dict[str, Any]:
    """Returns the configuration of a broker, with the source of each value. Errors: RefusedError, AdminError."""
    broker_id = number(given, "broker", 0, ID_MAX)
    if all(each.broker_id != broker_id for each in (await describe_all_brokers(session.client)).brokers):
        raise RefusedError(HTTPStatus.NOT_FOUND, f"The cluster has no broker {broker_id}.")
    resource = ConfigResource(ConfigResourceType.BROKER, str(broker_id))
    found = (await session.client.describe_configs([resource]))[resource]
    if isinstance(found, AdminError):
        raise found
    return {"settings": [setting_value(found[key]) for key in sorted(found)]}


def setting_value(entry: ConfigEntry) -> dict[str, Any]:
    """Returns a key with its value and its source; the value of a secret is null, and is never sent."""
    return {
        "key": entry.key,
        "value": None if entry.is_sensitive else entry.value,
        "secret": entry.is_sensitive,
        "source": SOURCES.get(int(entry.source), f"source {int(entry.source)}"),
        "default": entry.is_default,
        "read_only": entry.is_read_only,
        "meaning": meaning_of(entry.documentation),
    }


async def setting_page(session: ConsoleSession, given: Parameters) -> dict[str, Any]:
    """Returns a key on each broker, and the topics that set it themselves. Errors: RefusedError, AdminError."""
    client, key = session.client, text(given, "key", longest=249)
    cluster, topics = await asyncio.gather(client.describe_cluster(), client.list_topics(include_internal=True))
    brokers = [ConfigResource(ConfigResourceType.BROKER, str(each.broker_id)) for each in cluster.brokers]
    names = sorted(topics)[:TOPICS_ASKED_MAX]
    chosen = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    on_brokers, on_topics = await asyncio.gather(
        client.describe_configs([*brokers, *chosen[:1]], keys=[key], documentation=True),
        _of_topics(client, chosen, key),
    )
    answers = [(resource, answer.get(key)) for resource, answer in _answered(on_brokers)]
    entries = [(each.name, entry) for each, entry in answers if each.type is ConfigResourceType.BROKER]
    meanings = [meaning_of(entry.documentation) for _, entry in answers if entry is not None]
    others = [entry.value for _, entry in on_topics if entry is not None and entry.source != ConfigSource.TOPIC]
    return {
        "key": key,
        "meaning": next(filter(None, meanings), None),
        "brokers": [{"broker": name, **setting_value(entry)} for name, entry in entries if entry is not None],
        "topics": [
            {"topic": name, **setting_value(entry)}
            for name, entry in on_topics
            if entry is not None and entry.source == ConfigSource.TOPIC
        ],
        "others": others[0] if others else None,
        "of_topics": any(entry is not None for _, entry in on_topics),
        "left_out": max(0, len(topics) - TOPICS_ASKED_MAX),
        "errors": [sentence_of(answer) for answer in on_brokers.values() if isinstance(answer, AdminError)],
    }


async def _of_topics(
    client: AdminClient, resources: list[ConfigResource], key: str
) -> list[tuple[str, ConfigEntry | None]]:
    answers = await client.describe_configs(resources, keys=[key]) if resources else {}
    return [(resource.name, answer.get(key)) for resource, answer in _answered(answers)]


def _answered(
    answers: Mapping[ConfigResource, Mapping[str, ConfigEntry] | AdminError],
) -> Iterable[tuple[ConfigResource, Mapping[str, ConfigEntry]]]:
    for resource, answer in answers.items():
        if not isinstance(answer, AdminError):
            yield resource, answer
