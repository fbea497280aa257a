"""Tasks of a streams group: a subtopology and a partition. Source: Kafka's `TasksTuple`."""

from __future__ import annotations

from collections.abc import Mapping
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
