"""A topic's configuration: what clients may set, what follows from the broker, and what the logs run on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from lowtide.broker.config.broker_config import ConfigError, load_config
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from lowtide.broker.config.topic_config import (
    TopicConfigFault,
    describe_topic_configs,
    log_config,
    validate_topic_config,
    validate_topic_configs,
)
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log.log_values import LogConfig

BROKER = load_config()


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("retention.bytes", "-5", "-5"),
        ("retention.ms", "-1", "-1"),
        ("max.message.bytes", "0", "0"),
        ("min.insync.replicas", "5", "5"),
        ("cleanup.policy", "", ""),
        ("cleanup.policy", "delete,delete", "delete"),
        ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
        ("min.cleanable.dirty.ratio", "0.0005", "5.0E-4"),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("segment.bytes", " 1048576 ", "1048576"),
        ("preallocate", "TRUE", "true"),
        ("internal.segment.bytes", "1000", "1000"),
    ],
)
def test_what_kafka_accepts_is_accepted(name: str, value: str, kept: str):
    """Some of it surprises; it is what Kafka 4.3 was seen to do. Values are kept in one form."""
    assert validate_topic_config(name, value) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("segment.bytes", "1048575"),  # KIP-1030
        ("cleanup.policy", "DELETE"),
        ("compression.type", "brotli"),
        ("min.insync.replicas", "0"),
        ("internal.segment.bytes", "0"),
        ("internal.segment.bytes", "-1"),
        ("segment.bytes", None),
        ("num.partitions", "3"),
        ("log.retention.ms", "3"),
        ("", "3"),
    ],
)
def test_what_kafka_refuses_is_refused(name: str, value: str | None):
    """With INVALID_CONFIG, also for a missing value and for a key that isn't a topic's."""
    fault = validate_topic_config(name, value)
    assert isinstance(fault, TopicConfigFault)
    assert fault.error_code is ErrorCode.INVALID_CONFIG
    assert name in fault.message
    assert fault.message.endswith(".")


def test_keys_are_checked_with_each_other():
    """A record can't be safe from compaction for longer than it may stay uncompacted."""
    bad = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    assert isinstance(validate_topic_configs(BROKER, bad), TopicConfigFault)
    assert validate_topic_configs(BROKER, {**bad, "max.compaction.lag.ms": "10"}) == {**bad, "max.compaction.lag.ms": "10"}


def test_what_asks_for_tiered_storage_is_refused_with_the_reason():
    """The default is taken, for tools send it along; the other value would promise what isn't done."""
    assert validate_topic_configs(BROKER, {"remote.storage.enable": "false"}) == {"remote.storage.enable": "false"}
    fault = validate_topic_configs(BROKER, {"remote.storage.enable": "true"})
    assert isinstance(fault, TopicConfigFault)
    assert fault.message == "remote.storage.enable=true is not possible: allowed is only false, for this broker has no tiered storage."


BESIDE_TIERED = {
    "local.retention.ms": ("-2", "-1", "0", "1000", "9223372036854775807"),
    "local.retention.bytes": ("-2", "-1", "0", "1000"),
    "remote.log.copy.disable": ("false", "true"),
    "remote.log.delete.on.disable": ("false", "true"),
}


@pytest.mark.parametrize("name", BESIDE_TIERED)
def test_what_says_how_tiered_storage_would_work_is_kept_without_effect(name: str):
    """As in Kafka 4.3.1, where the key is set on a topic that isn't tiered; also above what is kept in total."""
    for value in BESIDE_TIERED[name]:
        given = {name: value, "retention.ms": "500", "retention.bytes": "500"}
        assert validate_topic_configs(BROKER, given) == given
        assert log_config(BROKER, given) == log_config(BROKER, {"retention.ms": "500", "retention.bytes": "500"})
    for wrong in ("-3", "x"):
        assert isinstance(validate_topic_configs(BROKER, {name: wrong}), TopicConfigFault)


@pytest.mark.parametrize("name", ["log.local.retention.ms", "log.local.retention.bytes"])
def test_a_broker_starts_with_the_defaults_of_topics_that_would_be_tiered(name: str):
    """As Kafka 4.3.1 does without tiered storage, also above what is kept in total; topics without a value get them, without effect."""
    for value in ("-2", "-1", "0", "5", "9223372036854775807"):
        broker = load_config(settings={name: value, "log.retention.ms": "3", "log.retention.bytes": "3"})
        assert broker.topic_defaults[name.removeprefix("log.")] == int(value)
    with pytest.raises(ConfigError, match=rf"{name}=-3 is not possible"):
        load_config(settings={name: "-3"})


def test_a_broker_is_not_started_with_tiered_storage():
    with pytest.raises(
        ConfigError, match=r"remote.log.storage.system.enable=true is not possible: allowed is only false, for this broker has"
    ):
        load_config(settings={"remote.log.storage.system.enable": "true"})


def test_what_another_version_let_through_is_left_aside():
    """A stored value mustn't keep a log from being loaded."""
    assert log_config(BROKER, {"remote.storage.enable": "true", "retention.ms": "7"}).retention_ms == 7


def test_keys_are_checked_with_the_brokers():
    """One of the pair may come from the broker."""
    broker = load_config(settings={"log.cleaner.max.compaction.lag.ms": "5"})
    assert isinstance(validate_topic_configs(broker, {"min.compaction.lag.ms": "6"}), TopicConfigFault)


def test_the_first_fault_is_told():
    """One sentence is enough to go on."""
    fault = validate_topic_configs(BROKER, {"segment.bytes": "1", "nothing": "1"})
    assert isinstance(fault, TopicConfigFault)
    assert "segment.bytes=1" in fault.message


def test_a_log_runs_on_kafkas_defaults():
    """What the broker's table says and what `LogConfig` says on its own are the same."""
    assert log_config(BROKER, {}) == LogConfig()


VALUES = {
    "compression_type": "zstd",
    "message_timestamp_type": "LogAppendTime",
    "cleanup_policy": "compact,delete",
    "preallocate": "true",
    "min_cleanable_dirty_ratio": "0.25",
}


@pytest.mark.parametrize("field", [field.name for field in fields(LogConfig)])
def test_each_field_of_a_log_follows_its_key(field: str):
    """The topic's key decides, else the broker's: none is read from another key, and none is forgotten."""
    key = next(key for key in TOPIC_KEYS if key.name == field.replace("_", "."))
    text = VALUES.get(field, "12345678")
    expected = key.parse(text)
    changed = log_config(BROKER, {key.name: text})
    of_broker = log_config(load_config(settings={key.broker_key or "": text}), {})
    expected = frozenset(expected) if isinstance(expected, tuple) else expected
    for config in (changed, of_broker):
        assert getattr(config, field) == expected
        others = {other.name for other in fields(LogConfig) if getattr(config, other.name) != getattr(LogConfig(), other.name)}
        assert others == {field}
    assert getattr(log_config(load_config(settings={key.broker_key or "": text}), {key.name: key.default or ""}), field) == getattr(
        LogConfig(), field
    )


def test_a_test_may_have_small_segments():
    """`internal.segment.bytes` beats `segment.bytes`, which starts at a MiB."""
    assert log_config(BROKER, {"internal.segment.bytes": "100", "segment.bytes": "1048576"}).segment_bytes == 100


def test_a_key_from_a_newer_broker_is_left_aside():
    """It is in the metadata already, and must not stop this one."""
    assert log_config(BROKER, {"invented.later": "x"}) == LogConfig()


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"log.retention.hours": "2"}, "retention_ms", 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "retention_ms", 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, "retention_ms", 4),
        ({"log.retention.hours": "-1"}, "retention_ms", -1),
        ({"log.retention.minutes": "-7"}, "retention_ms", -1),
        ({"log.roll.hours": "2"}, "segment_ms", 2 * HOUR_MS),
        ({"log.roll.hours": "2", "log.roll.ms": "5"}, "segment_ms", 5),
        ({"log.flush.scheduler.interval.ms": "7"}, "flush_ms", 7),
        ({"log.flush.scheduler.interval.ms": "7", "log.flush.interval.ms": "0"}, "flush_ms", 0),
        ({"log.retention.hours": "2147483647"}, "retention_ms", 2147483647 * HOUR_MS),
    ],
)
def test_the_finer_unit_is_the_stronger(settings: dict[str, str], field: str, value: int):
    """Milliseconds before minutes before hours, as in Kafka."""
    assert getattr(log_config(load_config(settings=settings), {}), field) == value


@pytest.mark.parametrize(
    "settings",
    [{"log.retention.ms": "0"}, {"log.retention.minutes": "0"}, {"log.retention.hours": "0"}, {"log.flush.interval.ms": "-1"}],
)
def test_a_broker_cannot_give_topics_what_they_cannot_have(settings: dict[str, str]):
    """The refusal names the broker's key, not the topic's."""
    (name,) = settings
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        load_config(settings=settings)


def test_a_description_says_where_values_come_from():
    """Kafka's numbers: 1 the topic, 4 the broker's file, 5 the default (KIP-226, KIP-525)."""
    broker = load_config(settings={"log.segment.bytes": "2097152"})
    entries = {entry.name: entry for entry in describe_topic_configs(broker, {"flush.ms": "9"})}
    assert (entries["flush.ms"].value, entries["flush.ms"].source) == ("9", 1)
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("2097152", 4)
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("604800000", 5)
    assert "internal.segment.bytes" not in entries


@given(
    st.dictionaries(
        st.sampled_from([key.name for key in TOPIC_KEYS]), st.one_of(st.none(), st.text(max_size=8), st.integers().map(str)), max_size=4
    )
)
def test_what_is_kept_is_what_a_log_can_run_on(overrides: dict[str, str | None]):
    """Nothing gets past the check that would stop a log later, and checking twice changes nothing."""
    kept = validate_topic_configs(BROKER, overrides)
    if isinstance(kept, TopicConfigFault):
        return
    assert log_config(BROKER, kept).segment_bytes > 0
    assert validate_topic_configs(BROKER, kept) == kept
