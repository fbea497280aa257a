"""What people write to name partitions, times and offsets, read strictly: a slip must not delete what wasn't meant.

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

PARTITIONS_MAX: Final = 1_000_000
"""In one range; a range of more is a slip."""

SECONDS_UNTIL: Final = 100_000_000_000
"""Numbers below it are times of 1973 in milliseconds, and far likelier meant as seconds."""

OFFSET_MAX: Final = 2**63 - 1
END: Final = "end"
"""In place of an offset: everything that is committed."""

TO_HIGH_WATERMARK: Final = -1

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")


def parse_partitions(text: str) -> tuple[str, list[int] | None]:
    """`topic`, or `topic:0,2-4`: the topic and its partitions in rising order; None for all.

    Errors: ValueError, a sentence.
    """
    topic, colon, listed = text.partition(":")
    if not _TOPIC.fullmatch(topic):
        message = f"{topic!r} is no name of a topic: allowed are up to 249 letters, digits, dots, underscores and minus"
        raise ValueError(message)
    if not colon:
        return topic, None
    found: set[int] = set()
    for part in listed.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not first <= last < 1 << 31 or last - first >= PARTITIONS_MAX:
            message = f"{part!r} in {text!r} is no partition: allowed are numbers and ranges, as in {topic}:0,2-4"
            raise ValueError(message)
        found.update(range(first, last + 1))
    return topic, sorted(found)


def parse_time(text: str) -> int:
    """A moment in milliseconds since 1970: as that number, or in ISO 8601 with a time zone.

    Errors: ValueError, a sentence.
    """
    if text.isascii() and text.isdigit():
        if len(text) > len(str(OFFSET_MAX)) or not SECONDS_UNTIL <= int(text) <= OFFSET_MAX:
            message = f"{text} is no time in milliseconds since 1970 (of now it has 13 digits)"
            raise ValueError(message)
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no time: allowed are ISO 8601, as in 2026-11-01T12:00:00Z, and milliseconds since 1970"
        raise ValueError(message) from None
    if moment.tzinfo is None:
        message = f"{text!r} has no time zone: end it with Z for UTC, or with one as +02:00"
        raise ValueError(message)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        message = f"{text!r} is before 1970"
        raise ValueError(message)
    return milliseconds


def parse_offset(text: str) -> int:
    """An offset, or -1 for `end`. Errors: ValueError, a sentence."""
    if text == END:
        return TO_HIGH_WATERMARK
    if not text.isascii() or not text.isdigit() or len(text) > len(str(OFFSET_MAX)) or int(text) > OFFSET_MAX:
        message = f"{text!r} is no offset: allowed is a number from 0 on, the first offset that stays, or `{END}` for all that is committed"
        raise ValueError(message)
    return int(text)
