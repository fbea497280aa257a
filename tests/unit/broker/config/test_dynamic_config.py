"""A broker's configuration while it runs: layers, what may be set, and what is told of it. Facts are those of Kafka 4.3."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.broker.config.broker_config import BROKER_KEYS, ConfigError, Given, load_config
from lowtide.broker.config.described import (
    ConfigEntry,
    WireType,
    describe_all_brokers,
    describe_broker,
    describe_topic,
    describe_topic_defaults,
)
from lowtide.broker.config.dynamic_config import DYNAMIC_KEYS, BrokerConfigs
from lowtide.broker.config.keys_own import OWN_KEYS
from lowtide.broker.config.topic_config import ConfigSource, describe_topic_configs
from lowtide.metadata.image import ConfigImage, MetadataImage

DAY_MS = 86_400_000
WEEK = str(7 * DAY_MS)


def image(**layers: dict[str, str]) -> MetadataImage:
    """`of_all` and `broker_<id>`."""
    return MetadataImage(broker_configs={"" if name == "of_all" else name[7:]: ConfigImage(keys, 5) for name, keys in layers.items()})


def running(settings: dict[str, str] | None = None, **layers: dict[str, str]) -> BrokerConfigs:
    configs = BrokerConfigs(load_config(settings={"node.id": "7", **(settings or {})}))
    assert configs.follow(image(**layers)) is None
    return configs


def told(entries: list[ConfigEntry], name: str) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    (entry,) = [entry for entry in entries if entry.name == name]
    return entry.value, entry.source, [(each.name, each.value, each.source) for each in entry.synonyms]


def test_the_stronger_layer_decides() -> None:
    """What is set on this broker, on all, in its file, by default; what is set on another broker is none of its business."""
    layers = {"of_all": {"message.max.bytes": "3000"}, "broker_7": {"message.max.bytes": "2000"}, "broker_8": {"message.max.bytes": "1"}}
    configs = running({"message.max.bytes": "4000"}, **layers)
    assert (configs.current.message_max_bytes, configs.current.topic_defaults["max.message.bytes"]) == (2000, 2000)
    del layers["broker_7"]
    assert running({"message.max.bytes": "4000"}, **layers).current.message_max_bytes == 3000
    assert running({"message.max.bytes": "4000"}).current.message_max_bytes == 4000
    assert configs.follow(image()) is None
    assert configs.current is configs.started_with


def test_what_was_started_with_stays() -> None:
    """A change in one place changes nothing else: neither the addresses, which need the machine's name, nor anything given."""
    started = load_config(settings={"node.id": "7", "listeners": "PLAINTEXT://:1234", "num.partitions": "3"}, host_name="machine")
    configs = BrokerConfigs(started)
    configs.follow(image(of_all={"max.connections": "5"}))
    assert configs.current.max_connections == 5
    assert configs.current.advertised_listeners == started.advertised_listeners
    assert configs.current.num_partitions == 3


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ({"message.max.bytes": "2000", "log.segment.bytes": "1"}, "log.segment.bytes"),
        ({"message.max.bytes": "2000", "invented.later": "1"}, "invented.later"),
        ({"message.max.bytes": "2000", "num.partitions": "5"}, "num.partitions"),
    ],
)
def test_what_is_stored_and_cannot_be_is_left_aside(stored: dict[str, str], reason: str) -> None:
    """Another version wrote it. The rest counts, and other keys can still be changed, and this one deleted."""
    configs = BrokerConfigs(load_config(settings={"node.id": "7"}))
    assert reason in (configs.follow(image(broker_7=stored)) or "")
    assert configs.current.message_max_bytes == 2000
    configs.check({**stored, "message.max.bytes": "3000"}, of_all=False)
    configs.check({"message.max.bytes": "3000"}, of_all=False)
    with pytest.raises(ConfigError, match=reason):
        configs.check(stored, of_all=True)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"num.partitions": "3"}, r"Cannot update these configs dynamically: \[num.partitions\]"),
        ({"node.id": "3", "log.dirs": "/x", "log.retention.ms": "5"}, r"\[log.dirs, node.id\]"),
        ({"log.retention.hours": "3"}, "log.retention.hours"),
        ({"ssl.keystore.password": "x"}, "ssl.keystore.password"),
        ({"listener.name.a.ssl.keystore.password": "x"}, "listener.name.a.ssl.keystore.password"),
        ({"no.such": "3"}, "no.such is not a key"),
        ({"log.segment.bytes": "1"}, "log.segment.bytes=1 is not possible.*1048576"),
        ({"log.retention.ms": "0"}, "log.retention.ms=0"),
        ({"log.local.retention.ms": "604800001"}, "log.local.retention.ms=604800001 is not .* most log.retention.ms=604800000, or -2"),
        ({"log.local.retention.ms": "-1"}, "log.local.retention.ms=-1 is not possible"),
        (
            {"log.local.retention.bytes": "6", "log.retention.bytes": "5"},
            "log.local.retention.bytes=6 is not .* most log.retention.bytes=5, or -2",
        ),
        ({"log.local.retention.bytes": "-1", "log.retention.bytes": "5"}, "log.local.retention.bytes=-1 is not possible"),
    ],
)
@pytest.mark.parametrize("of_all", [True, False])
def test_what_cannot_be_set_is_refused(wanted: dict[str, str], reason: str, of_all: bool) -> None:
    with pytest.raises(ConfigError, match=reason):
        running().check(wanted, of_all=of_all)


def test_a_secret_stays_one_in_a_refusal() -> None:
    with pytest.raises(ConfigError) as refusal:
        running().check({"ssl.keystore.password": "hush"}, of_all=False)
    assert "hush" not in str(refusal.value)


def test_layers_are_checked_together() -> None:
    """What consumed records may have on one broker may be too long for what is set on all."""
    configs = running(broker_7={"log.retention.commitoffset.ms": "5000"})
    configs.check({"log.retention.ms": "5000"}, of_all=True)
    with pytest.raises(ConfigError, match=r"log.retention.commitoffset.ms=5000"):
        configs.check({"log.retention.ms": "4999"}, of_all=True)


@pytest.mark.parametrize(
    "wanted",
    [
        {"log.local.retention.ms": "604800000"},
        {"log.local.retention.ms": "-1", "log.retention.ms": "-1"},
        {"log.local.retention.ms": "-2", "log.retention.ms": "5"},
        {"log.local.retention.bytes": "5"},
        {"log.local.retention.bytes": "5", "log.retention.bytes": "5"},
        {"log.local.retention.bytes": "-2", "log.retention.bytes": "5"},
    ],
)
@pytest.mark.parametrize("of_all", [True, False])
def test_what_would_stay_on_the_disk_is_kept_with_the_total(wanted: dict[str, str], of_all: bool) -> None:
    """As in Kafka's DynamicLogConfig, which compares both when they are changed, and not at the start."""
    running().check(wanted, of_all=of_all)


def test_the_total_is_not_lowered_below_what_would_stay_on_the_disk() -> None:
    configs = running(broker_7={"log.local.retention.ms": "5000"})
    configs.check({"log.retention.ms": "5000"}, of_all=True)
    with pytest.raises(ConfigError, match=r"log.local.retention.ms=5000"):
        configs.check({"log.retention.ms": "4999"}, of_all=True)


def test_a_broker_that_started_with_more_on_its_disk_than_in_total_takes_other_changes() -> None:
    configs = BrokerConfigs(load_config(settings={"node.id": "7", "log.local.retention.bytes": "6", "log.retention.bytes": "5"}))
    configs.check({"max.connections": "3"}, of_all=False)
    with pytest.raises(ConfigError, match=r"log.local.retention.bytes=6"):
        configs.check({"log.retention.bytes": "4"}, of_all=False)


def test_every_key_that_can_be_set_takes_effect() -> None:
    """All of them are known, and none is one of those that Kafka doesn't let be changed."""
    assert len(DYNAMIC_KEYS) == 40
    assert not DYNAMIC_KEYS & {"log.roll.hours", "log.retention.hours", "log.retention.minutes", "log.flush.scheduler.interval.ms"}
    for name in DYNAMIC_KEYS:
        default = BROKER_KEYS[name].default
        text = "20000000" if default is None else default
        running(of_all={name: text}).check({name: text}, of_all=False)


def test_a_topics_keys_are_told_with_where_they_come_from() -> None:
    """As Kafka does: hours are another name of milliseconds, and told only beside them."""
    configs = running({"log.segment.bytes": "2000000", "log.retention.hours": "48"}, of_all={"log.retention.ms": "5000"})
    entries = describe_topic(describe_topic_defaults(configs), {"cleanup.policy": "compact"}, None)
    assert told(entries, "cleanup.policy") == ("compact", 1, [("cleanup.policy", "compact", 1), ("log.cleanup.policy", "delete", 5)])
    assert told(entries, "segment.bytes") == ("2000000", 4, [("log.segment.bytes", "2000000", 4), ("log.segment.bytes", "1073741824", 5)])
    hours = [("log.retention.hours", "48", 4), ("log.retention.hours", "168", 5)]
    assert told(entries, "retention.ms") == ("5000", 3, [("log.retention.ms", "5000", 3), *hours])
    assert told(entries, "segment.ms") == (WEEK, 5, [])
    assert told(entries, "follower.replication.throttled.replicas") == ("", 5, [])
    assert "internal.segment.bytes" not in {entry.name for entry in entries}
    assert not any(entry.is_read_only or entry.is_sensitive for entry in entries)
    assert all(entry.documentation for entry in entries)


def test_an_internal_key_is_told_where_it_is_set() -> None:
    defaults = describe_topic_defaults(running())
    assert told(describe_topic(defaults, {"internal.segment.bytes": "9"}, None), "internal.segment.bytes")[:2] == ("9", 1)


def test_a_brokers_keys_are_told_with_where_they_come_from() -> None:
    configs = running({"log.retention.ms": "9"}, of_all={"log.retention.ms": "8"}, broker_7={"log.retention.ms": "7"})
    entries = describe_broker(configs, None)
    every = [("log.retention.ms", "7", 2), ("log.retention.ms", "8", 3), ("log.retention.ms", "9", 4), ("log.retention.hours", "168", 5)]
    assert told(entries, "log.retention.ms") == ("7", 2, every)
    assert told(entries, "log.retention.hours") == ("168", 5, [("log.retention.hours", "168", 5)])
    assert told(entries, "log.retention.minutes") == (None, 5, [])
    assert told(entries, "broker.id") == ("7", 4, [("broker.id", "7", 4), ("broker.id", "-1", 5)])
    assert told(entries, "log.cleaner.io.max.bytes.per.second")[0] == "1.7976931348623157E308"
    assert {entry.name for entry in entries if not entry.is_read_only} == DYNAMIC_KEYS
    assert {entry.wire_type for entry in entries} == set(WireType) - {WireType.UNKNOWN}


def test_what_is_set_on_all_brokers_is_told_alone() -> None:
    configs = running(of_all={"log.retention.ms": "8"}, broker_7={"log.retention.ms": "7", "max.connections": "3"})
    (entry,) = describe_all_brokers(configs, None)
    assert told([entry], "log.retention.ms") == ("8", 3, [("log.retention.ms", "8", 3)])
    assert describe_all_brokers(configs, ["max.connections"]) == []


def test_secrets_are_not_told() -> None:
    """Neither as values nor as synonyms, under whatever name."""
    names = ("ssl.keystore.password", "listener.name.a.ssl.keystore.password", "rsm.config.token", "sasl.jaas.config")
    # Such a broker does not start yet: what is described is as if it had.
    given = {name: Given("hush", "settings") for name in names}
    values = load_config().values | dict.fromkeys(names, "hush")
    configs = BrokerConfigs(msgspec.structs.replace(load_config(), given=given, values=values))
    entries = [entry for entry in describe_broker(configs, None) if entry.name in names]
    assert len(entries) == len(names)
    assert all(entry.is_sensitive and entry.value is None and entry.synonyms for entry in entries)
    assert "hush" not in str(entries)
    stored = BrokerConfigs(load_config())
    stored.follow(image(of_all={"invented.later": "hush"}))
    (entry,) = describe_all_brokers(stored, None)
    assert (entry.value, entry.synonyms[0].value, entry.is_sensitive) == (None, None, True)


@pytest.mark.parametrize("wanted", [None, []])
def test_no_keys_are_all_keys(wanted: list[str] | None) -> None:
    defaults = describe_topic_defaults(running())
    assert len(describe_topic(defaults, {}, wanted)) == 37
    assert len(describe_broker(running(), wanted)) == 348 + len(OWN_KEYS)


def test_keys_that_are_wanted_and_exist() -> None:
    """In the order of the table, each once."""
    defaults = describe_topic_defaults(running())
    wanted = ["segment.bytes", "no.such", "retention.ms", "segment.bytes"]
    assert [entry.name for entry in describe_topic(defaults, {}, wanted)] == ["retention.ms", "segment.bytes"]
    assert [entry.name for entry in describe_broker(running(), ["no.such", "log.dirs"])] == ["log.dirs"]


def test_a_new_topic_is_told_its_sources() -> None:
    """CreateTopics answers a topic's configuration too; but for a source that DescribeConfigs doesn't know by its other name."""
    configs = running({"log.roll.hours": "2"}, of_all={"log.retention.ms": "8"}, broker_7={"message.max.bytes": "7"})
    sources = {entry.name: entry.source for entry in describe_topic_configs(configs.current, {"preallocate": "true"})}
    assert sources["preallocate"] is ConfigSource.DYNAMIC_TOPIC
    assert sources["max.message.bytes"] is ConfigSource.DYNAMIC_BROKER
    assert sources["retention.ms"] is ConfigSource.DYNAMIC_DEFAULT
    assert sources["segment.ms"] is ConfigSource.STATIC_BROKER
    assert sources["segment.bytes"] is ConfigSource.DEFAULT
    described = {entry.name: entry.source for entry in describe_topic(describe_topic_defaults(configs), {"preallocate": "true"}, None)}
    assert {name for name, source in sources.items() if described[name] is not source} == {"segment.ms"}
