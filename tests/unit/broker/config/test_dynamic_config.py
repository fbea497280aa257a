"""A broker's configuration while it runs: layers, which keys may be set, and how they are described.

Facts are those of Kafka 4.3.
"""

from __future__ import annotations

import msgspec
import pytest

from lowtide.broker.config.broker_config import BROKER_KEYS, ConfigError, Setting, load_config
from lowtide.broker.config.described import (
    DescribedConfig,
    WireType,
    describe_all_brokers,
    describe_broker,
    describe_topic,
    describe_topic_defaults,
)
from lowtide.broker.config.dynamic_config import CLUSTER_WIDE, DYNAMIC_KEYS, BrokerConfigs
from lowtide.broker.config.keys_own import OWN_KEYS
from lowtide.broker.config.topic_config import describe_topic_configs, log_config, validate_topic_configs
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import KEEPING_CONFIGS, MetadataImage
from lowtide.metadata.image_change import KEEPING_BROKER_CONFIGS
from lowtide.metadata.records import FeaturesRecord
from lowtide.protocol.config_values import ConfigSource

DAY_MS = 86_400_000
WEEK = str(7 * DAY_MS)


def image(**layers: dict[str, str]) -> MetadataImage:
    """`of_all` and `broker_<id>`."""
    return MetadataImage(
        broker_configs={"" if name == "of_all" else name[7:]: ConfigImage(keys, 5) for name, keys in layers.items()}
    )


def running(settings: dict[str, str] | None = None, **layers: dict[str, str]) -> BrokerConfigs:
    configs = BrokerConfigs(load_config(settings={"node.id": "7", **(settings or {})}))
    assert configs.follow(image(**layers)) is None
    return configs


def told(entries: list[DescribedConfig], name: str) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    (entry,) = [entry for entry in entries if entry.name == name]
    return entry.value, entry.source, [(each.name, each.value, each.source) for each in entry.synonyms]


def test_the_stronger_layer_decides() -> None:
    """The order is: this broker, all brokers, its file, the default; values of another broker are ignored."""
    layers = {
        "of_all": {"message.max.bytes": "3000"},
        "broker_7": {"message.max.bytes": "2000"},
        "broker_8": {"message.max.bytes": "1"},
    }
    configs = running({"message.max.bytes": "4000"}, **layers)
    assert (configs.current.message_max_bytes, configs.current.topic_defaults["max.message.bytes"]) == (2000, 2000)
    del layers["broker_7"]
    assert running({"message.max.bytes": "4000"}, **layers).current.message_max_bytes == 3000
    assert running({"message.max.bytes": "4000"}).current.message_max_bytes == 4000
    assert configs.follow(image()) is None
    assert configs.current is configs.started_with


def test_a_cluster_wide_key_that_is_stored_for_one_broker_has_no_effect_while_there_are_eligible_leaders() -> None:
    """An earlier version could store it."""
    configs = running()
    stored = image(broker_7={CLUSTER_WIDE: "3", "message.max.bytes": "7"})
    for features, expected in ((FeaturesRecord(1), 3), (FeaturesRecord(1, 1), 1)):
        assert configs.follow(msgspec.structs.replace(stored, features=features)) is None
        assert (configs.current.values[CLUSTER_WIDE], configs.current.message_max_bytes) == (expected, 7)


def test_values_from_the_start_stay() -> None:
    """A change changes nothing else: neither the addresses, which need the machine's name, nor given values."""
    started = load_config(
        settings={"node.id": "7", "listeners": "PLAINTEXT://:1234", "num.partitions": "3"}, host_name="machine"
    )
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
def test_a_stored_value_that_is_invalid_is_ignored(stored: dict[str, str], reason: str) -> None:
    """Another version wrote it. The other keys apply and can still be changed, and this one can be deleted."""
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
        ({"no.such": "3"}, "no.such is not a broker configuration key"),
        ({"log.segment.bytes": "1"}, "log.segment.bytes=1 is invalid.*1048576"),
        ({"log.retention.ms": "0"}, "log.retention.ms=0"),
        (
            {"log.local.retention.ms": "604800001"},
            "log.local.retention.ms=604800001 is invalid.* most log.retention.ms=604800000, or -2",
        ),
        ({"log.local.retention.ms": "-1"}, "log.local.retention.ms=-1 is invalid"),
        (
            {"log.local.retention.bytes": "6", "log.retention.bytes": "5"},
            "log.local.retention.bytes=6 is invalid.* most log.retention.bytes=5, or -2",
        ),
        (
            {"log.local.retention.bytes": "-1", "log.retention.bytes": "5"},
            "log.local.retention.bytes=-1 is invalid",
        ),
    ],
)
@pytest.mark.parametrize("of_all", [True, False])
def test_what_cannot_be_set_is_refused(wanted: dict[str, str], reason: str, of_all: bool) -> None:
    with pytest.raises(ConfigError, match=reason):
        running().check(wanted, of_all=of_all)


WITH_TLS = {
    "listeners": "TLS://:9093,PLAINTEXT://:9092",
    "listener.security.protocol.map": "TLS:SSL,PLAINTEXT:PLAINTEXT",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/old.pem",
}


def test_the_stores_of_a_listener_are_set_together() -> None:
    """A location with its type and password, which are not possible each without the others."""
    store = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/new.p12", "ssl.keystore.password": "hush"}
    layer = {f"listener.name.tls.{key}": text for key, text in store.items()}
    for configs in (running(WITH_TLS, broker_7=layer), running(WITH_TLS)):
        tls = configs.check(layer, of_all=False).secured_listeners["TLS"].tls
        assert tls is not None
        assert (tls.key_store.kind, tls.key_store.location, tls.key_store.password) == ("PKCS12", "/new.p12", "hush")
    assert running(WITH_TLS, broker_7=layer).current.secured_listeners["TLS"].tls == tls
    chain = {"listener.name.tls.ssl.keystore.location": "", "listener.name.tls.ssl.keystore.certificate.chain": "PEM"}
    assert running(WITH_TLS, broker_7=chain).current.given.keys() > chain.keys()


@pytest.mark.parametrize(
    ("wanted", "of_all", "reason"),
    [
        (
            {"ssl.keystore.location": "/n"},
            False,
            "only per-listener using the listener prefix: \\[ssl.keystore.location\\]",
        ),
        (
            {"listener.name.tls.ssl.keystore.location": "/n"},
            True,
            "at default cluster level, broker id must be specified",
        ),
        ({"listener.name.tls.ssl.client.auth": "none"}, False, "Cannot update these configs dynamically"),
        ({"listener.name.TLS.ssl.keystore.location": "/n"}, False, "Cannot update these configs dynamically"),
        ({"listener.name.plaintext.ssl.key.password": "hush"}, False, "has no listener PLAINTEXT with TLS"),
        ({"listener.name.no.ssl.key.password": "hush"}, False, "has no listener NO with TLS"),
        ({"listener.name.tls.ssl.keystore.certificate.chain": "hush"}, False, "cannot both be set"),
    ],
)
def test_what_cannot_be_set_of_a_listener_is_refused(wanted: dict[str, str], of_all: bool, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        running(WITH_TLS).check(wanted, of_all=of_all)
    assert "hush" not in str(caught.value)


def test_stores_that_are_not_possible_any_more_are_left_aside_together() -> None:
    """The broker was started again without that listener."""
    configs = BrokerConfigs(load_config(settings={"node.id": "7"}))
    store = {"listener.name.tls.ssl.keystore.location": "/n", "listener.name.tls.ssl.keystore.password": "hush"}
    left = configs.follow(image(broker_7={**store, "max.connections": "5"})) or ""
    assert all(name in left for name in store)
    assert "hush" not in left
    assert configs.current.max_connections == 5


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
WITH_LOGINS = {
    "listeners": "IN://:9093,PLAINTEXT://:9092",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
}
ENABLED, USERS = "listener.name.in.sasl.enabled.mechanisms", "listener.name.in.plain.sasl.jaas.config"


def test_the_logins_of_a_listener_are_set_together() -> None:
    """A mechanism with its users, which it can't be without; another listener's stores are none of that."""
    layer = {ENABLED: "plain,SCRAM-SHA-256", USERS: f'{PLAIN} user_alice="hush";'}
    for configs in (running(WITH_LOGINS, broker_7=layer), running(WITH_LOGINS)):
        sasl = configs.check(layer, of_all=False).secured_listeners["IN"].sasl
        assert sasl is not None
        assert [each.name for each in sasl.mechanisms] == ["PLAIN", "SCRAM-SHA-256"]
        assert sasl.mechanisms[0].users == {"alice": "hush"}
    assert running(WITH_LOGINS, broker_7=layer).current.secured_listeners["IN"].sasl == sasl
    running(WITH_LOGINS).check({USERS: f'{PLAIN} user_alice="hush";'}, of_all=False)
    described = {entry.name: entry for entry in describe_broker(running(WITH_LOGINS, broker_7=layer), None)}
    assert (described[USERS].value, described[USERS].is_sensitive, described[USERS].is_read_only) == (None, True, False)
    assert (described[ENABLED].value, described[ENABLED].source) == ("plain,SCRAM-SHA-256", 2)


@pytest.mark.parametrize(
    ("wanted", "of_all", "reason"),
    [
        (
            {"sasl.enabled.mechanisms": "PLAIN"},
            False,
            "only per-listener using the listener prefix: \\[sasl.enabled.mechanisms\\]",
        ),
        ({"sasl.jaas.config": f'{PLAIN} user_a="hush";'}, False, "only per-listener using the listener prefix"),
        ({ENABLED: "SCRAM-SHA-512"}, True, "at default cluster level, broker id must be specified"),
        ({ENABLED: "PLAIN"}, False, "listener.name.in.plain.sasl.jaas.config is missing"),
        ({ENABLED: "SCRAM-SHA-1"}, False, "SCRAM-SHA-1 is not a supported mechanism"),
        ({USERS: f'{PLAIN} user_a="hush'}, False, "plain.sasl.jaas.config=\\[hidden\\] is invalid"),
        (
            {"listener.name.in.scram-sha-512.sasl.jaas.config": f'{PLAIN} user_a="hush";'},
            False,
            "scram.ScramLoginModule",
        ),
        (
            {"listener.name.in.gssapi.sasl.jaas.config": f'{PLAIN} user_a="hush";'},
            False,
            "Cannot update these configs dynamically",
        ),
        ({"listener.name.in.connections.max.reauth.ms": "5000"}, False, "Cannot update these configs dynamically"),
        ({"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"}, False, "the listener PLAINTEXT has no SASL"),
        ({"listener.name.no.plain.sasl.jaas.config": f'{PLAIN} user_a="hush";'}, False, "the listener NO has no SASL"),
        ({"listener.name.no.plain.sasl.jaas.config": ""}, False, "this broker has no listener NO with SASL"),
    ],
)
def test_what_cannot_be_set_of_logins_is_refused(wanted: dict[str, str], of_all: bool, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        running(WITH_LOGINS).check(wanted, of_all=of_all)
    assert "hush" not in str(caught.value)


def test_the_mechanism_of_brokers_is_not_taken_away() -> None:
    between = {
        "inter.broker.listener.name": "IN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.in.scram-sha-256.sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="hush";'
        ),
    }
    with pytest.raises(ConfigError, match="sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256 is invalid"):
        running(WITH_LOGINS | between).check({ENABLED: "SCRAM-SHA-512"}, of_all=False)


def test_logins_that_are_not_possible_any_more_are_left_aside_together() -> None:
    """The broker was started again without that listener."""
    logins, stores = (
        {ENABLED: "PLAIN", USERS: f'{PLAIN} user_alice="hush";'},
        {"listener.name.in.ssl.key.password": "hush"},
    )
    configs = BrokerConfigs(load_config(settings={"node.id": "7"}))
    left = configs.follow(image(broker_7={**logins, **stores, "max.connections": "5"})) or ""
    assert all(name in left for name in (*logins, *stores))
    assert "hush" not in left
    assert configs.current.max_connections == 5


def test_a_refusal_does_not_show_a_secret() -> None:
    with pytest.raises(ConfigError) as refusal:
        running().check({"ssl.keystore.password": "hush"}, of_all=False)
    assert "hush" not in str(refusal.value)


def test_layers_are_checked_together() -> None:
    """The retention of consumed records on one broker may be too long for the value that is set on all."""
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
def test_local_retention_is_checked_with_the_total(wanted: dict[str, str], of_all: bool) -> None:
    """As in Kafka's DynamicLogConfig, which compares both when they are changed, and not at the start."""
    running().check(wanted, of_all=of_all)


def test_the_total_is_not_lowered_below_local_retention() -> None:
    configs = running(broker_7={"log.local.retention.ms": "5000"})
    configs.check({"log.retention.ms": "5000"}, of_all=True)
    with pytest.raises(ConfigError, match=r"log.local.retention.ms=5000"):
        configs.check({"log.retention.ms": "4999"}, of_all=True)


def test_a_broker_that_started_with_local_above_total_retention_accepts_other_changes() -> None:
    configs = BrokerConfigs(
        load_config(settings={"node.id": "7", "log.local.retention.bytes": "6", "log.retention.bytes": "5"})
    )
    configs.check({"max.connections": "3"}, of_all=False)
    with pytest.raises(ConfigError, match=r"log.local.retention.bytes=6"):
        configs.check({"log.retention.bytes": "4"}, of_all=False)


@pytest.mark.parametrize(
    ("text", "cordoned"), [("", ()), ("*", ("/a", "/b")), ("/b", ("/b",)), ("/b,/a", ("/b", "/a"))]
)
def test_cordoned_directories_are_named_as_in_log_dirs(text: str, cordoned: tuple[str, ...]) -> None:
    configs = BrokerConfigs(load_config(settings={"log.dirs": "/a,/b"}))
    assert configs.check({"cordoned.log.dirs": text}, of_all=False).cordoned_log_dirs == cordoned
    with pytest.raises(ConfigError, match="at default cluster level"):
        configs.check({"cordoned.log.dirs": text}, of_all=True)


@pytest.mark.parametrize("text", ["/c", "/a/", "/a,/a", "*,/a", "/a,*"])
def test_other_directories_cannot_be_cordoned(text: str) -> None:
    """As in Kafka 4.4.0."""
    configs = BrokerConfigs(load_config(settings={"log.dirs": "/a,/b"}))
    with pytest.raises(ConfigError, match="allowed is a list of different values of log.dirs"):
        configs.check({"cordoned.log.dirs": text}, of_all=False)


def test_every_key_that_can_be_set_takes_effect() -> None:
    """All are known keys, and none is one that Kafka does not allow to change."""
    assert len(DYNAMIC_KEYS) == 53
    assert not DYNAMIC_KEYS & {
        "log.roll.hours",
        "log.retention.hours",
        "log.retention.minutes",
        "log.flush.scheduler.interval.ms",
    }
    for name in DYNAMIC_KEYS:
        default = BROKER_KEYS[name].default
        text = "20000000" if default is None else default
        running(of_all={name: text}).check({name: text}, of_all=False)


def test_a_topics_keys_are_described_with_their_sources() -> None:
    """As Kafka does: hours are a synonym of milliseconds, and are listed only beside them."""
    configs = running(
        {"log.segment.bytes": "2000000", "log.retention.hours": "48"}, of_all={"log.retention.ms": "5000"}
    )
    entries = describe_topic(describe_topic_defaults(configs), {"cleanup.policy": "compact"}, None)
    assert told(entries, "cleanup.policy") == (
        "compact",
        1,
        [("cleanup.policy", "compact", 1), ("log.cleanup.policy", "delete", 5)],
    )
    assert told(entries, "segment.bytes") == (
        "2000000",
        4,
        [("log.segment.bytes", "2000000", 4), ("log.segment.bytes", "1073741824", 5)],
    )
    hours = [("log.retention.hours", "48", 4), ("log.retention.hours", "168", 5)]
    assert told(entries, "retention.ms") == ("5000", 3, [("log.retention.ms", "5000", 3), *hours])
    assert told(entries, "segment.ms") == (WEEK, 5, [])
    assert told(entries, "follower.replication.throttled.replicas") == ("", 5, [])
    assert "internal.segment.bytes" not in {entry.name for entry in entries}
    assert not any(entry.is_read_only or entry.is_sensitive for entry in entries)
    assert all(entry.documentation for entry in entries)


def test_an_internal_key_is_described_where_it_is_set() -> None:
    defaults = describe_topic_defaults(running())
    assert told(describe_topic(defaults, {"internal.segment.bytes": "9"}, None), "internal.segment.bytes")[:2] == (
        "9",
        1,
    )


def test_a_brokers_keys_are_described_with_their_sources() -> None:
    configs = running({"log.retention.ms": "9"}, of_all={"log.retention.ms": "8"}, broker_7={"log.retention.ms": "7"})
    entries = describe_broker(configs, None)
    every = [
        ("log.retention.ms", "7", 2),
        ("log.retention.ms", "8", 3),
        ("log.retention.ms", "9", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert told(entries, "log.retention.ms") == ("7", 2, every)
    assert told(entries, "log.retention.hours") == ("168", 5, [("log.retention.hours", "168", 5)])
    assert told(entries, "log.retention.minutes") == (None, 5, [])
    assert told(entries, "broker.id") == ("7", 4, [("broker.id", "7", 4), ("broker.id", "-1", 5)])
    assert told(entries, "log.cleaner.io.max.bytes.per.second")[0] == "1.7976931348623157E308"
    assert {entry.name for entry in entries if not entry.is_read_only} == DYNAMIC_KEYS
    assert {entry.wire_type for entry in entries} == set(WireType) - {WireType.UNKNOWN}


def test_what_is_set_on_all_brokers_is_described_alone() -> None:
    configs = running(of_all={"log.retention.ms": "8"}, broker_7={"log.retention.ms": "7", "max.connections": "3"})
    (entry,) = describe_all_brokers(configs, None)
    assert told([entry], "log.retention.ms") == ("8", 3, [("log.retention.ms", "8", 3)])
    assert describe_all_brokers(configs, ["max.connections"]) == []


def test_secrets_are_not_shown() -> None:
    """Neither as values nor as synonyms, under whatever name."""
    names = ("ssl.keystore.password", "listener.name.a.ssl.keystore.password", "rsm.config.token", "sasl.jaas.config")
    # Such a broker does not start yet: the description is as if it had.
    given = {name: Setting("hush", "settings") for name in names}
    values = {**load_config().values, **dict.fromkeys(names, "hush")}
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
def test_an_empty_list_means_all_keys(wanted: list[str] | None) -> None:
    defaults = describe_topic_defaults(running())
    assert len(describe_topic(defaults, {}, wanted)) == 46
    assert len(describe_broker(running(), wanted)) == 363 + len(OWN_KEYS)


def test_requested_keys_that_exist() -> None:
    """In the order of the table, each once."""
    defaults = describe_topic_defaults(running())
    wanted = ["segment.bytes", "no.such", "retention.ms", "segment.bytes"]
    assert [entry.name for entry in describe_topic(defaults, {}, wanted)] == ["retention.ms", "segment.bytes"]
    assert [entry.name for entry in describe_broker(running(), ["no.such", "log.dirs"])] == ["log.dirs"]


def test_a_new_topic_has_its_sources() -> None:
    """CreateTopics also returns a topic's configuration, with the source that DescribeConfigs has as a synonym."""
    configs = running({"log.roll.hours": "2"}, of_all={"log.retention.ms": "8"}, broker_7={"message.max.bytes": "7"})
    sources = {entry.name: entry.source for entry in describe_topic_configs(configs.current, {"preallocate": "true"})}
    assert sources["preallocate"] is ConfigSource.TOPIC
    assert sources["max.message.bytes"] is ConfigSource.DYNAMIC_BROKER
    assert sources["retention.ms"] is ConfigSource.DYNAMIC_DEFAULT_BROKER
    assert sources["segment.ms"] is ConfigSource.STATIC_BROKER
    assert sources["segment.bytes"] is ConfigSource.DEFAULT
    described = {
        entry.name: entry.source
        for entry in describe_topic(describe_topic_defaults(configs), {"preallocate": "true"}, None)
    }
    assert {name for name, source in sources.items() if described[name] is not source} == {"segment.ms"}


def test_what_stands_for_a_configuration_that_cannot_be_read_is_possible_and_deletes_nothing() -> None:
    """Whatever the broker was started with, and whether it is set on all brokers, on this one, or on a topic."""
    deleting = {
        "log.retention.ms": "1",
        "log.retention.bytes": "1",
        "log.cleanup.policy": "compact",
        "log.retention.min.timestamp": "9",
    }
    consuming = {"log.retention.commitoffset.enable": "true", "log.retention.commitoffset.ms": "1"}
    configs = running(deleting | consuming)
    assert log_config(configs.current, {}).retention_ms == 1
    of_topic = log_config(configs.current, KEEPING_CONFIGS)
    assert configs.follow(image(of_all=dict(KEEPING_BROKER_CONFIGS), broker_7=dict(KEEPING_BROKER_CONFIGS))) is None
    assert not configs.current.values["log.retention.commitoffset.enable"]
    for kept in (of_topic, log_config(configs.current, {})):
        assert (kept.retention_ms, kept.retention_bytes, kept.log_retention_min_timestamp) == (-1, -1, 0)
        assert kept.cleanup_policy == {"delete"}
    assert of_topic.retention_commitoffset_ms == -1
    assert validate_topic_configs(configs.current, KEEPING_CONFIGS) == dict(KEEPING_CONFIGS)
