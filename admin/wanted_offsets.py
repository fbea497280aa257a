"""Parses partitions, times and offsets that people write. It is strict: a typing error must not delete anything.

>>> parse_partitions("flights:0,2-4")
('flights', [0, 2, 3, 4])
>>> parse_partitions("flights")
('flights', None)
>>> parse_time("2026-11-01T00:00:00Z"), parse_time("1793491200000")
(1793491200000, 1793491200000)
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from lowtide.admin.deletion import OFFSET_MAX, TO_HIGH_WATERMARK

PARTITIONS_MAX: Final = 1_000_000
"""In one range."""

SECONDS_UNTIL: Final = 100_000_000_000
"""Lower numbers would be times before 1973; most likely they are seconds."""

END: Final = "end"
"""Stands for the high watermark."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")


def parse_partitions(text: str) -> tuple[str, list[int] | None]:
    """Reads `topic` or `topic:0,2-4` into the topic and its sorted partitions, or None for all. Errors: ValueError."""
    topic, colon, listed = text.partition(":")
    if not _TOPIC.fullmatch(topic):
        allowed = "it must have 1 to 249 letters, digits, dots, underscores and minus signs"
        raise ValueError(f"{topic!r} is not a topic name: {allowed}")
    if not colon:
        return topic, None
    found: set[int] = set()
    for part in listed.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not first <= last < 1 << 31 or last - first >= PARTITIONS_MAX:
            raise ValueError(f"{part!r} in {text!r} is not a partition: write numbers and ranges, as in {topic}:0,2-4")
        found.update(range(first, last + 1))
    return topic, sorted(found)


def parse_time(text: str) -> int:
    """Reads milliseconds since 1970, as a number or in ISO 8601 with a time zone. Errors: ValueError."""
    if text.isascii() and text.isdigit():
        if len(text) > len(str(OFFSET_MAX)) or not SECONDS_UNTIL <= int(text) <= OFFSET_MAX:
            raise ValueError(f"{text} is not a time in milliseconds since 1970: today's have 13 digits")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write ISO 8601, as in 2026-11-01T12:00:00Z, or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: end it with Z for UTC, or with an offset such as +02:00")
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError(f"{text!r} is before 1970")
    return milliseconds


def parse_offset(text: str) -> int:
    """Reads an offset, or -1 for `end`. Errors: ValueError."""
    if text == END:
        return TO_HIGH_WATERMARK
    if not text.isascii() or not text.isdigit() or len(text) > len(str(OFFSET_MAX)) or int(text) > OFFSET_MAX:
        allowed = f"a number from 0 on, the first offset that stays, or `{END}` for all committed records"
        raise ValueError(f"{text!r} is not an offset: write {allowed}")
    return int(text)
