"""Explains in words why a partition's oldest segment is kept, and when which retention rule deletes it.

Pure: `lowtide topics explain` and the console pass in the leader's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import UNKNOWN, RetainedPartition, RetentionRule

UNFREED: Final[Mapping[str, str]] = {
    "round": "freed within a second",
    "reader": "an answer is being sent from the file",
    "batch": "they share a batch with records that are kept",
    "block": "they are too few for a hole in the file",
    "file-system": "the file system makes no holes in files",
    "compacted": "the log is, or was, compacted",
    "switched-off": "lowtide.log.free.deleted is false",
}
"""Why deleted bytes still use disk space."""

_HOLDS: Final[Mapping[str, str]] = {
    "empty": "it is empty",
    "not-replicated": "not all in-sync replicas have it yet",
    "compacted": "its cleanup.policy has no delete, so only compaction removes records",
    "no-policy": "its cleanup.policy is empty, so only requests delete records",
    "held": "the topic is held (lowtide.hold.until)",
}
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_KILO: Final = 1000
_DECIMALS: Final = ((10, 2), (100, 1))
"""How many decimals values below a limit have."""


def waits_for(reason: str) -> str:
    """Returns why deleted bytes still use disk space; an unknown reason of another version as it is."""
    return UNFREED.get(reason, reason)


def sentence(row: RetainedPartition, now_ms: int) -> str:
    """Returns why a partition's oldest segment is kept, and when it is deleted. `now_ms` is the broker's time."""
    return "; ".join(_parts(row, now_ms))


def whole_sentences(row: RetainedPartition, now_ms: int) -> str:
    """Like `sentence`, as sentences of their own.

    >>> row = RetainedPartition(partition_index=0, error_code=0, is_active=True)
    >>> whole_sentences(row, 0)
    'The oldest segment is kept for ever: no rule is on that could delete it. It is the active segment.'
    """
    subjects = ["The oldest segment", *["It"] * len(_parts(row, now_ms))]
    return " ".join(
        f"{subject} {'is ' if part.startswith(('kept', 'not known')) else ''}{part.removeprefix('it ')}."
        for subject, part in zip(subjects, _parts(row, now_ms), strict=False)
    )


def _parts(row: RetainedPartition, now_ms: int) -> list[str]:
    if row.error_code != ErrorCode.NONE:
        return [f"not known: {ErrorCode(row.error_code).name}"]
    waits = [text for text in (_wait(rule, row.segment_end) for rule in row.rules) if text]
    if row.hold:
        waits.insert(0, _HOLDS.get(row.hold, row.hold))
    parts = [f"kept: {'; '.join(waits)}"] if waits else []
    times = [(rule.goes_at_ms, rule.reason) for rule in row.rules if rule.goes_at_ms != UNKNOWN]
    if times and row.hold != "empty":
        goes_at_ms, reason = min(times)
        # The first rule that is due deletes it.
        reason = next((each for at_ms, each in times if at_ms <= now_ms), reason)
        after = "" if row.hold != "not-replicated" else " once they do"
        when = f"in {duration(goes_at_ms - now_ms)}" if goes_at_ms > now_ms else "at the next check"
        parts.append(f"goes {when} by {reason}{after}")
    if not row.rules and not row.hold:
        parts.append("kept for ever: no rule is on that could delete it")
    if row.is_active and row.hold != "empty":
        parts.append("it is the active segment, which is closed when it goes" if times else "it is the active segment")
    return parts


def _wait(rule: RetentionRule, end_offset: int) -> str:
    """Returns what a rule waits for besides time, or an empty text. `end_offset` is the segment's, exclusive."""
    if rule.goes_at_ms != UNKNOWN:
        return ""
    if rule.reason == "consumed":
        return _consumed(rule, end_offset)
    if rule.reason == "min-timestamp":
        return "not all of it is older than log.retention.min.timestamp"
    if rule.reason == "size":
        return f"the partition may grow by {size(rule.bytes_missing)} before it goes by size"
    return f"rule {rule.reason} keeps it"


def _consumed(rule: RetentionRule, end_offset: int) -> str:
    if rule.doubt is not None:
        return f"what the groups have consumed is not known ({rule.doubt})"
    if rule.consumed_offset >= end_offset:
        return "all groups have consumed it, and no group that may delete has committed"
    if rule.group_id is None:
        known = rule.consumed_offset != UNKNOWN
        return (
            f"a group is at offset {rule.consumed_offset} of {end_offset}"
            if known
            else "no group has committed an offset"
        )
    if rule.consumed_offset == UNKNOWN:
        return f"group {rule.group_id} has not committed an offset"
    return f"group {rule.group_id} is at offset {rule.consumed_offset} of {end_offset}"


def line(row: RetainedPartition, now_ms: int) -> str:
    """Returns a line about a partition."""
    if row.error_code != ErrorCode.NONE:
        return f"{row.partition_index}: {sentence(row, now_ms)}"
    end = row.segment_end - 1
    held = (
        f"offsets {row.segment_start} to {end}, {size(row.segment_bytes)}"
        if end >= row.segment_start
        else f"offset {row.segment_start} on"
    )
    whole = (
        f"{row.segment_count} segments, {size(row.size_bytes)}"
        if row.segment_count != 1
        else f"1 segment, {size(row.size_bytes)}"
    )
    below = (
        f" {size(row.unfreed_bytes)} are below the log start and not freed: {waits_for(row.unfreed_waits_for)}."
        if row.unfreed_bytes
        else ""
    )
    return (
        f"{row.partition_index}: {whole}, end {row.log_end_offset}; the oldest ({held}) {sentence(row, now_ms)}.{below}"
        f"{_erasing(row, now_ms)}"
    )


def _erasing(row: RetainedPartition, now_ms: int) -> str:
    """Returns a sentence about erasures whose records are still in files, or an empty text."""
    if not row.erasures_waiting:
        return ""
    erasures = "1 erasure" if row.erasures_waiting == 1 else f"{row.erasures_waiting} erasures"
    records = "1 record" if row.records_to_erase == 1 else f"{row.records_to_erase} records"
    has = "has" if row.erasures_waiting == 1 else "have"
    since = duration(now_ms - row.erasing_since_ms)
    return f" {erasures} of {records} {has} waited for {since} to leave the files: {row.erasing_waits_for}."


def as_value(row: RetainedPartition, now_ms: int) -> dict[str, Any]:
    """Returns a partition for JSON; unknown values are null."""
    error = ErrorCode(row.error_code)
    value: dict[str, Any] = {"partition": row.partition_index, "error": None if error == ErrorCode.NONE else error.name}
    if error != ErrorCode.NONE:
        return value
    rules = [
        {
            "reason": rule.reason,
            "goes_at_ms": known(rule.goes_at_ms),
            "bytes_missing": known(rule.bytes_missing),
            "group": rule.group_id,
            "consumed_offset": known(rule.consumed_offset),
            "doubt": rule.doubt,
        }
        for rule in row.rules
    ]
    return value | {
        "log_start_offset": row.log_start_offset,
        "high_watermark": row.high_watermark,
        "log_end_offset": row.log_end_offset,
        "segments": row.segment_count,
        "bytes": row.size_bytes,
        "live_bytes": row.size_bytes - row.unfreed_bytes,
        "unfreed": {"bytes": row.unfreed_bytes, "waits_for": row.unfreed_waits_for} if row.unfreed_bytes else None,
        "oldest_segment": {
            "first_offset": row.segment_start,
            "end_offset": row.segment_end,
            "bytes": row.segment_bytes,
            "active": row.is_active,
        },
        "hold": row.hold or None,
        "erasing": {
            "erasures": row.erasures_waiting,
            "records": row.records_to_erase,
            "since_ms": known(row.erasing_since_ms),
            "waits_for": row.erasing_waits_for,
        }
        if row.erasures_waiting
        else None,
        "rules": rules,
        "text": sentence(row, now_ms),
    }


def known(number: int) -> int | None:
    """Returns the number, or None for -1, which stands for unknown."""
    return None if number == UNKNOWN else number


def duration(ms: int) -> str:
    """Formats a time in its two largest units.

    >>> duration(3 * 3_600_000 + 12 * 60_000 + 5_000), duration(86_400_000), duration(400)
    ('3 h 12 min', '1 d', '1 s')
    """
    ms = max(ms, _KILO)
    for index, (name, unit_ms) in enumerate(_UNITS):
        if ms >= unit_ms:
            smaller, smaller_ms = _UNITS[min(index + 1, len(_UNITS) - 1)]
            rest = ms % unit_ms // smaller_ms
            return f"{ms // unit_ms} {name}" + (f" {rest} {smaller}" if rest and smaller != name else "")
    raise AssertionError(ms)


def size(count: int) -> str:
    """Formats a number of bytes with three digits.

    >>> size(999), size(1_234_567), size(20_000_000_000)
    ('999 B', '1.23 MB', '20.0 GB')
    """
    if count < _KILO:
        return f"{count} B"
    value, names = float(count), ("B", "kB", "MB", "GB", "TB", "PB", "EB")
    for name in names:
        if value < _KILO or name == names[-1]:
            decimals = next((count for limit, count in _DECIMALS if value < limit), None)
            return f"{value:.3g} {name}" if decimals is None else f"{value:.{decimals}f} {name}"
        value /= _KILO
    raise AssertionError(count)
