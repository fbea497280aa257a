"""A topic's configuration: what clients may set, the broker's defaults, and the values that logs use."""

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
    """Some of it is surprising; it was observed with Kafka 4.3. Values are stored in one form."""
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
    """With INVALID_CONFIG, also for a missing value and for a key that topics do not have."""
    fault = validate_topic_config(name, value)
    assert isinstance(fault, TopicConfigFault)
    assert fault.error_code is ErrorCode.INVALID_CONFIG
    assert name in fault.message
    assert fault.message.endswith(".")


def test_keys_are_checked_with_each_other():
    """The minimum compaction lag cannot exceed the maximum."""
    bad = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    assert isinstance(validate_topic_configs(BROKER, bad), TopicConfigFault)
    assert validate_topic_configs(BROKER, {**bad, "max.compaction.lag.ms": "10"}) == {
        **bad,
        "max.compaction.lag.ms": "10",
    }


def test_a_request_for_tiered_storage_is_refused_with_the_reason():
    """The default is accepted, because tools send it; the other value would promise a feature that is missing."""
    assert validate_topic_configs(BROKER, {"remote.storage.enable": "false"}) == {"remote.storage.enable": "false"}
    fault = validate_topic_configs(BROKER, {"remote.storage.enable": "true"})
    assert isinstance(fault, TopicConfigFault)
    assert (
        fault.message
        == "remote.storage.enable=true is invalid: allowed is only false, for this broker has no tiered storage."
    )


BESIDE_TIERED = {
    "local.retention.ms": ("-2", "-1", "0", "1000", "9223372036854775807"),
    "local.retention.bytes": ("-2", "-1", "0", "1000"),
    "remote.log.copy.disable": ("false", "true"),
    "remote.log.delete.on.disable": ("false", "true"),
}


@pytest.mark.parametrize("name", BESIDE_TIERED)
def test_a_setting_of_tiered_storage_is_kept_without_effect(name: str):
    """As in Kafka 4.3.1, where the key can be set on a topic without tiering; also above the total retention."""
    for value in BESIDE_TIERED[name]:
        given = {name: value, "retention.ms": "500", "retention.bytes": "500"}
        assert validate_topic_configs(BROKER, given) == given
        assert log_config(BROKER, given) == log_config(BROKER, {"retention.ms": "500", "retention.bytes": "500"})
    for wrong in ("-3", "x"):
        assert isinstance(validate_topic_configs(BROKER, {name: wrong}), TopicConfigFault)


@pytest.mark.parametrize("name", ["log.local.retention.ms", "log.local.retention.bytes"])
def test_a_broker_starts_with_the_defaults_of_topics_that_would_be_tiered(name: str):
    """As Kafka 4.3.1 does without tiered storage, also above total retention. Topics inherit them without effect."""
    for value in ("-2", "-1", "0", "5", "9223372036854775807"):
        broker = load_config(settings={name: value, "log.retention.ms": "3", "log.retention.bytes": "3"})
        assert broker.topic_defaults[name.removeprefix("log.")] == int(value)
    with pytest.raises(ConfigError, match=rf"{name}=-3 is invalid"):
        load_config(settings={name: "-3"})


def test_a_broker_is_not_started_with_tiered_storage():
    with pytest.raises(
        ConfigError,
        match=r"remote.log.storage.system.enable=true is invalid: allowed is only false, for this broker has",
    ):
        load_config(settings={"remote.log.storage.system.enable": "true"})


def test_what_another_version_accepted_is_ignored():
    """A stored value must not prevent loading a log."""
    assert log_config(BROKER, {"remote.storage.enable": "true", "retention.ms": "7"}).retention_ms == 7


def test_keys_are_checked_with_the_brokers():
    """One of the pair may come from the broker."""
    broker = load_config(settings={"log.cleaner.max.compaction.lag.ms": "5"})
    assert isinstance(validate_topic_configs(broker, {"min.compaction.lag.ms": "6"}), TopicConfigFault)


def test_the_first_fault_is_reported():
    """One message is enough for a correction."""
    fault = validate_topic_configs(BROKER, {"segment.bytes": "1", "nothing": "1"})
    assert isinstance(fault, TopicConfigFault)
    assert "segment.bytes=1" in fault.message


def test_a_log_runs_on_kafkas_defaults():
    """The defaults of the broker's table and of `LogConfig` are the same."""
    assert log_config(BROKER, {}) == LogConfig()


VALUES = {
    "compression_type": "zstd",
    "message_timestamp_type": "LogAppendTime",
    "cleanup_policy": "compact,delete",
    "preallocate": "true",
    "lowtide_delete_erase": "true",
    "lowtide_erasure_key_filter": "none",
    "min_cleanable_dirty_ratio": "0.25",
}


@pytest.mark.parametrize("field", [field.name for field in fields(LogConfig)])
def test_each_field_of_a_log_follows_its_key(field: str):
    """The topic's key decides, else the broker's: each is read from its own key, and none is left out."""
    key = next(key for key in TOPIC_KEYS if key.name == field.replace("_", "."))
    text = VALUES.get(field, "12345678")
    expected = key.parse(text)
    changed = log_config(BROKER, {key.name: text})
    of_broker = changed if key.broker_key is None else log_config(load_config(settings={key.broker_key: text}), {})
    expected = type(getattr(LogConfig(), field))(expected) if isinstance(expected, tuple) else expected
    for config in (changed, of_broker):
        assert getattr(config, field) == expected
        others = {
            other.name for other in fields(LogConfig) if getattr(config, other.name) != getattr(LogConfig(), other.name)
        }
        assert others == {field}
    settings = {} if key.broker_key is None else {key.broker_key: text}
    own = log_config(load_config(settings=settings), {key.name: key.default or ""})
    assert getattr(own, field) == getattr(LogConfig(), field)


def test_the_groups_that_may_delete_are_bounded():
    """Their names go to every coordinator in each check."""
    key = next(key for key in TOPIC_KEYS if key.name == "lowtide.retention.commitoffset.groups")
    assert key.parse(" etl , audit-*,*") == ("etl", "audit-*", "*")
    assert key.parse("") == ()
    assert len(key.parse(",".join(f"g{number}" for number in range(100)))) == 100
    for text in (",".join(f"g{number}" for number in range(101)), "g" * 256):
        with pytest.raises(ConfigError, match="up to 100 group ids of up to 255 characters"):
            key.parse(text)


def test_a_test_may_have_small_segments():
    """`internal.segment.bytes` overrides `segment.bytes`, which starts at a MiB."""
    assert log_config(BROKER, {"internal.segment.bytes": "100", "segment.bytes": "1048576"}).segment_bytes == 100


def test_a_key_from_a_newer_broker_is_ignored():
    """It is in the metadata already, and must not stop this broker."""
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
def test_the_finer_unit_overrides(settings: dict[str, str], field: str, value: int):
    """Milliseconds before minutes before hours, as in Kafka."""
    assert getattr(log_config(load_config(settings=settings), {}), field) == value


@pytest.mark.parametrize(
    "settings",
    [
        {"log.retention.ms": "0"},
        {"log.retention.minutes": "0"},
        {"log.retention.hours": "0"},
        {"log.flush.interval.ms": "-1"},
    ],
)
def test_a_broker_cannot_have_defaults_that_topics_cannot_have(settings: dict[str, str]):
    """The refusal names the broker's key, not the topic's."""
    (name,) = settings
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        load_config(settings=settings)


def test_a_description_has_the_sources_of_values():
    """Kafka's numbers: 1 the topic, 4 the broker's file, 5 the default (KIP-226, KIP-525)."""
    broker = load_config(settings={"log.segment.bytes": "2097152"})
    entries = {entry.name: entry for entry in describe_topic_configs(broker, {"flush.ms": "9"})}
    assert (entries["flush.ms"].value, entries["flush.ms"].source) == ("9", 1)
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("2097152", 4)
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("604800000", 5)
    assert "internal.segment.bytes" not in entries


@given(
    st.dictionaries(
        st.sampled_from([key.name for key in TOPIC_KEYS]),
        st.one_of(st.none(), st.text(max_size=8), st.integers().map(str)),
        max_size=4,
    )
)
def test_accepted_values_are_valid_for_a_log(overrides: dict[str, str | None]):
    """The check accepts nothing that would fail a log later, and checking twice changes nothing."""
    kept = validate_topic_configs(BROKER, overrides)
    if isinstance(kept, TopicConfigFault):
        return
    assert log_config(BROKER, kept).segment_bytes > 0
    assert validate_topic_configs(BROKER, kept) == kept
