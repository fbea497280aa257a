"""The checks of group settings, on the broker and on single groups.

Source: Kafka's `GroupCoordinatorConfig`, `GroupConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.config.key import (
    ConfigError,
    ConfigKey,
    InvalidKeysError,
    Matching,
    OneOf,
    Range,
    Type,
    Value,
    number,
)
from lowtide.broker.config.keys_of_groups import (
    ASSIGNMENT_INTERVAL,
    DEAD_LETTER_TOPIC,
    DELIVERY_LIMIT,
    HEARTBEAT_INTERVAL,
    KEYS_OF_GROUPS,
    LOCK_DURATION,
    OFFSET_RESET,
    RECORD_LOCKS,
    SESSION_TIMEOUT,
    SHARE_ASSIGNMENT_INTERVAL,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_SESSION_TIMEOUT,
    STREAMS_ASSIGNMENT_INTERVAL,
    STREAMS_ASSIGNOR,
    STREAMS_HEARTBEAT_INTERVAL,
    STREAMS_OFFSET_INTERVAL,
    STREAMS_RACK_TAGS,
    STREAMS_SESSION_TIMEOUT,
    STREAMS_STANDBY_REPLICAS,
    STREAMS_WARMUP_REPLICAS,
)
from lowtide.broker.config.offset_reset import offset_reset_of
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

_KEYS: Final = {key.name: key for key in KEYS_OF_GROUPS}

_INT_DIGITS: Final = 10
"""Numbers with fewer digits fit into 32 bits."""

_BOUNDED: Final = {
    "consumer": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
    "share": (
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "assignment.interval.ms",
        "record.lock.duration.ms",
        "delivery.count.limit",
        "partition.max.record.locks",
    ),
    "streams": ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"),
}
"""The keys that have a minimum and a maximum, by kind of group."""

_OF_GROUPS: Final = (
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    ASSIGNMENT_INTERVAL,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_SESSION_TIMEOUT,
    SHARE_ASSIGNMENT_INTERVAL,
    LOCK_DURATION,
    DELIVERY_LIMIT,
    RECORD_LOCKS,
    STREAMS_HEARTBEAT_INTERVAL,
    STREAMS_SESSION_TIMEOUT,
    STREAMS_ASSIGNMENT_INTERVAL,
)
"""The keys of groups in the order of Kafka's checks."""


_HALF_BOUNDED: Final = (
    (STREAMS_STANDBY_REPLICAS, "max", "group.streams.max.standby.replicas"),
    (STREAMS_OFFSET_INTERVAL, "min", "group.streams.min.task.offset.interval.ms"),
    (STREAMS_WARMUP_REPLICAS, "max", "group.streams.max.warmup.replicas"),
)
"""The keys that have a minimum or a maximum only."""


def check_groups(values: Mapping[str, Value]) -> None:
    """Checks minima, maxima, heartbeat intervals against session timeouts, and that there is an assignor.

    Errors: InvalidKeysError.
    """
    for kind, names in _BOUNDED.items():
        for name in names:
            key, low, high = f"group.{kind}.{name}", f"group.{kind}.min.{name}", f"group.{kind}.max.{name}"
            value, least, most = number(values[key]), number(values[low]), number(values[high])
            if not least <= value <= most:
                message = f"{key}={value} is invalid: allowed is from {low}={least} to {high}={most}"
                raise InvalidKeysError(message, key, low, high)
        heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
        if number(values[heartbeat]) >= number(values[session]):
            message = f"{heartbeat}={values[heartbeat]} is invalid: allowed is less than {session}={values[session]}"
            raise InvalidKeysError(message, heartbeat, session)
    assignors = "group.consumer.assignors"
    if not values[assignors]:
        raise InvalidKeysError(f"{assignors} is empty: allowed is at least one of range, uniform", assignors)


def validate_group_configs(broker: Mapping[str, Value], wanted: Mapping[str, str]) -> dict[str, str] | Refusal:
    """Checks the settings of a group, each alone and together with the broker's.

    Returns them as they are stored. Refusals: INVALID_CONFIG, in the order and with the messages of Kafka's
    `GroupConfig.validate`.
    """
    for name in wanted:
        if name not in _KEYS:
            return Refusal(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
    values: dict[str, Value] = {name: broker[key.broker_key] if key.broker_key else None for name, key in _KEYS.items()}
    for name, text in wanted.items():
        value = _read(name, text)
        if isinstance(value, Refusal):
            return value
        values[name] = value
    message = _check_tags(wanted.get(STREAMS_RACK_TAGS, "")) or _check_limits(values, broker, wanted)
    if message:
        return Refusal(ErrorCode.INVALID_CONFIG, message)
    return {name: _kept(values[name]) for name in wanted}


def _check_tags(text: str) -> str:
    """Checks that no tag is empty or listed twice; without tags the text is empty."""
    tags = [tag.strip() for tag in text.split(",")]
    if len(tags) > 1 and "" in tags:
        return f"Configuration '{STREAMS_RACK_TAGS}' values must not be empty."
    return f"{STREAMS_RACK_TAGS} must not contain duplicate tag keys." if len({*tags}) < len(tags) else ""


def _check_limits(values: Mapping[str, Value], broker: Mapping[str, Value], wanted: Mapping[str, str]) -> str:
    """Checks the values of a group against those of the broker, and against each other."""
    for name in _OF_GROUPS:
        kind, _, rest = name.partition(".")
        low, high = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
        least, most = number(broker[low]), number(broker[high])
        if not least <= number(values[name]) <= most:
            return f"{name} must be in the range {least} to {most} inclusive."
    for name, side, limit in _HALF_BOUNDED:
        value, bound = number(values[name]), number(broker[limit])
        if name in wanted and (value > bound if side == "max" else value < bound):
            words = "less" if side == "max" else "greater"
            return f"{name} must be {words} than or equal to {bound}"
    for session, heartbeat in (
        (SESSION_TIMEOUT, HEARTBEAT_INTERVAL),
        (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL),
        (STREAMS_SESSION_TIMEOUT, STREAMS_HEARTBEAT_INTERVAL),
    ):
        if number(values[session]) <= number(values[heartbeat]):
            return f"{session} must be greater than {heartbeat}"
    return ""


def _kept(value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(name: str, text: str) -> Value | Refusal:
    key, trimmed = _KEYS[name], text.strip()
    try:
        value = key.parse(trimmed)
    except ConfigError:
        return Refusal(ErrorCode.INVALID_CONFIG, _invalid(key, trimmed))
    if name == OFFSET_RESET and offset_reset_of(trimmed) is None:
        return Refusal(ErrorCode.INVALID_CONFIG, _invalid(key, trimmed))
    if name == DEAD_LETTER_TOPIC and trimmed.startswith("__"):
        return Refusal(ErrorCode.INVALID_CONFIG, f"{name}: DLQ topic name must not start with '__'")
    return value


def _invalid(key: ConfigKey, text: str) -> str:
    """Returns Kafka's message about an invalid value."""
    if key.name == STREAMS_ASSIGNOR:
        known = ", ".join(key.allowed.values) if isinstance(key.allowed, OneOf) else ""
        return f"{key.name} '{text}' is not a registered task assignor. Registered assignors are: [{known}]."
    return f"Invalid value {text} for configuration {key.name}: {_because(key, text)}"


def _because(key: ConfigKey, text: str) -> str:
    if isinstance(key.allowed, Range) and text.removeprefix("-").isdecimal() and len(text) < _INT_DIGITS:
        return f"Value must be {key.allowed.describe().removeprefix('of ')}"
    if isinstance(key.allowed, OneOf):
        return f"String must be one of: {', '.join(key.allowed.values)}"
    if isinstance(key.allowed, Matching):
        return (
            f"Invalid value `{text}` for configuration {key.name}. The value must be either 'earliest', 'latest' or of "
            f"the format 'by_duration:<PnDTnHnMn.nS>'."
        )
    if key.type is Type.BOOLEAN:
        return "Expected value to be either true or false"
    return f"Not a number of type {key.type.name}"
