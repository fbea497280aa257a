"""Positions of many partitions, and the ranges of offsets that tasks read.

A position is the next offset to read. The JSON is that of Spark's own Kafka source, `{"topic": {"0": 15}}`, with topics
and partitions in order, because Spark compares it as text. It has further entries, whose names no topic can have:

- `@topicIds`: the id of each topic, while the query trims, so that it ignores a topic that was created again.
- `@startedAt`: where the first batch began, in that batch's end, because Spark asks again when it repeats the batch.

Sources: Spark's KafkaMicroBatchStream (rate limits), KafkaOffsetRangeCalculator (splitting), JsonUtils.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from lowtide.protocol.types import Offset, TopicId, TopicPartition

Positions = dict[TopicPartition, Offset]
"""The next offset to read, by partition."""

TOPIC_IDS: Final = "@topicIds"
STARTED_AT: Final = "@startedAt"

_OFFSET_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1


class QueryProgress(NamedTuple):
    """A query has durably consumed everything below these positions."""

    positions: Positions
    topic_ids: Mapping[str, TopicId]
    """By topic. A topic without an id is not checked, because its brokers have no topic ids."""


class ReadRange(NamedTuple):
    """Offsets of one partition; `until` is exclusive."""

    partition: TopicPartition
    start: Offset
    until: Offset

    @property
    def size(self) -> int:
        """How many offsets it has; there may be fewer records."""
        return self.until - self.start


def positions_to_json(positions: Mapping[TopicPartition, Offset]) -> dict[str, Any]:
    """Returns `{"topic": {"0": 15}}`, in the order of topics and partitions."""
    made: dict[str, Any] = {}
    for (topic, partition), offset in sorted(positions.items()):
        made.setdefault(topic, {})[str(partition)] = offset
    return made


def positions_from_json(value: Mapping[str, Any]) -> Positions:
    """Reads an object of `positions_to_json`, except entries that begin with `@`. Errors: ValueError."""
    found: Positions = {}
    for topic, partitions in value.items():
        if topic.startswith("@"):
            continue
        if not isinstance(partitions, Mapping):
            raise ValueError(f"{topic} has {partitions!r} instead of partitions")  # noqa: TRY004 callers expect one kind of error
        for partition, offset in partitions.items():
            number = _whole(partition, 0, _PARTITION_MAX, f"a partition of {topic}")
            found[TopicPartition(topic, number)] = _whole(offset, -_OFFSET_MAX, _OFFSET_MAX, f"{topic}-{number}")
    return found


def positions_from_text(text: str) -> Positions:
    """Reads positions from JSON text. Errors: ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a JSON object")  # noqa: TRY004 as above
    return positions_from_json(value)


def _whole(value: object, low: int, high: int, what: str) -> int:
    """Reads a whole number or its text, from `low` to `high`, both inclusive. Errors: ValueError."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_text = isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value) is not None
    if not (is_number or is_text) or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise ValueError(f"{value!r} is not a number for {what}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def rate_limited(
    start: Mapping[TopicPartition, Offset], latest: Mapping[TopicPartition, Offset], row_count_max: int
) -> Positions:
    """Returns positions between `start` and `latest`, with about `row_count_max` offsets after `start`.

    The share of each partition is proportional to its size, and at least one. `start` has every partition of
    `latest`. Source: KafkaMicroBatchStream.rateLimit.
    """
    sizes = {partition: until - start[partition] for partition, until in latest.items() if until > start[partition]}
    total = sum(sizes.values())
    if total <= row_count_max:
        return dict(latest)
    limited = dict(latest)
    for partition, size in sizes.items():
        limited[partition] = min(latest[partition], start[partition] + max(row_count_max * size // total, 1))
    return limited


def split(ranges: Iterable[ReadRange], partitions_min: int | None, rows_max: int | None) -> list[ReadRange]:
    """Cuts the ranges so that there are about `partitions_min` of them and none is larger than `rows_max`.

    Small ranges stay whole, large ones are cut in proportion to their sizes, empty ones are dropped. In order.
    Source: KafkaOffsetRangeCalculator.getRanges.
    """
    whole = sorted(one for one in ranges if one.size > 0)
    if rows_max is not None:
        whole = [piece for one in whole for piece in _cut(one, math.ceil(one.size / rows_max))]
    if partitions_min is None or len(whole) >= partitions_min:
        return whole
    total = sum(one.size for one in whole)
    small = [one for one in whole if _share(one.size, total, partitions_min) == 1]
    large = [one for one in whole if _share(one.size, total, partitions_min) != 1]
    large_total, large_min = sum(one.size for one in large), max(partitions_min - len(small), 1)
    return sorted([*small, *(piece for one in large for piece in _cut(one, _share(one.size, large_total, large_min)))])


def _share(size: int, total: int, count: int) -> int:
    """Returns how many of `count` pieces a range of `size` out of `total` gets; halves are rounded up, as in Java."""
    return max(math.floor(size / total * count + 0.5), 1)


def _cut(whole: ReadRange, count: int) -> list[ReadRange]:
    """Cuts a range into `count` pieces of about the same size; into fewer if it has fewer offsets."""
    pieces = []
    start = whole.start
    for index in range(count):
        size = (whole.until - start) // (count - index)
        if size:
            pieces.append(ReadRange(whole.partition, start, start + size))
            start += size
    return pieces
