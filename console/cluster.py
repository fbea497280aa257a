"""The cluster's page: brokers with what they lead and hold, log directories, and the alerts that would fire now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.cluster_description import ClusterDescription
from lowtide.admin.configs import ConfigResource, ResourceType
from lowtide.admin.errors import AdminError, UnsupportedVersionError
from lowtide.admin.unfreed import waits_for
from lowtide.console.alerts import Found, alerts, lacks_replicas
from lowtide.console.answers import sentence_of
from lowtide.console.insight import health_of, health_value

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.admin.log_dirs import LogDir
    from lowtide.console.sessions import Session
    from lowtide.protocol.messages.describe_health import DescribeHealthResponse, LogDirectoryHealth
    from lowtide.protocol.types import BrokerId

Directories = Mapping[int, Mapping[str, "LogDir"] | AdminError]


MIN_IN_SYNC: Final = "min.insync.replicas"
TOPICS_ASKED_MAX: Final = 200
"""Of how many the configuration is asked for, to find partitions that refuse producers."""


class Counts(NamedTuple):
    """Of one broker: partitions that it leads, replicas that it has, and those of them that are not in sync."""

    leads: int
    preferred: int
    """Partitions whose first replica it is: it would lead them if all were well."""
    replicas: int
    behind: int


async def described(client: AdminClient) -> ClusterDescription:
    """With fenced brokers, where the cluster knows that question. Errors: AdminError."""
    try:
        return await client.describe_cluster(include_fenced=True)
    except UnsupportedVersionError:
        return await client.describe_cluster()


async def cluster_page(session: Session) -> dict[str, Any]:
    """Errors: AdminError."""
    client = session.client
    cluster, topics, directories, health = await asyncio.gather(
        described(client), client.list_topics(include_internal=True), log_directories(client), health_of(session)
    )
    found = Found(cluster=cluster, topics=topics, directories=directories, minima=await minima(client, topics))
    counts = {broker.broker_id: counts_of(broker.broker_id, topics) for broker in cluster.brokers}
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "topics": sum(not topic.is_internal for topic in topics.values()),
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "brokers": [
            {
                "id": broker.broker_id,
                "address": str(broker.address),
                "rack": broker.rack,
                "fenced": broker.is_fenced,
                **counts[broker.broker_id]._asdict(),
                **_disks(directories.get(broker.broker_id), health.get(broker.broker_id)),
                "health": health_value(health.get(broker.broker_id)),
            }
            for broker in cluster.brokers
        ],
        "waiting_deletes": sum(max(0, each.waiting_deletes) for each in health.values()) if health else None,
        "alerts": [alert._asdict() for alert in alerts(found)],
    }


async def minima(client: AdminClient, topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    """`min.insync.replicas` of topics with replicas that aren't in sync, `TOPICS_ASKED_MAX` at most; none that the user may not see."""
    behind = islice((name for name, topic in sorted(topics.items()) if lacks_replicas(topic)), TOPICS_ASKED_MAX)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in behind]
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
    """Of all brokers that answer; none where the user may not describe the cluster."""
    try:
        return await client.describe_log_dirs()
    except AdminError:
        return {}


def counts_of(broker_id: BrokerId, topics: Mapping[str, TopicDescription]) -> Counts:
    """What a broker leads and holds."""
    rows = [row for topic in topics.values() for row in topic.partitions.values() if broker_id in row.replicas]
    return Counts(
        leads=sum(row.leader == broker_id for row in rows),
        preferred=sum(row.replicas[0] == broker_id for row in rows),
        replicas=len(rows),
        behind=sum(broker_id not in row.isr for row in rows),
    )


def _disks(
    directories: Mapping[str, LogDir] | AdminError | None, health: DescribeHealthResponse | None
) -> dict[str, Any]:
    """A broker's log directories. What isn't known is null."""
    if directories is None or isinstance(directories, AdminError):
        return {"disks": None, "disks_error": None if directories is None else sentence_of(directories)}
    known = {} if health is None else {each.path: each for each in health.log_dirs if each.deleted_bytes >= 0}
    return {"disks": [_disk(each, known.get(each.path)) for each in directories.values()], "disks_error": None}


def _disk(directory: LogDir, known: LogDirectoryHealth | None) -> dict[str, Any]:
    """One log directory, with what is `known` of its health."""
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
