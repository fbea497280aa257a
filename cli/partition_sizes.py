"""How much space partitions take on the disks of their leaders."""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import ClusterView, PartitionDescription
from lowtide.admin.errors import AdminError
from lowtide.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from lowtide.protocol.types import BrokerId, TopicPartition


async def leader_sizes(
    client: AdminClient, view: ClusterView, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, int]:
    """Bytes of each partition on its leader; none of those that aren't told, since who asks may not know, or a broker is away."""
    led: dict[BrokerId, dict[str, list[int]]] = {}
    for partition in partitions:
        described = view.partition(partition)
        if isinstance(described, PartitionDescription) and described.leader is not None:
            led.setdefault(described.leader, {}).setdefault(partition.topic, []).append(partition.partition)
    cluster, sizes = client._cluster, dict[TopicPartition, int]()  # noqa: SLF001
    for leader, topics in led.items():
        rows = [DescribableLogDirTopic(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
        try:
            async with cluster.broker(leader, cluster.deadline(timeout_ms)) as handle:
                answer = await handle.ask(DescribeLogDirsRequest(topics=rows))
        except AdminError:
            continue
        for directory in answer.results:
            for topic in directory.topics:
                for row in topic.partitions:
                    if not row.is_future_key:
                        sizes[TopicPartition(topic.name, row.partition_index)] = row.partition_size
    return sizes
