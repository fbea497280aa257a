"""Values of `share.auto.offset.reset`: where a share group starts in a partition without a start offset.

Source: KIP-932; Kafka's `ShareGroupAutoOffsetResetStrategy`, Java's `Duration.parse`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from lowtide.broker.config.keys_of_groups import BY_DURATION

_DURATION: Final = re.compile(
    r"([-+]?)P(?:([-+]?\d{1,9})D)?"
    r"(?:T(?=.)(?:([-+]?\d{1,9})H)?(?:([-+]?\d{1,12})M)?(?:([-+]?\d{1,15})(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_UNITS_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000)


class OffsetReset(msgspec.Struct, frozen=True):
    """Where a group without a start offset starts."""

    is_earliest: bool = False
    """At the log start offset; otherwise at the high watermark, unless `duration_ms` is set."""
    duration_ms: int | None = None
    """At the first record that is at most this old, or at the high watermark if there is none (KIP-1106)."""


LATEST: Final = OffsetReset()


def duration_ms_of(text: str) -> int | None:
    """Parses an ISO-8601 duration as Java does, in milliseconds; returns None if it is invalid or negative.

    >>> duration_ms_of("PT1H30M"), duration_ms_of("P1DT0.5S"), duration_ms_of("-PT1S"), duration_ms_of("1h")
    (5400000, 86400500, None, None)
    """
    match = _DURATION.fullmatch(text)
    if match is None or all(part is None for part in match.groups()[1:5]):
        return None
    sign, *parts, fraction = match.groups()
    total = sum(int(part) * unit for part, unit in zip(parts, _UNITS_MS, strict=True) if part is not None)
    if fraction:
        milliseconds = int(fraction.ljust(9, "0")) // 1_000_000
        total += -milliseconds if (parts[3] or "").startswith("-") else milliseconds
    total = -total if sign == "-" else total
    return total if total >= 0 else None


def offset_reset_of(text: str) -> OffsetReset | None:
    """Parses a value of `share.auto.offset.reset`; returns None if it is invalid."""
    if text == "latest":
        return LATEST
    if text == "earliest":
        return OffsetReset(is_earliest=True)
    duration_ms = duration_ms_of(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None
    return None if duration_ms is None else OffsetReset(duration_ms=duration_ms)
