"""A topic's configuration: what clients can set, the broker's defaults, and the `LogConfig` of its logs.

Guards: the metadata contain only values that were checked here, so a log never gets an invalid value. Source: Kafka's
LogConfig, and the answers of Kafka 4.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.consumed_retention import BROKER_NAMES, fault_of_topic, topic_consumed_ms
from lowtide.broker.config.key import ConfigError, ConfigKey, Value, number, value_text
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from lowtide.broker.config.sources import DYNAMIC_BROKER, DYNAMIC_DEFAULT
from lowtide.protocol.config_values import ConfigSource
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log.log_values import LogConfig

TOPIC_KEYS_BY_NAME: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in TOPIC_KEYS})


class TopicConfigFault(NamedTuple):
    """Why a topic's configuration is refused: the error code and message for the client."""

    error_code: ErrorCode
    message: str


def validate_topic_config(name: str, value: str | None) -> str | TopicConfigFault:
    """Checks one key that a client sets.

    Returns the value as it is stored: trimmed, lists joined by commas.
    """
    key = TOPIC_KEYS_BY_NAME.get(name)
    if key is None:
        return TopicConfigFault(ErrorCode.INVALID_CONFIG, f"{name} is not a topic configuration key.")
    if value is None:
        return TopicConfigFault(ErrorCode.INVALID_CONFIG, f"{name} has no value: allowed is {key.describe_allowed()}.")
    try:
        return value_text(key.parse(value))
    except ConfigError as error:
        return TopicConfigFault(ErrorCode.INVALID_CONFIG, f"{error}.")


def validate_topic_configs(
    broker: BrokerConfig, overrides: Mapping[str, str | None]
) -> dict[str, str] | TopicConfigFault:
    """Checks a topic's keys, each alone and together. Returns them as they are stored, or the first fault."""
    kept: dict[str, str] = {}
    for name, value in overrides.items():
        checked = validate_topic_config(name, value)
        if isinstance(checked, TopicConfigFault):
            return checked
        kept[name] = checked
    values = _effective(broker, kept)
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(least, int), least
    assert isinstance(most, int), most
    if least > most:
        message = f"min.compaction.lag.ms={least} is invalid: allowed is at most max.compaction.lag.ms={most}."
        return TopicConfigFault(ErrorCode.INVALID_CONFIG, message)
    fault = fault_of_topic(_own(kept), number(values["retention.ms"]))
    return kept if fault is None else TopicConfigFault(ErrorCode.INVALID_CONFIG, fault)


def log_config(broker: BrokerConfig, topic_overrides: Mapping[str, str]) -> LogConfig:
    """Returns the configuration of a topic's logs: its own keys, or else the broker's.

    `topic_overrides` passed `validate_topic_configs`. Unknown keys, from a newer broker, are ignored.
    """
    values = _effective(broker, topic_overrides)
    policy = _texts(values["cleanup.policy"])
    segment_bytes = values["internal.segment.bytes"] or values["segment.bytes"]
    retention_ms = number(values["retention.ms"])
    return LogConfig(
        segment_bytes=number(segment_bytes),
        segment_ms=_segment_ms(values, policy),
        segment_jitter_ms=number(values["segment.jitter.ms"]),
        segment_index_bytes=number(values["segment.index.bytes"]),
        index_interval_bytes=number(values["index.interval.bytes"]),
        max_message_bytes=number(values["max.message.bytes"]),
        max_decompressed_message_bytes=number(values["max.decompressed.message.bytes"]),
        message_timestamp_type=value_text(values["message.timestamp.type"]),
        message_timestamp_before_max_ms=number(values["message.timestamp.before.max.ms"]),
        message_timestamp_after_max_ms=number(values["message.timestamp.after.max.ms"]),
        cleanup_policy=frozenset(policy),
        compression_type=value_text(values["compression.type"]),
        flush_messages=number(values["flush.messages"]),
        flush_ms=number(values["flush.ms"]),
        file_delete_delay_ms=number(values["file.delete.delay.ms"]),
        preallocate=values["preallocate"] is True,
        retention_ms=retention_ms,
        retention_bytes=number(values["retention.bytes"]),
        log_retention_min_timestamp=number(values["log.retention.min.timestamp"]),
        retention_commitoffset_ms=topic_consumed_ms(
            _own(topic_overrides), number(broker.topic_defaults["retention.commitoffset.ms"]), retention_ms
        ),
        lowtide_retention_commitoffset_groups=_texts(values["lowtide.retention.commitoffset.groups"]),
        min_insync_replicas=number(values["min.insync.replicas"]),
        delete_retention_ms=number(values["delete.retention.ms"]),
        min_cleanable_dirty_ratio=float(value_text(values["min.cleanable.dirty.ratio"])),
        min_compaction_lag_ms=number(values["min.compaction.lag.ms"]),
        max_compaction_lag_ms=number(values["max.compaction.lag.ms"]),
        lowtide_delete_erase=values["lowtide.delete.erase"] is True,
        lowtide_erasure_key_filter=value_text(values["lowtide.erasure.key.filter"]),
        lowtide_hold_reason=value_text(values["lowtide.hold.reason"]),
        lowtide_hold_until=number(values["lowtide.hold.until"]),
    )


def _texts(value: Value) -> tuple[str, ...]:
    assert isinstance(value, tuple), value
    return value


def _segment_ms(values: Mapping[str, Value], policy: tuple[str, ...]) -> int:
    """Returns the time after which a segment is rolled: records are only compacted after that (KIP-354)."""
    segment_ms = number(values["segment.ms"])
    return min(segment_ms, number(values["max.compaction.lag.ms"])) if "compact" in policy else segment_ms


_SOURCES: Final = {DYNAMIC_BROKER: ConfigSource.DYNAMIC_BROKER, DYNAMIC_DEFAULT: ConfigSource.DYNAMIC_DEFAULT_BROKER}

_SYNONYMS: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    BROKER_NAMES,
)
BROKER_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {name: names for names in _SYNONYMS for name in names if name != "log.flush.scheduler.interval.ms"}
)
"""Broker keys with the same meaning, strongest first.

(The flush scheduler's interval is a default for another key, not a synonym.)
"""


class TopicConfigEntry(NamedTuple):
    """The effective value of a topic's key."""

    name: str
    value: str | None
    source: ConfigSource


def describe_topic_configs(broker: BrokerConfig, overrides: Mapping[str, str]) -> list[TopicConfigEntry]:
    """Returns every key of a topic that sets `overrides`, with its source, as CreateTopics answers it.

    Any synonym counts as a source here. DescribeConfigs uses only the first (`described`): with `log.roll.hours`,
    segment.ms comes from the broker here and from a default there, as in Kafka (`KafkaConfigSchema`, `ConfigHelper`).
    """
    entries = []
    for key in TOPIC_KEYS:
        if key.name in overrides:
            entries.append(TopicConfigEntry(key.name, overrides[key.name], ConfigSource.TOPIC))
        elif not key.internal:
            source = _source(broker, key.broker_key)
            entries.append(TopicConfigEntry(key.name, value_text(broker.topic_defaults[key.name]), source))
    return entries


def _source(broker: BrokerConfig, broker_key: str | None) -> ConfigSource:
    """Returns the source of a topic's default: that of the strongest broker key that is set."""
    names = () if broker_key is None else BROKER_SYNONYMS.get(broker_key, (broker_key,))
    given = next((broker.given[name] for name in names if name in broker.given), None)
    return ConfigSource.DEFAULT if given is None else _SOURCES.get(given.source, ConfigSource.STATIC_BROKER)


def _effective(broker: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    return {**broker.topic_defaults, **_own(overrides)}


def _own(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Parses the values of a topic. Values that only another version allows are ignored."""
    own: dict[str, Value] = {}
    for name, text in overrides.items():
        with contextlib.suppress(KeyError, ConfigError):
            own[name] = TOPIC_KEYS_BY_NAME[name].parse(text)
    return own
