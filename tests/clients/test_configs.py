"""Clients describe configurations and change them, and a change applies to the next record."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import aiokafka.errors
import kafka.errors
import pytest
from confluent_kafka import KafkaException
from kafka.admin import ConfigResourceType

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.simulation.client import WireClient
from lowtide.testing.cluster import LowtideCluster

from .configuring import (
    AiokafkaConfigurer,
    ConfigDescription,
    Configurer,
    ConfluentConfigurer,
    KafkaAdminClient,
    KafkaPythonConfigurer,
    KafkaPythonResource,
)
from .driver import DEADLINE_S, Driver, OutgoingRecord, until
from .driver_confluent import Confluent

KINDS: dict[str, Callable[[str], Configurer]] = {
    kind.name: kind for kind in (ConfluentConfigurer, KafkaPythonConfigurer, AiokafkaConfigurer)
}
INCREMENTAL = [name for name in KINDS if name != AiokafkaConfigurer.name]
REPLACING = [name for name in KINDS if name != KafkaPythonConfigurer.name]

REFUSED = (KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)
LONG_AGO_MS = 1_000_000_000_000
KAFKAS_TOPIC_KEYS = 37
"""The number of topic keys that Apache Kafka 4.4 describes, without that of dead letters."""
KEYS_OF_PROPOSALS = {  # KIP-47, KIP-68
    "log.retention.min.timestamp",
    "retention.commitoffset.hours",
    "retention.commitoffset.minutes",
    "retention.commitoffset.ms",
}
OWN_KEYS = {
    "lowtide.delete.erase",
    "lowtide.erasure.key.filter",
    "lowtide.hold.reason",
    "lowtide.hold.until",
    "lowtide.retention.commitoffset.groups",
}

DELETION_KEYS = {
    "cleanup.policy": "compact,delete",
    "file.delete.delay.ms": "1000",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "log.retention.min.timestamp": "1000000000000",
    "message.timestamp.type": "LogAppendTime",
    "retention.bytes": "1000000000",
    "retention.commitoffset.hours": "1",
    "retention.commitoffset.minutes": "30",
    "retention.commitoffset.ms": "1000",
    "retention.ms": "86400000",
    "segment.bytes": "2000000",
    "segment.jitter.ms": "1000",
    "segment.ms": "3600000",
}


@pytest.fixture(params=list(KINDS))
def configurer(request: pytest.FixtureRequest, lowtide: SimpleNamespace) -> Configurer:
    """Each client with configuration requests."""
    return KINDS[request.param](lowtide.bootstrap)


@pytest.fixture(params=INCREMENTAL)
def incremental(request: pytest.FixtureRequest, lowtide: SimpleNamespace) -> Configurer:
    """Each client that can change single keys."""
    return KINDS[request.param](lowtide.bootstrap)


@pytest.fixture
def free_broker(configurer: Configurer, lowtide: SimpleNamespace) -> Iterator[Configurer]:
    """A client whose changes of the broker are undone."""
    yield configurer
    AiokafkaConfigurer(lowtide.bootstrap).replace("BROKER", "0", {})


def test_a_new_topics_configuration_is_described(configurer: Configurer, other: Driver, lowtide_topic: str) -> None:
    """All keys, with their values and sources; a client that requests some receives those."""
    other.create_topic(lowtide_topic, 1, {"retention.ms": "3600000", "cleanup.policy": "compact,delete"})
    told = configurer.describe("TOPIC", lowtide_topic)
    assert told["retention.ms"] == ConfigDescription(
        "3600000", "DYNAMIC_TOPIC_CONFIG", is_read_only=False, is_sensitive=False
    )
    assert told["cleanup.policy"].value == "compact,delete"
    assert told["max.message.bytes"] == ConfigDescription(
        "1048588", "DEFAULT_CONFIG", is_read_only=False, is_sensitive=False
    )
    assert told.keys() >= KEYS_OF_PROPOSALS | OWN_KEYS
    assert len(told.keys() - KEYS_OF_PROPOSALS - OWN_KEYS) == KAFKAS_TOPIC_KEYS
    assert set(configurer.describe("TOPIC", lowtide_topic, ["retention.ms", "no.such.key"])) == {"retention.ms"}


def test_a_brokers_configuration_is_described(configurer: Configurer) -> None:
    told = configurer.describe("BROKER", "0")
    assert told["num.partitions"] == ConfigDescription("1", "DEFAULT_CONFIG", is_read_only=True, is_sensitive=False)
    assert told["log.dirs"].source == "STATIC_BROKER_CONFIG"
    assert not told["log.retention.ms"].is_read_only
    assert told["ssl.keystore.password"] == ConfigDescription(
        None, "DEFAULT_CONFIG", is_read_only=True, is_sensitive=True
    )


def test_single_keys_are_set_appended_to_and_deleted(incremental: Configurer, topic: str) -> None:
    """Keys that a change does not name stay."""
    incremental.alter(
        "TOPIC",
        topic,
        {"retention.ms": ("SET", "5000"), "segment.ms": ("SET", "6000"), "cleanup.policy": ("APPEND", "compact")},
    )
    told = incremental.describe("TOPIC", topic)
    assert [told[key].value for key in ("retention.ms", "segment.ms", "cleanup.policy")] == [
        "5000",
        "6000",
        "delete,compact",
    ]
    incremental.alter("TOPIC", topic, {"retention.ms": ("DELETE", ""), "cleanup.policy": ("SUBTRACT", "delete")})
    told = incremental.describe("TOPIC", topic)
    assert told["retention.ms"] == ConfigDescription(
        "604800000", "DEFAULT_CONFIG", is_read_only=False, is_sensitive=False
    )
    assert [told[key].value for key in ("segment.ms", "cleanup.policy")] == ["6000", "compact"]


def test_every_key_about_deletion_is_set(incremental: Configurer, topic: str) -> None:
    """Also those of KIP-47 and KIP-68, which no client knows; each is described as it was set, and reset."""
    incremental.alter("TOPIC", topic, {key: ("SET", value) for key, value in DELETION_KEYS.items()})
    told = incremental.describe("TOPIC", topic)
    assert {key: entry.value for key, entry in told.items() if entry.source == "DYNAMIC_TOPIC_CONFIG"} == DELETION_KEYS
    incremental.alter("TOPIC", topic, dict.fromkeys(DELETION_KEYS, ("DELETE", "")))
    told = incremental.describe("TOPIC", topic)
    assert {told[key].source for key in DELETION_KEYS} == {"DEFAULT_CONFIG"}


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        (
            {"retention.commitoffset.ms": "6000", "retention.ms": "5000"},
            ["retention.commitoffset.ms=6000", "retention.ms=5000"],
        ),
        (
            {"retention.commitoffset.hours": "1", "retention.ms": "5000"},
            ["retention.commitoffset.hours=1", "retention.ms=5000"],
        ),
        ({"log.retention.min.timestamp": "-1"}, ["log.retention.min.timestamp=-1"]),
        ({"local.retention.ms": "-3"}, ["local.retention.ms=-3"]),
        ({"remote.storage.enable": "true"}, ["remote.storage.enable=true", "no tiered storage"]),
    ],
)
def test_impossible_retention_is_refused_with_both_values(
    configs: dict[str, str], words: list[str], lowtide: SimpleNamespace, plain_topic: str
) -> None:
    """Refused when a topic is created or changed; the client receives the message."""
    confluent = ConfluentConfigurer(lowtide.bootstrap)
    with pytest.raises(KafkaException) as altered:
        confluent.alter("TOPIC", plain_topic, {key: ("SET", value) for key, value in configs.items()})
    with pytest.raises(KafkaException) as made:
        Confluent(lowtide.bootstrap).create_topic(f"{plain_topic}-not", 1, configs)
    for refusal in (altered, made):
        assert all(word in str(refusal.value) for word in words), refusal.value
    assert {entry.source for entry in confluent.describe("TOPIC", plain_topic, list(configs)).values()} == {
        "DEFAULT_CONFIG"
    }


@pytest.mark.parametrize("name", REPLACING)
def test_the_older_request_replaces_all_keys(name: str, lowtide: SimpleNamespace, topic: str) -> None:
    configurer = KINDS[name](lowtide.bootstrap)
    for wanted in ({"retention.ms": "5000", "segment.ms": "6000"}, {"segment.ms": "7000"}, {}):
        configurer.replace("TOPIC", topic, wanted)
        told = configurer.describe("TOPIC", topic)
        assert {key: entry.value for key, entry in told.items() if entry.source == "DYNAMIC_TOPIC_CONFIG"} == wanted


def test_kafka_python_replaces_with_what_is_set(lowtide: SimpleNamespace, topic: str) -> None:
    """It requests the keys first, and sends those that the caller did not name too."""
    configurer = KafkaPythonConfigurer(lowtide.bootstrap)
    configurer.replace("TOPIC", topic, {"retention.ms": "5000"})
    configurer.replace("TOPIC", topic, {"segment.ms": "6000"})
    told = configurer.describe("TOPIC", topic)
    assert (told["retention.ms"].value, told["segment.ms"].value) == ("5000", "6000")
    listed = configurer.list()
    assert topic in listed["topic"]
    assert listed["broker"] == listed["broker_logger"] == ["0"]


@pytest.mark.parametrize(
    ("kind", "name", "configs", "reason"),
    [
        ("TOPIC", None, {"segment.bytes": "1"}, r"INVALID_CONFIG|InvalidConfigurationError"),
        (
            "TOPIC",
            None,
            {"retention.ms": "5", "min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"},
            r"INVALID_CONFIG|InvalidConfig",
        ),
        ("TOPIC", "there-is-no-such-topic", {"retention.ms": "5"}, r"UNKNOWN_TOPIC_OR_PART|UnknownTopicOrPartition"),
        ("BROKER", "0", {"num.io.threads": "9"}, r"INVALID_REQUEST|InvalidRequest"),
        ("BROKER", "0", {"log.segment.bytes": "9"}, r"INVALID_REQUEST|InvalidRequest"),
    ],
)
@pytest.mark.parametrize("client", REPLACING)
def test_an_invalid_change_is_refused_and_changes_nothing(
    client: str,
    kind: str,
    name: str | None,
    configs: dict[str, str],
    reason: str,
    lowtide: SimpleNamespace,
    plain_topic: str,
) -> None:
    """The error is Kafka's, with a message about the key."""
    configurer = KINDS[client](lowtide.bootstrap)
    with pytest.raises(REFUSED) as refusal:
        configurer.replace("BROKER" if kind == "BROKER" else "TOPIC", name or plain_topic, configs)
    assert re.search(reason, repr(refusal.value))
    assert configurer.describe("TOPIC", plain_topic)["retention.ms"].source == "DEFAULT_CONFIG"


def test_a_lowered_limit_refuses_the_next_batch(incremental: Configurer, topic: str, lowtide: SimpleNamespace) -> None:
    producer = Confluent(lowtide.bootstrap)
    large = [OutgoingRecord(b"k", b"x" * 5000)]
    producer.produce(topic, large)
    incremental.alter("TOPIC", topic, {"max.message.bytes": ("SET", "1000")})
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        producer.produce(topic, large)
    producer.produce(topic, [OutgoingRecord(b"k", b"small")])
    incremental.alter("TOPIC", topic, {"max.message.bytes": ("DELETE", "")})
    producer.produce(topic, large)
    assert producer.offsets(topic, [0]) == {0: (0, 3)}


def test_the_next_record_has_the_brokers_time(incremental: Configurer, topic: str, other: Driver) -> None:
    """LogAppendTime from one record to the next, and CreateTime again."""
    old = OutgoingRecord(b"k", b"v", LONG_AGO_MS)
    other.produce(topic, [old])
    incremental.alter("TOPIC", topic, {"message.timestamp.type": ("SET", "LogAppendTime")})
    before_ms = time.time() * 1000
    other.produce(topic, [old])
    incremental.alter("TOPIC", topic, {"message.timestamp.type": ("DELETE", "")})
    other.produce(topic, [old])
    with other.reader(topic, 0, 0) as reader:
        times_ms = [record.timestamp_ms for record in reader.read(3)]
    assert times_ms[0] == times_ms[2] == LONG_AGO_MS
    assert times_ms[1] >= before_ms - 1


def test_the_next_batch_begins_a_smaller_segment(
    incremental: Configurer, topic: str, other: Driver, lowtide: SimpleNamespace
) -> None:
    """A log that is open, and written to, follows a new segment.bytes."""
    folder = Path(lowtide.data_directory) / f"{topic}-0"
    for _ in range(3):
        other.produce(topic, [OutgoingRecord(b"k", b"x" * 600_000)])
    assert len(list(folder.glob("*.log"))) == 1
    incremental.alter("TOPIC", topic, {"segment.bytes": ("SET", "1048576")})
    for _ in range(2):
        other.produce(topic, [OutgoingRecord(b"k", b"x" * 600_000)])
    assert len(list(folder.glob("*.log"))) == 3


def test_a_topic_that_is_only_compacted_keeps_its_records(incremental: Configurer, topic: str, other: Driver) -> None:
    """DeleteRecords follows cleanup.policy at once, both ways; and a record without a key is refused meanwhile."""
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 3)
    incremental.alter("TOPIC", topic, {"cleanup.policy": ("SET", "compact")})
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        other.delete_records(topic, {0: 2})
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        other.produce(topic, [OutgoingRecord(None, b"v")])
    incremental.alter("TOPIC", topic, {"cleanup.policy": ("APPEND", "delete")})
    assert other.delete_records(topic, {0: 2}) == {0: 2}


def test_a_brokers_default_applies_to_topics_that_set_nothing(
    free_broker: Configurer, topic: str, other: Driver, lowtide_topic: str
) -> None:
    """The change applies at once, until it is reset. Topics with their own limit keep it."""
    own = f"{lowtide_topic}-own"
    other.create_topic(own, 1, {"max.message.bytes": "9000"})
    large = [OutgoingRecord(b"k", b"x" * 5000)]
    free_broker.replace("BROKER", "0", {"message.max.bytes": "1000"})
    assert free_broker.describe("TOPIC", topic)["max.message.bytes"][:2] == ("1000", "DYNAMIC_BROKER_CONFIG")
    assert free_broker.describe("BROKER", "0")["message.max.bytes"][:2] == ("1000", "DYNAMIC_BROKER_CONFIG")
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        other.produce(topic, large)
    until(lambda: other.partition_count(own) == 1)
    other.produce(own, large)
    if free_broker.replaces:
        free_broker.replace("BROKER", "0", {})
    else:
        free_broker.alter("BROKER", "0", {"message.max.bytes": ("DELETE", "")})
    other.produce(topic, large)


def test_what_is_set_survives_a_restart() -> None:
    """Configurations of topics and brokers survive; deleted ones do not return."""
    with LowtideCluster() as cluster:
        Confluent(cluster.bootstrap).create_topic("t", 1, {"retention.ms": "5000"})
        configurer = ConfluentConfigurer(cluster.bootstrap)
        configurer.alter("TOPIC", "t", {"segment.ms": ("SET", "6000"), "retention.ms": ("DELETE", "")})
        configurer.alter("BROKER", "0", {"message.max.bytes": ("SET", "1000")})
        cluster.restart()
        configurer = ConfluentConfigurer(cluster.bootstrap)
        told = configurer.describe("TOPIC", "t")
        assert told["segment.ms"][:2] == ("6000", "DYNAMIC_TOPIC_CONFIG")
        assert told["retention.ms"].source == "DEFAULT_CONFIG"
        assert told["max.message.bytes"][:2] == ("1000", "DYNAMIC_BROKER_CONFIG")
        with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
            Confluent(cluster.bootstrap).produce("t", [OutgoingRecord(b"k", b"x" * 5000)])


def test_a_lowered_number_of_connections_refuses_the_next_one() -> None:
    """Open connections stay open, and can reset the limit."""
    with LowtideCluster() as cluster:
        configurer = KafkaPythonConfigurer(cluster.bootstrap)
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as early:
            resource = KafkaPythonResource("BROKER", "0", {"max.connections": "1"})
            early.alter_configs([resource])
            with socket.create_connection((cluster.host, cluster.port)) as late:
                late.settimeout(DEADLINE_S)
                assert late.recv(1) == b""
            early.alter_configs([KafkaPythonResource("BROKER", "0", {"max.connections": ("DELETE", None)})])
            assert configurer.describe("BROKER", "0")["max.connections"].source == "DEFAULT_CONFIG"


def test_a_groups_times_survive_a_restart_and_reach_its_members(tmp_path: Path) -> None:
    """kafka-python sets them before the group exists; the first member receives the interval."""
    key, group = "consumer.heartbeat.interval.ms", "pickers"

    def described(bootstrap: str) -> dict[str, str]:
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
            found = client.describe_configs([KafkaPythonResource(ConfigResourceType.GROUP, group)])["group"][group]
        return {name: each["config_source"] for name, each in found.items() if each["value"] == "7000"}

    with (
        LowtideCluster(data_directory=tmp_path) as cluster,
        closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as client,
    ):
        client.alter_configs([KafkaPythonResource(ConfigResourceType.GROUP, group, {key: "7000"})])
        assert described(cluster.bootstrap) == {key: "DYNAMIC_GROUP_CONFIG"}
    with LowtideCluster(data_directory=tmp_path) as cluster:
        assert described(cluster.bootstrap) == {key: "DYNAMIC_GROUP_CONFIG"}
        host, _, port = cluster.bootstrap.partition(":")
        assert asyncio.run(_interval_told_to_a_member(host, int(port), group)) == 7_000


async def _interval_told_to_a_member(host: str, port: int, group: str) -> int:
    client = await WireClient.connect(host, port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await client.request(
                    ConsumerGroupHeartbeatRequest(
                        group_id=group,
                        member_id="picker-1",
                        member_epoch=0,
                        rebalance_timeout_ms=5_000,
                        subscribed_topic_names=["orders"],
                        topic_partitions=[],
                    ),
                    1,
                )
                if answer.error_code == ErrorCode.NONE:
                    return int(answer.heartbeat_interval_ms)
                await client.request(
                    FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4
                )  # It creates the topic if needed.
                await asyncio.sleep(0.1)
    finally:
        client.close()
