"""The retention time of consumed records (KIP-68), which is never longer than the retention of the topic.

The first of milliseconds, minutes and hours that is set wins, and a topic's value wins over the broker's. A value above
`retention.ms` is refused if the topic or the broker sets both. Otherwise it is reduced to `retention.ms`: when a
default was lowered later, or when the topic keeps records for less time than the broker's default. Decisions only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from lowtide.broker.config.key import InvalidKeysError, Value

TOPIC_NAMES: Final = ("retention.commitoffset.ms", "retention.commitoffset.minutes", "retention.commitoffset.hours")
BROKER_NAMES: Final = tuple(f"log.{name}" for name in TOPIC_NAMES)
ENABLED: Final = "log.retention.commitoffset.enable"
NEVER: Final = -1

_RETENTION_NAMES: Final = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_UNITS_MS: Final = (1, 60_000, 3_600_000)
_FOREVER_MS: Final = -1


def broker_consumed_ms(values: Mapping[str, Value]) -> int:
    """Returns the broker's retention time of consumed records; -1 if they are not deleted early."""
    found = _first_set(_set_ones(values), BROKER_NAMES)
    return NEVER if found is None else found[1]


def is_trimmed_by_commits(values: Mapping[str, Value], of_broker: Value, own: Collection[str]) -> bool:
    """Returns whether commits can delete records of a topic.

    `values` are the broker's, `of_broker` is its default time, and `own` has the names of the keys that the topic sets.
    """
    return values[ENABLED] is True and (of_broker != NEVER or any(name in own for name in TOPIC_NAMES))


def check_broker(values: Mapping[str, Value], retention_ms: int) -> None:
    """Checks that the broker keeps consumed records no longer than others. Errors: InvalidKeysError."""
    found = _first_set(_set_ones(values), BROKER_NAMES)
    if found is not None and _is_too_long(found[1], retention_ms):
        name, consumed_ms = found
        limit = next(each for each in _RETENTION_NAMES if values[each] is not None)
        said, allowed = _said(name, values[name], consumed_ms), _said(limit, values[limit], retention_ms)
        raise InvalidKeysError(f"{said} is invalid: allowed is at most {allowed}", name, *_RETENTION_NAMES)


def fault_of_topic(own: Mapping[str, Value], retention_ms: int) -> str | None:
    """Returns an error message for the topic's own keys, or None. `retention_ms` is the topic's effective retention."""
    found = _first_set(own, TOPIC_NAMES)
    if found is None or not _is_too_long(found[1], retention_ms):
        return None
    name, consumed_ms = found
    return f"{_said(name, own[name], consumed_ms)} is invalid: allowed is at most retention.ms={retention_ms}."


def topic_consumed_ms(own: Mapping[str, Value], of_broker: int, retention_ms: int) -> int:
    """Returns the effective retention time of a topic's consumed records, -1 for never."""
    found = _first_set(own, TOPIC_NAMES)
    consumed_ms = of_broker if found is None else found[1]
    return retention_ms if _is_too_long(consumed_ms, retention_ms) else consumed_ms


def _said(name: str, value: Value, value_ms: int) -> str:
    """Formats a key with its value, and its value in milliseconds if the unit differs."""
    return f"{name}={value}" if name.endswith(".ms") else f"{name}={value} ({value_ms} ms)"


def _set_ones(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Returns the keys that are set: for a broker -1 means not set, while a topic can set -1."""
    return {name: values[name] for name in BROKER_NAMES if values[name] != NEVER}


def _first_set(values: Mapping[str, Value], names: tuple[str, ...]) -> tuple[str, int] | None:
    for name, unit_ms in zip(names, _UNITS_MS, strict=True):
        value = values.get(name)
        if value is not None:
            assert isinstance(value, int), name
            return name, value * unit_ms if value >= 0 else NEVER
    return None


def _is_too_long(consumed_ms: int, retention_ms: int) -> bool:
    return retention_ms != _FOREVER_MS and consumed_ms > retention_ms
