"""What was seen of the replicas' logs of a simulated cluster, over all lives of their brokers, for as long as they have their disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition
from lowtide.simulation.machines import Machine
from lowtide.storage.log.log import Log


class ReplicaWatch:
    """What was seen of one replica's log on one disk, over all lives."""

    __slots__ = (
        "checked_to",
        "directory_changes",
        "has_holes",
        "kept_end",
        "life",
        "log",
        "log_end",
        "log_start",
        "moved_from",
        "moved_synced_end",
        "name",
        "seen",
        "synced_end",
    )

    def __init__(self, name: str, directory_changes: int) -> None:
        self.name = name
        self.directory_changes = directory_changes
        self.log: Log | None = None
        self.life = 0
        """Of its broker, when the log was seen first."""
        self.log_start = 0
        self.log_end = 0
        self.checked_to = 0
        self.seen = (-1, -1, -1)
        self.has_holes = False
        """Records may have gone for the sake of later ones that were lost: that was no promise, and there is no promise from it."""
        self.synced_end = self.kept_end = 0
        """When its broker died: up to where (exclusive) it was on the disk, and up to where it must be found by the next start."""
        self.moved_from: Log | None = None
        self.moved_synced_end = 0
        """Up to where it was on the disk of the log directory from which it was moved last, but for what was cut since."""

    def note_death(self, machine: Machine, *, power: bool) -> None:
        """Its broker is about to die; with `power` its machine, which keeps what is on the disk alone.

        A disk that fails keeps nothing.
        The start after that may find a log that was moved in either folder, while the new one's name isn't on the disk.
        """
        log = self.log
        # Only memory knows an end that lies in a hole, as in Kafka: a start ends the log behind its last batch.
        if log is None or log.offline or machine.is_broken or self.has_holes:
            self.synced_end = self.kept_end = 0
            return
        is_named = self.moved_from is None or not machine.filesystem.exists(self.moved_from.directory)
        synced_end = max(log.recovery_point, self.moved_synced_end) if is_named else self.moved_synced_end
        self.synced_end = min(synced_end, log.log_end_offset)
        self.kept_end = self.synced_end if power else log.log_end_offset


class ReplicaWatches:
    """The watch of each replica that was seen."""

    def __init__(self, machines: Mapping[BrokerId, Machine]) -> None:
        self._machines = machines
        self._watches: dict[tuple[BrokerId, TopicId, int], ReplicaWatch] = {}

    def find(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> ReplicaWatch | None:
        """What is known of a replica, if anything was seen of it on its present disk."""
        watch = self._watches.get((broker_id, topic_id, number))
        return (
            None if watch is None or watch.directory_changes != self._machines[broker_id].directory_changes else watch
        )

    def of(self, machine: Machine, log: Log) -> ReplicaWatch:
        """The watch of a replica whose log is open; all of it is to be looked at when that is another one than before."""
        key = (machine.broker_id, log.topic_id, log.topic_partition.partition)
        watch = self._watches.get(key)
        if watch is None or watch.directory_changes != machine.directory_changes:
            watch = self._watches[key] = ReplicaWatch(
                f"{log.topic_partition} on {machine.host}", machine.directory_changes
            )
        if watch.log is not log:
            is_moved = (
                watch.log is not None
                and watch.log.parent_directory != log.parent_directory
                and machine.lives == watch.life
            )
            watch.moved_from = watch.log if is_moved else None
            watch.moved_synced_end = 0 if watch.moved_from is None else watch.moved_from.recovery_point
            watch.log, watch.life, watch.seen = log, machine.lives, (-1, -1, -1)
            watch.checked_to = 0
        return watch

    def on_death(self, machine: Machine, *, power: bool) -> None:
        """A broker is about to be killed; with `power` its machine, also while no process runs there."""
        for watch in self._of_machine(machine):
            if watch.life == machine.lives and machine.broker is not None:
                watch.note_death(machine, power=power)
            elif power:
                watch.kept_end = min(watch.kept_end, watch.synced_end)

    def _of_machine(self, machine: Machine) -> list[ReplicaWatch]:
        return [watch for (broker_id, _, _), watch in self._watches.items() if broker_id == machine.broker_id]

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
