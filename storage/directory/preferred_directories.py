"""The directories in which future partitions are created: what AlterReplicaLogDirs asked for (KIP-113).

Kept in memory only, as in Kafka, and bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lowtide.protocol.types import TopicPartition

PREFERRED_MAX: Final = 10_000
"""Partitions for which a directory is remembered; beyond that the oldest is forgotten."""


class PreferredDirectories:
    """By partition, the path of the directory."""

    def __init__(self) -> None:
        self._paths: dict[TopicPartition, str] = {}

    def note(self, key: TopicPartition, path: str) -> None:
        """Notes the directory for a partition."""
        self._paths.pop(key, None)
        while len(self._paths) >= PREFERRED_MAX:
            del self._paths[next(iter(self._paths))]
        self._paths[key] = path

    def get(self, key: TopicPartition) -> str | None:
        """Returns the directory for a partition; None for any."""
        return self._paths.get(key)

    def forget(self, key: TopicPartition) -> None:
        """Forgets a partition that is created."""
        self._paths.pop(key, None)
