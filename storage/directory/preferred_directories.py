"""In which directories partitions are to be made that aren't here yet: what AlterReplicaLogDirs has asked for (KIP-113).

Only memory has it, as in Kafka, and not without bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lowtide.protocol.types import TopicPartition

PREFERRED_MAX: Final = 10_000
"""Partitions for which a directory is remembered; of more the oldest is forgotten."""


class PreferredDirectories:
    """By partition, the path of the directory."""

    def __init__(self) -> None:
        self._paths: dict[TopicPartition, str] = {}

    def note(self, key: TopicPartition, path: str) -> None:
        """The partition is to be made in this directory, if it can be."""
        self._paths.pop(key, None)
        while len(self._paths) >= PREFERRED_MAX:
            del self._paths[next(iter(self._paths))]
        self._paths[key] = path

    def get(self, key: TopicPartition) -> str | None:
        """Where the partition is to be made; None for anywhere."""
        return self._paths.get(key)

    def forget(self, key: TopicPartition) -> None:
        """It is made."""
        self._paths.pop(key, None)
