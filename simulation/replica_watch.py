"""Observations of the replicas' logs of a simulated cluster, as long as brokers have their disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition
from lowtide.simulation.machines import Machine
from lowtide.storage.log.erased_reads import BytesFile
from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.segment_file import FileSlice


def content_of(part: FileSlice) -> bytes:
    """Reads a slice, without a fault's chance."""
    file = part.file
    if isinstance(file, BytesFile):
        return file.pread(part.size, part.position)
    return bytes(file._node.read(part.size, part.position))  # type: ignore[attr-defined]  # noqa: SLF001


class ReplicaWatch:
    """Observations of one replica's log on one disk, over all lives."""

    __slots__ = (
        "checked_to",
        "directory_changes",
        "has_holes",
        "highest_end",
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
        """The life of its broker at the first observation."""
        self.log_start = 0
        self.log_end = 0
        self.highest_end: float = math.inf if directory_changes else 0
        """The highest log end offset so far; infinite for an older copy of a disk, whose earlier end is unknown."""
        self.checked_to = 0
        self.seen = (-1, -1, -1)
        self.has_holes = False
        """Whether compaction may have removed records for later ones that were lost, which ends the promises."""
        self.synced_end = self.kept_end = 0
        """At the last crash: the durable end (exclusive), and the end that the next start must find."""
        self.moved_from: Log | None = None
        self.moved_synced_end = 0
        """The durable end in the log directory from which it last moved, except for later truncations."""

    def note_death(self, machine: Machine, *, power: bool) -> None:
        """Records a crash; with `power` a power cut, which keeps only durable data.

        A failing disk keeps nothing. The next start may find a moved log in either folder, until the new name is
        durable.
        """
        log = self.log
        # An end within a hole is only in memory, as in Kafka: a start ends the log behind its last batch.
        if log is None or log.offline or machine.is_broken or self.has_holes:
            self.synced_end = self.kept_end = 0
            return
        is_named = self.moved_from is None or not machine.filesystem.exists(self.moved_from.directory)
        synced_end = max(log.recovery_point, self.moved_synced_end) if is_named else self.moved_synced_end
        self.synced_end = min(synced_end, log.log_end_offset)
        self.kept_end = self.synced_end if power else log.log_end_offset


class ReplicaWatches:
    """The watches of all replicas."""

    def __init__(self, machines: Mapping[BrokerId, Machine]) -> None:
        self._machines = machines
        self._watches: dict[tuple[BrokerId, TopicId, int], ReplicaWatch] = {}

    def find(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> ReplicaWatch | None:
        """Returns the watch of a replica on its present disk, or None."""
        watch = self._watches.get((broker_id, topic_id, number))
        return (
            None if watch is None or watch.directory_changes != self._machines[broker_id].directory_changes else watch
        )

    def of(self, machine: Machine, log: Log) -> ReplicaWatch:
        """Returns the watch of a replica with an open log; a new log is checked completely."""
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

    def end_of(self, broker_id: BrokerId, watch: ReplicaWatch) -> Offset:
        """Returns where a replica's log ends, or, until its dead broker has opened it, where it ends at least."""
        return watch.log_end if self._is_seen(self._machines[broker_id], watch) else watch.kept_end

    def on_death(self, machine: Machine, *, power: bool) -> None:
        """Records a crash; with `power` a power cut of the machine, also without a process."""
        for watch in self._of_machine(machine):
            if self._is_seen(machine, watch):
                watch.note_death(machine, power=power)
            elif power:
                watch.kept_end = min(watch.kept_end, watch.synced_end)

    @staticmethod
    def _is_seen(machine: Machine, watch: ReplicaWatch) -> bool:
        """Returns whether the machine's broker lives and has opened this log."""
        return watch.life == machine.lives and machine.broker is not None

    def _of_machine(self, machine: Machine) -> list[ReplicaWatch]:
        return [watch for (broker_id, _, _), watch in self._watches.items() if broker_id == machine.broker_id]

    def look_again(self, partitions: Iterable[tuple[TopicId, int]]) -> None:
        """Has these partitions' replicas checked again from the first byte."""
        wanted = set(partitions)
        for (_, topic_id, number), watch in self._watches.items():
            if (topic_id, number) in wanted:
                watch.checked_to, watch.seen = 0, (-1, -1, -1)

    def log_starts(self) -> dict[TopicPartition, Offset]:
        """Returns the largest log start offset of each partition."""
        starts: dict[TopicPartition, Offset] = {}
        for watch in self._watches.values():
            if watch.log is not None:
                key = watch.log.topic_partition
                starts[key] = max(starts.get(key, 0), watch.log.log_start_offset)
        return starts
