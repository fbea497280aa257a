"""What is set for the share partitions of one group: on the group itself, else on the broker.

Guards: no number is out of the broker's bounds: what was set before they were drawn closer counts as the bound. What another version may
have let through and makes no sense here isn't set. Pure.

Source: KIP-932, KIP-1240; Kafka's `GroupConfig`, `ShareGroupAutoOffsetResetStrategy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from lowtide.broker.config.key import Value, number
from lowtide.broker.partitions.share.share_values import ShareLimits

OFFSET_RESET: Final = "share.auto.offset.reset"
ISOLATION_LEVEL: Final = "share.isolation.level"
LOCK_DURATION: Final = "share.record.lock.duration.ms"
DELIVERY_LIMIT: Final = "share.delivery.count.limit"
RECORD_LOCKS: Final = "share.partition.max.record.locks"
RENEW: Final = "share.renew.acknowledge.enable"

BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(
    r"([-+]?)P(?:([-+]?\d{1,9})D)?"
    r"(?:T(?=.)(?:([-+]?\d{1,9})H)?(?:([-+]?\d{1,12})M)?(?:([-+]?\d{1,15})(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_UNITS_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000)
_BOUNDED: Final = (LOCK_DURATION, DELIVERY_LIMIT, RECORD_LOCKS)


class OffsetReset(msgspec.Struct, frozen=True):
    """Where a group begins that has no start offset yet."""

    is_earliest: bool = False
    """At the log start; else at the high watermark, unless `duration_ms` says otherwise."""
    duration_ms: int | None = None
    """At the first record that is no older; at the high watermark where there is none (KIP-1106)."""


LATEST: Final = OffsetReset()


class ShareRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for a group."""

    limits: ShareLimits = ShareLimits()
    reset: OffsetReset = LATEST
    reads_committed: bool = False
    """Whether only committed records are delivered: `share.isolation.level`."""
    renews: bool = True
    """Whether members may ask for more time (KIP-1222)."""


def duration_ms_of(text: str) -> int | None:
    """The milliseconds of an ISO-8601 duration as Java reads it; None for what is none, and for a negative one.

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
    """What a value of `share.auto.offset.reset` says; None for one that isn't allowed."""
    if text == "latest":
        return LATEST
    if text == "earliest":
        return OffsetReset(is_earliest=True)
    duration_ms = duration_ms_of(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None
    return None if duration_ms is None else OffsetReset(duration_ms=duration_ms)


def share_rules(broker: Mapping[str, Value], own: Mapping[str, str]) -> ShareRules:
    """What is in force, out of a broker's values and those that are set on a group."""
    lock_ms, deliveries, locks = (_bounded(broker, own, name) for name in _BOUNDED)
    return ShareRules(
        limits=ShareLimits(delivery_count_limit=deliveries, lock_duration_ms=lock_ms, record_locks_max=locks),
        reset=offset_reset_of(own.get(OFFSET_RESET, "")) or LATEST,
        reads_committed=own.get(ISOLATION_LEVEL) == "read_committed",
        renews=own.get(RENEW) != "false",
    )


def _bounded(broker: Mapping[str, Value], own: Mapping[str, str], name: str) -> int:
    rest, text = name.removeprefix("share."), own.get(name)
    if text is None or not text.isdecimal():
        return number(broker[f"group.share.{rest}"])
    return min(max(int(text), number(broker[f"group.share.min.{rest}"])), number(broker[f"group.share.max.{rest}"]))
