"""The defaults of topics, from a broker's values.

Source: Kafka's LogConfig and KafkaConfig; keys of brokers differ from those of topics in unit and name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.config.consumed_retention import broker_consumed_ms, check_broker
from lowtide.broker.config.key import ConfigError, InvalidKeysError, Value, number, value_text
from lowtide.broker.config.keys_topics import TOPIC_KEYS

_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
LIKE_TOTAL: Final = -2
TOTALS_OF_LOCAL: Final = {
    "log.local.retention.ms": "log.retention.ms",
    "log.local.retention.bytes": "log.retention.bytes",
}
"""The keys for local storage, with the keys for the total."""


def topic_defaults(values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the values of a topic that sets nothing.

    Errors: InvalidKeysError if a broker's value is invalid for topics.
    """
    defaults: dict[str, Value] = {}
    for key in TOPIC_KEYS:
        defaults[key.name] = key.default_value if key.broker_key is None else values[key.broker_key]
    defaults["segment.ms"] = _first(values, ("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS))
    defaults["segment.jitter.ms"] = _first(values, ("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS))
    defaults["flush.ms"] = _first(values, ("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))
    defaults["retention.ms"] = _retention_ms(values)
    defaults["retention.commitoffset.ms"] = broker_consumed_ms(values)
    _check_defaults(defaults)
    return defaults


def check_consumed_retention(values: Mapping[str, Value], defaults: Mapping[str, Value]) -> None:
    """Checks that consumed records are kept no longer than others. Errors: InvalidKeysError."""
    check_broker(values, number(defaults["retention.ms"]))


def check_local_retention(values: Mapping[str, Value], defaults: Mapping[str, Value]) -> None:
    """Checks that the local part of a tiered log is not larger than the total.

    Source: Kafka's DynamicLogConfig, which checks it when one of these keys changes, but not at startup. Errors:
    InvalidKeysError.
    """
    for name, total_name in TOTALS_OF_LOCAL.items():
        local, total = number(values[name]), number(defaults[total_name.removeprefix("log.")])
        if total >= 0 and local != LIKE_TOTAL and not 0 <= local <= total:
            message = f"{name}={local} is invalid: allowed is at most {total_name}={total}, or {LIKE_TOTAL}"
            raise InvalidKeysError(message, name, total_name)


def _retention_ms(values: Mapping[str, Value]) -> int:
    """Returns the broker's retention time; any negative number becomes -1, forever.

    Source: Kafka's KafkaConfig, which refuses 0 here.
    """
    names = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    retention_ms = _first(values, (names[0], 1), (names[1], _MINUTE_MS), (names[2], _HOUR_MS))
    if retention_ms == 0:
        name = next(each for each in names if values[each] is not None)
        raise InvalidKeysError(f"{name}=0 is invalid: allowed is -1, or at least 1", name)
    return max(-1, retention_ms)


def _check_defaults(defaults: Mapping[str, Value]) -> None:
    """Checks the defaults: a broker's key can allow values that the topic's key does not."""
    for key in TOPIC_KEYS:
        if key.broker_key is None or defaults[key.name] is None:
            continue
        try:
            key.parse(value_text(defaults[key.name]))
        except ConfigError:
            text = value_text(defaults[key.name])
            message = f"{key.broker_key}={text} is invalid: allowed is {key.describe_allowed()}"
            raise InvalidKeysError(message, key.broker_key) from None


def _first(values: Mapping[str, Value], *candidates: tuple[str, int]) -> int:
    """Returns the first key that is set, times its unit."""
    for name, unit in candidates:
        value = values[name]
        if value is not None:
            return number(value) * unit
    raise AssertionError(candidates)
