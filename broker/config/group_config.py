"""What the keys about groups whose partitions the broker assigns say of each other: the broker's, and those of single groups.

Source: Kafka's `GroupCoordinatorConfig`, `GroupConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.config.key import ConfigError, ImpossibleTogetherError, Range, Value
from lowtide.broker.config.keys_of_groups import ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, KEYS_OF_GROUPS, NOT_SERVED, SESSION_TIMEOUT
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

_KEYS: Final = {key.name: key for key in KEYS_OF_GROUPS}

_INT_DIGITS: Final = 10
"""Numbers with fewer are 32 bits wide for sure."""

_BOUNDED: Final = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")


def check_consumer_groups(values: Mapping[str, Value]) -> None:
    """Each time lies within its bounds, and a member shows itself before it is given up; there is an assignor.

    Errors: ImpossibleTogetherError.
    """
    for name in _BOUNDED:
        key, low, high = f"group.consumer.{name}", f"group.consumer.min.{name}", f"group.consumer.max.{name}"
        value, least, most = _number(values, key), _number(values, low), _number(values, high)
        if not least <= value <= most:
            message = f"{key}={value} is not possible: allowed is from {low}={least} to {high}={most}"
            raise ImpossibleTogetherError(message, key, low, high)
    heartbeat, session = "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"
    if _number(values, heartbeat) >= _number(values, session):
        message = f"{heartbeat}={values[heartbeat]} is not possible: allowed is less than {session}={values[session]}"
        raise ImpossibleTogetherError(message, heartbeat, session)
    assignors = "group.consumer.assignors"
    if not values[assignors]:
        message = f"{assignors} is empty: allowed is at least one of range, uniform"
        raise ImpossibleTogetherError(message, assignors)


def validate_group_configs(broker: Mapping[str, Value], wanted: Mapping[str, str]) -> dict[str, str] | Refusal:
    """Check what is to be set on a group, each key and all of them together with what the broker says. Returns it as it is kept.

    Refusals: INVALID_CONFIG, in the order and with the sentences of Kafka's `GroupConfig.validate`.
    """
    for name in wanted:
        if name not in _KEYS:
            return Refusal(ErrorCode.INVALID_CONFIG, _why_not(name))
    values = {name: _number(broker, key.broker_key or "") for name, key in _KEYS.items()}
    for name, text in wanted.items():
        value = _read(name, text)
        if isinstance(value, Refusal):
            return value
        values[name] = value
    for name in (HEARTBEAT_INTERVAL, SESSION_TIMEOUT, ASSIGNMENT_INTERVAL):
        rest = name.removeprefix("consumer.")
        low, high = f"group.consumer.min.{rest}", f"group.consumer.max.{rest}"
        if values[name] < _number(broker, low):
            return Refusal(ErrorCode.INVALID_CONFIG, f"{name} must be greater than or equal to {low}")
        if values[name] > _number(broker, high):
            return Refusal(ErrorCode.INVALID_CONFIG, f"{name} must be less than or equal to {high}")
    if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        return Refusal(ErrorCode.INVALID_CONFIG, f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
    return {name: str(values[name]) for name in wanted}


def _why_not(name: str) -> str:
    kind, _, rest = name.partition(".")
    if rest in NOT_SERVED.get(kind, ()):
        return f"{name} would have no effect: this broker serves no {kind} groups"
    return f"Unknown group config name: {name}"


def _read(name: str, text: str) -> int | Refusal:
    key, trimmed = _KEYS[name], text.strip()
    try:
        value = key.parse(trimmed)
    except ConfigError:
        because = "Not a number of type INT"
        if isinstance(key.allowed, Range) and trimmed.removeprefix("-").isdecimal() and len(trimmed) < _INT_DIGITS:
            because = f"Value must be {key.allowed.describe().removeprefix('of ')}"
        return Refusal(ErrorCode.INVALID_CONFIG, f"Invalid value {trimmed} for configuration {name}: {because}")
    assert isinstance(value, int), name
    return value


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value
