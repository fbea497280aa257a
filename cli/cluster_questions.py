"""Finds the partitions and topics that users name."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.wanted_offsets import parse_partitions
from lowtide.cli.outcome import misused
from lowtide.protocol.types import TopicPartition


def parsed_partitions(text: str) -> tuple[str, list[int] | None]:
    """Reads `topic` or `topic:0,2-4` into the topic and its partitions, or None for all. Errors: CommandError."""
    try:
        return parse_partitions(text)
    except ValueError as error:
        raise misused(f"{error}.") from None


def fitting(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the names that match a pattern (`*` and `?`), sorted. Errors: CommandError for an unknown name."""
    known, found = sorted(names), set[str]()
    for pattern in patterns:
        some = fnmatch.filter(known, pattern)
        if not some and not set(pattern) & set("*?["):
            raise misused(f"there is no topic {pattern}.")
        found.update(some)
    return sorted(found)


def chosen_partitions(texts: Iterable[str], topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
    """Returns the partitions that texts such as `flights:0,2-4` name. Errors: CommandError for unknown ones."""
    found: dict[TopicPartition, None] = {}
    for text in texts:
        topic, numbers = parsed_partitions(text)
        described = topics.get(topic)
        if described is None:
            raise misused(f"there is no topic {topic}, or you may not describe it.")
        for number in sorted(described.partitions) if numbers is None else numbers:
            if number not in described.partitions:
                raise misused(f"topic {topic} has no partition {number}: it has {len(described.partitions)}.")
            found[TopicPartition(topic, number)] = None
    return list(found)
