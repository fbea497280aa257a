"""What a request of the page says, read strictly: names, numbers and choices.

Every error is a `RefusedError` with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lowtide.console.answers import bad
from lowtide.protocol.types import TopicPartition

TOPIC_CHARACTERS_MAX: Final = 249
GROUP_CHARACTERS_MAX: Final = 4_096
PARTITION_MAX: Final = 2**31 - 1
PARTITIONS_MAX: Final = 10_000
"""In one request."""

Given = Mapping[str, Any]
"""A query, or the object in a body."""


def text(given: Given, name: str, *, longest: int = GROUP_CHARACTERS_MAX) -> str:
    """A text that isn't empty."""
    value = given.get(name)
    if not isinstance(value, str) or not value or len(value) > longest:
        raise bad(f"{name} is a text of 1 to {longest} characters.")
    return value


def optional_text(given: Given, name: str, *, longest: int = GROUP_CHARACTERS_MAX) -> str | None:
    """A text, or None where it is missing or empty."""
    return text(given, name, longest=longest) if given.get(name) not in (None, "") else None


def topic(given: Given, name: str = "topic") -> str:
    """The name of a topic."""
    return text(given, name, longest=TOPIC_CHARACTERS_MAX)


def number(given: Given, name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number from `low` to `high` (inclusive), also as a text: JavaScript rounds large ones."""
    value = given.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(high)):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad(f"{name} is a whole number from {low} to {high}.")
    return value


def partition(given: Given) -> TopicPartition:
    """One partition."""
    return TopicPartition(topic(given), number(given, "partition", 0, PARTITION_MAX))


def choice(given: Given, name: str, allowed: Sequence[str], default: str | None = None) -> str:
    """One of a few words."""
    value = given.get(name, default)
    if not isinstance(value, str) or value not in allowed:
        raise bad(f"{name} is one of {', '.join(allowed)}.")
    return value


def flag(given: Given, name: str) -> bool:
    """Yes or no; no where it is missing."""
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise bad(f"{name} is true or false.")
    return value


def texts(given: Given, name: str, most: int) -> list[str]:
    """Some texts."""
    values = given.get(name)
    if not isinstance(values, list) or not 0 < len(values) <= most:
        raise bad(f"{name} is a list of 1 to {most} texts.")
    return [text({name: each}, name) for each in values]


def partitions(given: Given) -> list[int]:
    """Numbers of partitions."""
    values = given.get("partitions")
    if not isinstance(values, list) or not 0 < len(values) <= PARTITIONS_MAX:
        raise bad(f"partitions is a list of 1 to {PARTITIONS_MAX} numbers.")
    return sorted({number({"partitions": each}, "partitions", 0, PARTITION_MAX) for each in values})
