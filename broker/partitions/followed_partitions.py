"""The partitions that this broker follows, by leader. `replica_fetchers` fetches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.broker.partitions.replica_fetchers import ReplicaFetchers
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId, TopicPartition
    from lowtide.replication.partition import Partition


class FollowedPartitions:
    """The followed partitions. `AssignedPartitions` is built over it."""

    def __init__(self, fetchers: ReplicaFetchers) -> None:
        self._fetchers = fetchers
        self._by_leader: dict[BrokerId, dict[TopicPartition, Partition]] = {}

    def of_leader(self, broker_id: BrokerId) -> list[Partition]:
        """Returns the partitions that this broker follows and that broker leads."""
        return list(self._by_leader.get(broker_id, {}).values())

    def on_become(self, partition: Partition, image: MetadataImage) -> None:
        """Follows the new leader or leader epoch of a partition, if another broker leads it."""
        key = partition.topic_partition
        self._forget(key)
        if not _is_followed(partition):
            self._fetchers.unassign(key)
            return
        self._by_leader.setdefault(partition.leader_id, {})[key] = partition
        self._fetchers.assign(partition, image)

    def on_leader_changed(self, partition: Partition, image: MetadataImage) -> None:
        """Reacts to a change of the leader's broker, such as a new address."""
        if _is_followed(partition):
            self._fetchers.assign(partition, image)

    def forget(self, key: TopicPartition) -> None:
        """Removes a partition that is no longer on this broker."""
        self._forget(key)
        self._fetchers.unassign(key)

    def _forget(self, key: TopicPartition) -> None:
        for followed in self._by_leader.values():
            followed.pop(key, None)


def _is_followed(partition: Partition) -> bool:
    return not partition.is_leader and partition.leader_id >= 0
