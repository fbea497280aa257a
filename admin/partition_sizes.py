"""How much space partitions take on the disks of their leaders."""

from __future__ import annotations

from collections.abc import Collection

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import ClusterView, PartitionDescription
from lowtide.admin.errors import AdminError
from lowtide.protocol.types import BrokerId, TopicPartition


async def leader_sizes(
    client: AdminClient, view: ClusterView, partitions: Collection[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, int]:
    """Bytes of each partition on its leader; without those that the client may not see, and those whose broker is away."""
    leaders: dict[TopicPartition, BrokerId] = {}
    for partition in partitions:
        described = view.partition(partition)
        if isinstance(described, PartitionDescription) and described.leader is not None:
            leaders[partition] = described.leader
    if not leaders:
        return {}
    answers = await client.describe_log_dirs(
        sorted(set(leaders.values())), partitions=list(leaders), timeout=timeout_ms / 1000
    )
    return {
        partition: replica.size_bytes
        for broker_id, directories in answers.items()
        if not isinstance(directories, AdminError)
        for directory in directories.values()
        for partition, replica in directory.replicas.items()
        if leaders.get(partition) == broker_id and not replica.is_future
    }
