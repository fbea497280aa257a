"""Reads the parameters of requests strictly. All errors are `RefusedError` with a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lowtide.console.answers import bad
from lowtide.protocol.types import TopicPartition

TOPIC_CHARACTERS_MAX: Final = 249
GROUP_CHARACTERS_MAX: Final = 4_096
PARTITION_MAX: Final = 2**31 - 1
PARTITIONS_MAX: Final = 10_000
"""Partitions in one request."""

Parameters = Mapping[str, Any]
"""A query, or the object in a body."""


def text(given: Parameters, name: str, *, longest: int = GROUP_CHARACTERS_MAX) -> str:
    """Reads a string that is not empty."""
    value = given.get(name)
    if not isinstance(value, str) or not value or len(value) > longest:
        raise bad(f"{name} must be a string of 1 to {longest} characters.")
    return value


def optional_text(given: Parameters, name: str, *, longest: int = GROUP_CHARACTERS_MAX) -> str | None:
    """Reads a string; returns None if it is missing or empty."""
    return text(given, name, longest=longest) if given.get(name) not in (None, "") else None


def topic(given: Parameters, name: str = "topic") -> str:
    """Reads the name of a topic."""
    return text(given, name, longest=TOPIC_CHARACTERS_MAX)


def number(given: Parameters, name: str, low: int, high: int, default: int | None = None) -> int:
    """Reads a whole number from `low` to `high` (inclusive), or a string with one: JavaScript rounds large ones."""
    value = given.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(high)):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad(f"{name} must be a whole number from {low} to {high}.")
    return value


def partition(given: Parameters) -> TopicPartition:
    """Reads a partition."""
    return TopicPartition(topic(given), number(given, "partition", 0, PARTITION_MAX))


def choice(given: Parameters, name: str, allowed: Sequence[str], default: str | None = None) -> str:
    """Reads one of some words."""
    value = given.get(name, default)
    if not isinstance(value, str) or value not in allowed:
        raise bad(f"{name} must be one of {', '.join(allowed)}.")
    return value


def flag(given: Parameters, name: str) -> bool:
    """Reads a boolean; it is false if it is missing."""
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise bad(f"{name} must be true or false.")
    return value


def texts(given: Parameters, name: str, most: int) -> list[str]:
    """Reads a list of strings."""
    values = given.get(name)
    if not isinstance(values, list) or not 0 < len(values) <= most:
        raise bad(f"{name} must be a list of 1 to {most} strings.")
    return [text({name: each}, name) for each in values]


def partitions(given: Parameters) -> list[int]:
    """Reads a list of partition numbers."""
    values = given.get("partitions")
    if not isinstance(values, list) or not 0 < len(values) <= PARTITIONS_MAX:
        raise bad(f"partitions must be a list of 1 to {PARTITIONS_MAX} numbers.")
    return sorted({number({"partitions": each}, "partitions", 0, PARTITION_MAX) for each in values})
