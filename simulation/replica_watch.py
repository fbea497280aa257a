"""What was seen of the replicas' logs of a simulated cluster, over all lives of their brokers, for as long as they have their disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition
from lowtide.simulation.machines import Machine
from lowtide.storage.log.log import Log


class ReplicaWatch:
    """What was seen of one replica's log on one disk, over all lives."""

    __slots__ = ("checked_to", "directory_changes", "has_holes", "log", "log_end", "log_start", "name", "seen")

    def __init__(self, name: str, directory_changes: int) -> None:
        self.name = name
        self.directory_changes = directory_changes
        self.log: Log | None = None
        self.log_start = 0
        self.log_end = 0
        self.checked_to = 0
        self.seen = (-1, -1, -1)
        self.has_holes = False
        """Records may have gone for the sake of later ones that were lost: that was no promise, and there is no promise from it."""


class ReplicaWatches:
    """The watch of each replica that was seen."""

    def __init__(self, machines: Mapping[BrokerId, Machine]) -> None:
        self._machines = machines
        self._watches: dict[tuple[BrokerId, TopicId, int], ReplicaWatch] = {}

    def find(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> ReplicaWatch | None:
        """What is known of a replica, if anything was seen of it on its present disk."""
        watch = self._watches.get((broker_id, topic_id, number))
        return None if watch is None or watch.directory_changes != self._machines[broker_id].directory_changes else watch

    def of(self, machine: Machine, log: Log) -> ReplicaWatch:
        """The watch of a replica whose log is open; all of it is to be looked at when that is another one than before."""
        key = (machine.broker_id, log.topic_id, log.topic_partition.partition)
        watch = self._watches.get(key)
        if watch is None or watch.directory_changes != machine.directory_changes:
            watch = self._watches[key] = ReplicaWatch(f"{log.topic_partition} on {machine.host}", machine.directory_changes)
        if watch.log is not log:
            watch.log, watch.seen = log, (-1, -1, -1)
            watch.checked_to = 0
        return watch

    def look_again(self, partitions: Iterable[tuple[TopicId, int]]) -> None:
        """All that these partitions' replicas have is to be looked at, from the first byte on."""
        wanted = set(partitions)
        for (_, topic_id, number), watch in self._watches.items():
            if (topic_id, number) in wanted:
                watch.checked_to, watch.seen = 0, (-1, -1, -1)

    def log_starts(self) -> dict[TopicPartition, Offset]:
        """The largest log start of each partition."""
        starts: dict[TopicPartition, Offset] = {}
        for watch in self._watches.values():
            if watch.log is not None:
                key = watch.log.topic_partition
                starts[key] = max(starts.get(key, 0), watch.log.log_start_offset)
        return starts
