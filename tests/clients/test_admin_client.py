"""Our own admin client against real brokers: its reported results are true, as other clients show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from lowtide import AdminClient, BlockingAdminClient, LowtideCluster, TopicPartition
from lowtide.admin import (
    BrokerAnsweredError,
    ClientSettings,
    Committed,
    CommittedOffset,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    CreatedTopic,
    DeletedRecords,
    DeleteRecordsError,
    GroupDescription,
    LeaderOnlyUnsupportedError,
    LogDir,
    NewTopic,
    OffsetSpec,
    Timestamp,
    TopicDescription,
)
from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.tls import TlsError
from tests.free_ports import free_ports

from .driver_confluent import Confluent
from .tls_proxy import CERTIFICATE, TlsProxy

START_MS = int(time.time() * 1000) - 3_600_000
MANY = 500
"""Partitions in one call. The unit tests have ten thousand: creating them takes the brokers too long."""


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(three: LowtideCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(three.bootstrap) as client:
        yield client


@pytest.fixture
def topic(three: LowtideCluster, admin: BlockingAdminClient, lowtide_topic: str) -> str:
    """Three partitions on three brokers with three replicas, ten records in each, a second apart."""
    made = admin.create_topics([NewTopic(name=lowtide_topic, partitions=3, replication_factor=3)])[lowtide_topic]
    assert isinstance(made, CreatedTopic)
    fill(three.bootstrap, lowtide_topic)
    return lowtide_topic


def fill(bootstrap: str, topic: str, partitions: int = 3) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(10):
        for partition in range(partitions):
            producer.produce(topic, b"%d" % number, partition=partition, timestamp=START_MS + number * 1000)
    assert producer.flush(120) == 0


def partitions(topic: str, count: int = 3) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


def test_deletes_by_offset_time_and_high_watermark(
    admin: BlockingAdminClient, three: LowtideCluster, topic: str
) -> None:
    first, second, third = partitions(topic)
    targets = {first: 4, second: Timestamp(START_MS + 6500), third: -1}
    assert admin.resolve_delete_targets(targets) == {first: 4, second: 7, third: 10}
    assert admin.delete_records(targets) == {
        first: DeletedRecords(4, 4),
        second: DeletedRecords(7, 7),
        third: DeletedRecords(10, 10),
    }
    assert Confluent(three.bootstrap).offsets(topic, range(3)) == {0: (4, 10), 1: (7, 10), 2: (10, 10)}
    error = admin.delete_records({first: 11})[first]
    assert isinstance(error, DeleteRecordsError)
    assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_deletes_of_what_groups_have_consumed(admin: BlockingAdminClient, topic: str) -> None:
    first, second, _ = partitions(topic)
    assert admin.alter_group_offsets("one", {first: 6, second: 9}) == {first: None, second: None}
    assert admin.alter_group_offsets("two", {first: 8}) == {first: None}
    assert admin.list_group_offsets({"one": None, "two": [first, second]}) == {
        "one": {first: CommittedOffset(offset=6), second: CommittedOffset(offset=9)},
        "two": {first: CommittedOffset(offset=8)},
    }
    results = admin.delete_records({first: Committed(["one", "two"]), second: Committed(["one", "two"])})
    assert results[first] == DeletedRecords(6, 6)
    assert isinstance(results[second], DeleteRecordsError)
    assert admin.delete_group_offsets("one", [second]) == {second: None}
    assert admin.list_group_offsets(["one"]) == {"one": {first: CommittedOffset(offset=6)}}
    assert admin.delete_groups(["one", "two"]) == {"one": None, "two": None}


def test_a_leader_only_delete_is_answered_by_the_leader(admin: BlockingAdminClient, topic: str) -> None:
    (first, *_) = partitions(topic)
    result = admin.delete_records({first: 5}, leader_only=True)[first]
    assert isinstance(result, DeletedRecords)
    assert result.leader_log_start_offset == 5
    assert result.low_watermark <= 5
    assert admin.delete_records({first: 5}) == {first: DeletedRecords(5, 5)}


def test_a_re_created_topic_is_not_touched(admin: BlockingAdminClient, three: LowtideCluster, topic: str) -> None:
    described = admin.describe_topics([topic])[topic]
    assert isinstance(described, TopicDescription)
    assert described.topic_id is not None
    ids = {topic: described.topic_id}
    first = TopicPartition(topic, 0)
    assert admin.delete_records({first: 2}, topic_ids=ids) == {first: DeletedRecords(2, 2)}
    assert admin.delete_topics([topic]) == {topic: None}
    made = admin.create_topics([NewTopic(name=topic, partitions=3, replication_factor=3)])
    assert isinstance(made[topic], CreatedTopic)
    fill(three.bootstrap, topic)
    error = admin.delete_records({first: 5}, topic_ids=ids)[first]
    assert isinstance(error, DeleteRecordsError)
    assert "created again" in str(error)
    listed = admin.list_offsets({first: OffsetSpec.EARLIEST})[first]
    assert not isinstance(listed, Exception)
    assert listed.offset == 0


def test_many_partitions_in_one_call(admin: BlockingAdminClient, lowtide_topic: str) -> None:
    """All partitions of a leader in one request; the offsets are looked up, and the topics' ids are checked."""
    made = admin.create_topics([NewTopic(name=lowtide_topic, partitions=MANY, replication_factor=1)])[lowtide_topic]
    assert isinstance(made, CreatedTopic)
    results = admin.delete_records(dict.fromkeys(partitions(lowtide_topic, MANY), -1), leader_only=True)
    assert results == dict.fromkeys(partitions(lowtide_topic, MANY), DeletedRecords(0, 0))
    assert admin.delete_topics([lowtide_topic]) == {lowtide_topic: None}


def test_a_broker_without_version_3() -> None:
    """Such a broker is like Kafka today; the client deletes nothing."""
    with (
        LowtideCluster(config={"lowtide.max.version.DeleteRecords": "2"}) as cluster,
        BlockingAdminClient(cluster.bootstrap) as admin,
    ):
        admin.create_topics([NewTopic(name="t", partitions=1)])
        fill(cluster.bootstrap, "t", 1)
        first = TopicPartition("t", 0)
        assert isinstance(admin.delete_records({first: 5}, leader_only=True)[first], LeaderOnlyUnsupportedError)
        assert Confluent(cluster.bootstrap).offsets("t", [0]) == {0: (0, 10)}
        assert admin.delete_records({first: 5}) == {first: DeletedRecords(5, -1)}


def test_topics_and_their_configurations(admin: BlockingAdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    missing = ConfigResource(ConfigResourceType.TOPIC, "nowhere")
    assert admin.alter_configs({resource: [ConfigChange("retention.ms", "1234567")]}) == {resource: None}
    found = admin.describe_configs([resource, missing], keys=["retention.ms"], synonyms=True)
    described, unknown = found[resource], found[missing]
    assert isinstance(described, dict)
    assert (described["retention.ms"].value, described["retention.ms"].is_default) == ("1234567", False)
    assert isinstance(unknown, BrokerAnsweredError)
    assert unknown.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert admin.alter_configs({resource: [ConfigChange("retention.ms", operation=ConfigOperation.DELETE)]}) == {
        resource: None
    }
    assert admin.create_partitions({topic: 5}) == {topic: None}
    grown = admin.describe_topics([topic])[topic]
    assert isinstance(grown, TopicDescription)
    assert list(grown.partitions) == [0, 1, 2, 3, 4]
    assert set(admin.list_topics()) >= {topic}
    again = admin.create_topics([NewTopic(name=topic, partitions=1)])[topic]
    assert isinstance(again, BrokerAnsweredError)
    assert again.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert admin.delete_topics([topic]) == {topic: None}
    assert isinstance(admin.describe_topics([topic])[topic], BrokerAnsweredError)


def test_records_can_be_read(admin: BlockingAdminClient, topic: str) -> None:
    fetched = admin.fetch_records(TopicPartition(topic, 1), 7)
    records = [
        record
        for start, _ in iterate_batches(fetched.records)
        for record in iterate_records(fetched.records[start:], max_bytes=1 << 20)
    ]
    assert [bytes(record.value or b"") for record in records if record.offset >= 7] == [b"7", b"8", b"9"]
    assert (fetched.log_start_offset, fetched.high_watermark) == (0, 10)
    with pytest.raises(BrokerAnsweredError, match="OFFSET_OUT_OF_RANGE"):
        admin.fetch_records(TopicPartition(topic, 1), 11)


def test_the_cluster_and_its_directories(admin: BlockingAdminClient, three: LowtideCluster, topic: str) -> None:
    described = admin.describe_cluster()
    assert [str(broker.address) for broker in described.brokers] == [
        three.address(broker_id) for broker_id in (1, 2, 3)
    ]
    assert described.controller_id in (1, 2, 3)
    directories = admin.describe_log_dirs(partitions=[TopicPartition(topic, 0)])
    assert list(directories) == [1, 2, 3]
    for of_broker in directories.values():
        assert isinstance(of_broker, dict)
        (directory,) = of_broker.values()
        assert isinstance(directory, LogDir)
        assert directory.replicas[TopicPartition(topic, 0)].size_bytes > 0
    assert "transaction.version" in admin.describe_features()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_both_kinds(admin: BlockingAdminClient, three: LowtideCluster, topic: str, protocol: str) -> None:
    from confluent_kafka import Consumer

    group = f"{topic}-{protocol}"
    settings = {
        "bootstrap.servers": three.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings | {"log_level": 0})
    try:
        consumer.subscribe([topic])
        assert consumer.poll(60) is not None
        described = admin.describe_groups([group])[group]
        assert isinstance(described, GroupDescription)
        assert (described.kind, described.protocol_type) == (protocol, "consumer")
        (member,) = described.members
        assert member.assignment == tuple(partitions(topic))
        assert admin.list_groups(kinds=[protocol]).groups[group].kind == protocol
        refused = admin.delete_groups([group])[group]
        assert isinstance(refused, BrokerAnsweredError)
        assert refused.code == ErrorCode.NON_EMPTY_GROUP
    finally:
        consumer.close()


async def test_many_calls_at_once_on_one_client(three: LowtideCluster, topic: str) -> None:
    """They share connections, and each gets its own answer."""
    async with AdminClient(three.bootstrap) as admin:
        asked = partitions(topic)
        calls = [admin.list_offsets({asked[number % 3]: OffsetSpec.LATEST}) for number in range(60)]
        deletes = [admin.delete_records({asked[number % 3]: number % 10}) for number in range(12)]
        results = await asyncio.gather(*calls, *deletes)
    for number, result in enumerate(results[:60]):
        assert result[asked[number % 3]].offset == 10
    assert all(isinstance(value, DeletedRecords) for result in results[60:] for value in result.values())


async def test_the_blocking_client_inside_a_running_loop(three: LowtideCluster, topic: str) -> None:
    """It works in a notebook, whose running event loop cannot wait."""
    with BlockingAdminClient(three.bootstrap) as admin:
        assert set(admin.list_topics()) >= {topic}


@pytest.mark.slow
def test_tls(lowtide_topic: str) -> None:
    """A broker behind a proxy that terminates TLS: clients trust its certificate, and no plain text passes."""
    port, inside = free_ports(2)
    config = {"listeners": f"PLAINTEXT://127.0.0.1:{inside}", "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with LowtideCluster(config=config), TlsProxy(port, inside):
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SSL"}
        with BlockingAdminClient(
            settings | {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(CERTIFICATE)}
        ) as admin:
            assert isinstance(
                admin.create_topics([NewTopic(name=lowtide_topic, partitions=1)])[lowtide_topic], CreatedTopic
            )
            assert admin.delete_records({TopicPartition(lowtide_topic, 0): -1}) == {
                TopicPartition(lowtide_topic, 0): DeletedRecords(0, 0)
            }
        with (
            BlockingAdminClient(settings) as stranger,
            pytest.raises(Exception, match="its certificate is not trusted"),
        ):
            stranger.list_topics()
        plain = {"bootstrap.servers": f"127.0.0.1:{port}"}
        with (
            BlockingAdminClient(plain) as wrong,
            pytest.raises(TimeoutError, match=r"it may expect another security\.protocol"),
        ):
            wrong.list_topics(timeout=4)
        trusting = ClientSettings.of(
            settings | {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(CERTIFICATE)}
        )
        deadline_ms = SystemClock().monotonic_ms() + 30_000
        with BlockingConnection.open(trusting.bootstrap_servers[0], trusting, deadline_ms) as connection:
            large = MetadataRequest(topics=[MetadataRequestTopic(name=lowtide_topic)] * 3000)
            for request in (MetadataRequest(topics=[]), large, MetadataRequest(topics=[])):
                connection.send(request, deadline_ms)
            assert [bool(connection.receive(deadline_ms).topics) for _ in range(3)] == [False, True, False]
        distrusting = ClientSettings.of(settings)
        with pytest.raises(TlsError, match="its certificate is not trusted"):
            BlockingConnection.open(distrusting.bootstrap_servers[0], distrusting, deadline_ms)
        unencrypted = {"bootstrap.servers": f"127.0.0.1:{inside}", "security.protocol": "SSL"}
        with BlockingAdminClient(unencrypted) as wrong, pytest.raises(TimeoutError, match="TLS"):
            wrong.list_topics(timeout=4)
