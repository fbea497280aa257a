"""The page of the cluster: brokers with their replicas and log directories, and the alerts that fire now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.cluster_description import describe_all_brokers
from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.retained import waits_for
from lowtide.console.alerts import MEANINGS, AlertFacts, alerts, lacks_replicas
from lowtide.console.answers import sentence_of
from lowtide.console.insight import health_of, health_value
from lowtide.protocol.config_values import ConfigResourceType

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.admin.log_dirs import LogDir
    from lowtide.console.sessions import ConsoleSession
    from lowtide.protocol.messages.describe_health import DescribeHealthResponse, LogDirectoryHealth
    from lowtide.protocol.types import BrokerId

Directories = Mapping[int, Mapping[str, "LogDir"] | AdminError]


MIN_IN_SYNC: Final = "min.insync.replicas"
TOPICS_ASKED_MAX: Final = 200
"""How many topics' configurations are requested to find partitions that refuse producers."""


class ReplicaCounts(NamedTuple):
    """The partitions that a broker leads, its replicas, and its replicas out of sync."""

    leads: int
    preferred: int
    """Partitions of which it is the preferred leader."""
    replicas: int
    behind: int


async def cluster_page(session: ConsoleSession) -> dict[str, Any]:
    """Returns the page. Errors: AdminError."""
    client = session.client
    cluster, topics, directories, health = await asyncio.gather(
        describe_all_brokers(client),
        client.list_topics(include_internal=True),
        log_directories(client),
        health_of(session),
    )
    found = AlertFacts(cluster=cluster, topics=topics, directories=directories, minima=await minima(client, topics))
    counts = {broker.broker_id: counts_of(broker.broker_id, topics) for broker in cluster.brokers}
    brokers = [
        {
            "id": broker.broker_id,
            "address": str(broker.address),
            "rack": broker.rack,
            "fenced": broker.is_fenced,
            **counts[broker.broker_id]._asdict(),
            **disk_values(directories.get(broker.broker_id), health.get(broker.broker_id)),
            "health": health_value(health.get(broker.broker_id)),
        }
        for broker in cluster.brokers
    ]
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "topics": sum(not topic.is_internal for topic in topics.values()),
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "brokers": brokers,
        "waiting_deletes": sum(max(0, each.waiting_deletes) for each in health.values()) if health else None,
        "alerts": [alert._asdict() for alert in alerts(found)],
        "sees_disks": all(row["disks"] for row in brokers),
        "meanings": [each._asdict() for each in MEANINGS],
    }


async def minima(client: AdminClient, topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    """Returns `min.insync.replicas` of at most `TOPICS_ASKED_MAX` topics with replicas out of sync."""
    behind = islice((name for name, topic in sorted(topics.items()) if lacks_replicas(topic)), TOPICS_ASKED_MAX)
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in behind]
    if not resources:
        return {}
    try:
        found = await client.describe_configs(resources, keys=[MIN_IN_SYNC])
    except AdminError:
        return {}
    values = {
        resource.name: entries[MIN_IN_SYNC].value
        for resource, entries in found.items()
        if not isinstance(entries, AdminError) and MIN_IN_SYNC in entries
    }
    return {name: int(value) for name, value in values.items() if value is not None}


async def log_directories(client: AdminClient) -> Directories:
    """Returns the log directories of all brokers that answer; none if the user may not describe the cluster."""
    try:
        return await client.describe_log_dirs()
    except AdminError:
        return {}


def counts_of(broker_id: BrokerId, topics: Mapping[str, TopicDescription]) -> ReplicaCounts:
    """Counts the partitions and replicas of a broker."""
    rows = [row for topic in topics.values() for row in topic.partitions.values() if broker_id in row.replicas]
    return ReplicaCounts(
        leads=sum(row.leader == broker_id for row in rows),
        preferred=sum(row.replicas[0] == broker_id for row in rows),
        replicas=len(rows),
        behind=sum(broker_id not in row.isr for row in rows),
    )


def disk_values(
    directories: Mapping[str, LogDir] | AdminError | None, health: DescribeHealthResponse | None
) -> dict[str, Any]:
    """Returns a broker's log directories; unknown values are null."""
    if directories is None or isinstance(directories, AdminError):
        return {"disks": None, "disks_error": None if directories is None else sentence_of(directories)}
    known = {} if health is None else {each.path: each for each in health.log_dirs if each.deleted_bytes >= 0}
    return {"disks": [_disk(each, known.get(each.path)) for each in directories.values()], "disks_error": None}


def _disk(directory: LogDir, known: LogDirectoryHealth | None) -> dict[str, Any]:
    """Returns a log directory, with its health if it is known."""
    size_bytes = sum(replica.size_bytes for replica in directory.replicas.values())
    unfreed = () if known is None else known.unfreed
    return {
        "path": directory.path,
        "error": None if directory.error is None else sentence_of(directory.error),
        "live_bytes": size_bytes if known is None else known.live_bytes,
        "deleted_bytes": None if known is None else known.deleted_bytes,
        "unfreed": [
            {"bytes": each.size_bytes, "why": waits_for(each.waits_for)} for each in unfreed if each.size_bytes
        ],
        "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
        "usable_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
        "replicas": len(directory.replicas),
    }
