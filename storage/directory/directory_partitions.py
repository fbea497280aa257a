"""The partitions that are in one log directory, loaded or not, and their offsets in checkpoints.

The parts of a directory share it; it touches no file.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowtide.protocol.types import Offset, TopicId, TopicPartition
    from lowtide.storage.errors import StorageError
    from lowtide.storage.log.log import Log


class CheckpointedOffsets:
    """One kind of offset of all partitions: the entries of a checkpoint at the start, and those of its next version."""

    def __init__(self, partitions: DirectoryPartitions, name: str) -> None:
        """`name` is the attribute of `Log`."""
        self.old: dict[TopicPartition, Offset] = {}
        """What the checkpoint said; valid for partitions that aren't loaded."""
        self._partitions = partitions
        self._offset_of: Callable[[Log], Offset] = attrgetter(name)

    def begin(self, old: Mapping[TopicPartition, Offset]) -> None:
        self.old.update(old)

    def by_partition(self) -> dict[TopicPartition, Offset]:
        """Returns the entries of the next version."""
        here = self._partitions
        kept = {key: self.old[key] for key in (*here.unidentified, *here.damaged) if key in self.old}
        return kept | {key: self._offset_of(log) for key, log in here.logs.items()}

    def values(self) -> list[Offset]:
        """Returns the offsets of loaded logs: while they are unchanged, so is the checkpoint."""
        return list(map(self._offset_of, self._partitions.logs.values()))


class DirectoryPartitions:
    """The partitions of one directory."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.unidentified: set[TopicPartition] = set()
        """Partitions without a topic id, or whose log lacked room to be loaded: they are loaded on demand."""
        self.damaged: dict[TopicPartition, StorageError] = {}
        """Partitions that can't be loaded, with the reason."""
        self.recovery_points = CheckpointedOffsets(self, "recovery_point")
        self.high_watermarks = CheckpointedOffsets(self, "high_watermark")
        self.futures: dict[TopicPartition, str] = {}
        """The folder names of logs that are being moved here; the logs are among the others."""
        self._topic_names: dict[TopicId, str] = {}

    def __len__(self) -> int:
        return len(self.logs) + len(self.unidentified) + len(self.damaged)

    def __contains__(self, key: TopicPartition) -> bool:
        """Returns whether the partition is here, whatever its state. A new one may have no folder yet."""
        return key in self.logs or key in self.unidentified or key in self.damaged

    def serves(self, key: TopicPartition) -> bool:
        """Returns whether the partition itself is here, not just the copy of a move."""
        return key in self and key not in self.futures

    def folder_name(self, key: TopicPartition) -> str:
        return self.futures.get(key) or str(key)

    def add(self, log: Log) -> None:
        self.logs[log.topic_partition] = log
        self._topic_names[log.topic_id] = log.topic_partition.topic

    def take_out(self, key: TopicPartition) -> Log | None:
        """Forgets a partition, and returns its log if it was loaded. The topic's name stays until `forget_names`."""
        self.unidentified.discard(key)
        self.damaged.pop(key, None)
        self.futures.pop(key, None)
        self.recovery_points.old.pop(key, None)
        self.high_watermarks.old.pop(key, None)
        return self.logs.pop(key, None)

    def forget_names(self) -> None:
        """Forgets the names of topics without a log here."""
        self._topic_names.clear()
        self._topic_names.update({log.topic_id: key.topic for key, log in self.logs.items()})

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Returns the name of a topic that has a log here."""
        return self._topic_names.get(topic_id)
