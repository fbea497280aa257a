"""Checks the arguments of calls before anything is sent, so that a mistake never becomes a request."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from lowtide.protocol.types import TopicPartition

T = TypeVar("T")


def named(names: str | Iterable[str]) -> list[str]:
    """Returns a list of names; a single text is one name. Errors: ValueError for anything else."""
    found: list[Any] = [names] if isinstance(names, str) else list(names)
    for name in found:
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not a name: it must be a string")  # noqa: TRY004
    return found


def each_of(kind: type[T], things: T | Iterable[T], example: str) -> list[T]:
    """Returns a list of things of a kind; a single thing is allowed. Errors: ValueError, with an `example`."""
    several = isinstance(things, Iterable) and not isinstance(things, kind)
    found: list[Any] = list(cast("Iterable[T]", things)) if several else [things]
    for thing in found:
        if not isinstance(thing, kind):
            raise ValueError(f"{thing!r} is not a {kind.__name__}: write {example}")  # noqa: TRY004
    return found


def by_partition(given: Any, values: str) -> dict[TopicPartition, Any]:
    """Returns a mapping from partitions; `values` names what they map to. Errors: ValueError for anything else."""
    if not isinstance(given, Mapping):
        raise ValueError(f"a {type(given).__name__} is not a mapping: map each TopicPartition to {values}")  # noqa: TRY004
    found: dict[TopicPartition, Any] = {}
    for key, value in given.items():
        try:
            topic, number = key
            partition = TopicPartition(topic, operator.index(number))
        except (TypeError, ValueError):
            topic = None
        if not isinstance(topic, str) or not isinstance(key, tuple):
            raise ValueError(f'{key!r} is not a partition: write TopicPartition("flights", 0)')  # noqa: TRY004
        found[partition] = value
    return found
