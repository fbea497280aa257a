"""How long consumed records are kept (KIP-68): three keys of a topic or a broker, and never longer than records are kept at all.

The first of milliseconds, minutes and hours that is set counts, a topic's before a broker's. Longer than `retention.ms` is refused, where a
topic says it and where a broker's own keys say it of each other. What a topic hasn't asked for itself is shortened: where a default is
lowered under it, or where the topic keeps its records for less than a broker's default says. Decisions only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from lowtide.broker.config.key import ImpossibleTogetherError, Value

TOPIC_NAMES: Final = ("retention.commitoffset.ms", "retention.commitoffset.minutes", "retention.commitoffset.hours")
BROKER_NAMES: Final = tuple(f"log.{name}" for name in TOPIC_NAMES)
ENABLED: Final = "log.retention.commitoffset.enable"
NEVER: Final = -1

_RETENTION_NAMES: Final = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_UNITS_MS: Final = (1, 60_000, 3_600_000)
_FOREVER_MS: Final = -1


def broker_consumed_ms(values: Mapping[str, Value]) -> int:
    """A broker's time for consumed records; -1 where it has none, so that nothing goes for being consumed."""
    found = _first_set(_set_ones(values), BROKER_NAMES)
    return NEVER if found is None else found[1]


def is_trimmed_by_commits(values: Mapping[str, Value], of_broker: Value, own: Collection[str]) -> bool:
    """Whether commits for a topic may let its records go, by a broker's `values`, its default, and the names of what the topic sets."""
    return values[ENABLED] is True and (of_broker != NEVER or any(name in own for name in TOPIC_NAMES))


def check_broker(values: Mapping[str, Value], retention_ms: int) -> None:
    """Errors: ImpossibleTogetherError where a broker's keys let consumed records stay longer than all records may."""
    found = _first_set(_set_ones(values), BROKER_NAMES)
    if found is not None and _is_too_long(found[1], retention_ms):
        name, consumed_ms = found
        limit = next(each for each in _RETENTION_NAMES if values[each] is not None)
        said, allowed = _said(name, values[name], consumed_ms), _said(limit, values[limit], retention_ms)
        message = f"{said} is not possible: allowed is at most {allowed}"
        raise ImpossibleTogetherError(message, name, *_RETENTION_NAMES)


def fault_of_topic(own: Mapping[str, Value], retention_ms: int) -> str | None:
    """What is wrong with the keys that a topic sets itself, in a sentence; `retention_ms` is what is in force for it."""
    found = _first_set(own, TOPIC_NAMES)
    if found is None or not _is_too_long(found[1], retention_ms):
        return None
    name, consumed_ms = found
    return f"{_said(name, own[name], consumed_ms)} is not possible: allowed is at most retention.ms={retention_ms}."


def topic_consumed_ms(own: Mapping[str, Value], of_broker: int, retention_ms: int) -> int:
    """The time that is in force for a topic, -1 for never, by the rules above."""
    found = _first_set(own, TOPIC_NAMES)
    consumed_ms = of_broker if found is None else found[1]
    return retention_ms if _is_too_long(consumed_ms, retention_ms) else consumed_ms


def _said(name: str, value: Value, value_ms: int) -> str:
    """A key with its value, and what that is in milliseconds if it is in another unit."""
    return f"{name}={value}" if name.endswith(".ms") else f"{name}={value} ({value_ms} ms)"


def _set_ones(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """A broker's -1 stands for a key that isn't set; a topic can say it to have no such time."""
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
