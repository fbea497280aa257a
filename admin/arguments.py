"""Checks what callers give before anything is sent: a mistake is an error message, not an unintended request."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from lowtide.protocol.types import TopicPartition

T = TypeVar("T")


def named(names: str | Iterable[str]) -> list[str]:
    """The names.

    One that stands alone is one name, and not as many as it has letters. Errors: ValueError for what isn't text.
    """
    found: list[Any] = [names] if isinstance(names, str) else list(names)
    for name in found:
        if not isinstance(name, str):
            message = f"{name!r} is no name: allowed are texts"
            raise ValueError(message)  # noqa: TRY004 - what can't be meant is a ValueError everywhere here
    return found


def each_of(kind: type[T], things: T | Iterable[T], example: str) -> list[T]:
    """The things, or the one thing.

    `example` says how they are written. Errors: ValueError for one that isn't of this kind.
    """
    several = isinstance(things, Iterable) and not isinstance(things, kind)
    found: list[Any] = list(cast("Iterable[T]", things)) if several else [things]
    for thing in found:
        if not isinstance(thing, kind):
            message = f"{thing!r} is no {kind.__name__}: allowed are those, as {example}"
            raise ValueError(message)  # noqa: TRY004 - what can't be meant is a ValueError everywhere here
    return found


def by_partition(given: Any, values: str) -> dict[TopicPartition, Any]:
    """The mapping, by partitions. `values` says what they are mapped to. Errors: ValueError for anything else."""
    if not isinstance(given, Mapping):
        message = f"a {type(given).__name__} is no mapping: allowed is one from each TopicPartition to {values}"
        raise ValueError(message)  # noqa: TRY004 - what can't be meant is a ValueError everywhere here
    found: dict[TopicPartition, Any] = {}
    for key, value in given.items():
        try:
            topic, number = key
            partition = TopicPartition(topic, operator.index(number))
        except (TypeError, ValueError):
            topic = None
        if not isinstance(topic, str) or not isinstance(key, tuple):
            message = f'{key!r} is no partition: allowed is TopicPartition("flights", 0)'
            raise ValueError(message)  # noqa: TRY004 - what can't be meant is a ValueError everywhere here
        found[partition] = value
    return found
