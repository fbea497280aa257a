"""The partitions that this broker follows, by their leaders; the fetchers learn what becomes of each.

Decisions are in `replication/`; the fetching is `replica_fetchers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId, TopicPartition
    from lowtide.replication.partition import Partition


class FollowerAssignments(Protocol):
    """Who fetches what this broker follows."""

    def assign(self, partition: Partition, image: MetadataImage) -> None:
        """This broker follows: the leader, its leader epoch or its address is new. The partition has a leader."""
        ...

    def unassign(self, key: TopicPartition) -> None:
        """This broker leads the partition, or no broker does, or it isn't here any more.

        Also for one that was never assigned.
        """
        ...


class FollowedPartitions:
    """The followed partitions. `AssignedPartitions` is built over it."""

    def __init__(self, fetchers: FollowerAssignments) -> None:
        self._fetchers = fetchers
        self._by_leader: dict[BrokerId, dict[TopicPartition, Partition]] = {}

    def of_leader(self, broker_id: BrokerId) -> list[Partition]:
        """The partitions that this broker follows and that broker leads."""
        return list(self._by_leader.get(broker_id, {}).values())

    def on_become(self, partition: Partition, image: MetadataImage) -> None:
        """The partition's leader or leader epoch is another: have it fetched from there, if that is another broker."""
        key = partition.topic_partition
        self._forget(key)
        if not _is_followed(partition):
            self._fetchers.unassign(key)
            return
        self._by_leader.setdefault(partition.leader_id, {})[key] = partition
        self._fetchers.assign(partition, image)

    def on_leader_changed(self, partition: Partition, image: MetadataImage) -> None:
        """The leader's broker came, went or changed: its address may be another."""
        if _is_followed(partition):
            self._fetchers.assign(partition, image)

    def forget(self, key: TopicPartition) -> None:
        """The partition isn't here any more."""
        self._forget(key)
        self._fetchers.unassign(key)

    def _forget(self, key: TopicPartition) -> None:
        for followed in self._by_leader.values():
            followed.pop(key, None)


def _is_followed(partition: Partition) -> bool:
    return not partition.is_leader and partition.leader_id >= 0
