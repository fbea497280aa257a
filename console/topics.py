"""The page of topics: partitions, replicas out of sync, records and bytes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import replicas_in
from lowtide.admin.offsets import ends_of
from lowtide.console.cluster import log_directories
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.admin.log_dirs import LogDir

COUNTED_PARTITIONS_MAX: Final = 2_000
"""For more partitions the page has no numbers of records, which need a request about each partition."""


async def topics_page(client: AdminClient, *, internal: bool) -> dict[str, Any]:
    """Returns the page. Errors: AdminError."""
    topics = await client.list_topics(include_internal=internal)
    directories = await log_directories(client)
    on_leaders, on_all = sizes(topics, directories)
    records = await _records(client, topics)
    return {
        "sizes_known": any(not isinstance(each, AdminError) for each in directories.values()),
        "topics": [
            {
                "name": name,
                "internal": topic.is_internal,
                "partitions": len(topic.partitions),
                "replicas": max((len(row.replicas) for row in topic.partitions.values()), default=0),
                "offline": sum(row.leader is None for row in topic.partitions.values()),
                "behind": sum(len(row.isr) < len(row.replicas) for row in topic.partitions.values()),
                "records": records.get(name),
                "bytes": on_leaders.get(name),
                "replica_bytes": on_all.get(name),
            }
            for name, topic in sorted(topics.items())
        ],
    }


def sizes(
    topics: Mapping[str, TopicDescription], directories: Mapping[int, Mapping[str, LogDir] | AdminError]
) -> tuple[Counter[str], Counter[str]]:
    """Returns the bytes of each topic on the disks of its leaders, and on all disks."""
    on_leaders, on_all = Counter[str](), Counter[str]()
    for broker_id, key, replica in replicas_in(directories):
        topic = topics.get(key.topic)
        row = None if topic is None else topic.partitions.get(key.partition)
        if row is not None:
            on_all[key.topic] += replica.size_bytes
            if row.leader == broker_id and not replica.is_future:
                on_leaders[key.topic] += replica.size_bytes
    return on_leaders, on_all


async def _records(client: AdminClient, topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    """Returns the number of records of topics whose leaders all answer."""
    keys = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
    if not keys or len(keys) > COUNTED_PARTITIONS_MAX:
        return {}
    answering = [key for key in keys if topics[key.topic].partitions[key.partition].leader is not None]
    starts, ends = await ends_of(client, answering)
    found: dict[str, int] = {}
    for name, topic in topics.items():
        wanted = [TopicPartition(name, number) for number in topic.partitions]
        if all(key in starts and key in ends for key in wanted):
            found[name] = sum(ends[key] - starts[key] for key in wanted)
    return found
