"""Tasks of a streams group: a subtopology and a partition. Source: Kafka's `TasksTuple`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

TaskId: TypeAlias = tuple[str, int]
"""Subtopology id and partition."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks by kind: subtopology → partitions, without empty rows."""

    active: Mapping[str, frozenset[int]] = field(default_factory=dict)
    standby: Mapping[str, frozenset[int]] = field(default_factory=dict)
    warmup: Mapping[str, frozenset[int]] = field(default_factory=dict)


EMPTY_TASKS: Final = Tasks()


def by_subtopology(tasks: Iterable[TaskId]) -> dict[str, frozenset[int]]:
    """Returns the partitions of each subtopology, by subtopology id in order."""
    found: dict[str, set[int]] = {}
    for subtopology_id, partition in tasks:
        found.setdefault(subtopology_id, set()).add(partition)
    return {subtopology_id: frozenset(found[subtopology_id]) for subtopology_id in sorted(found)}
