"""Our admin client against Apache Kafka: every method and login; features that Kafka lacks are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from lowtide import BlockingAdminClient, TopicPartition
from lowtide.admin import (
    AuthenticationFailedError,
    BrokerAnsweredError,
    ClientSettings,
    Committed,
    CommittedOffset,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    CreatedTopic,
    DeletedRecords,
    DeleteRecordsError,
    GroupDescription,
    LeaderOnlyUnsupportedError,
    NewTopic,
    OffsetSpec,
    Timestamp,
    TopicDescription,
)
from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.records import iterate_batches
from lowtide.runtime.clock import SystemClock

from .secured_kafka import SecuredKafka

pytestmark = pytest.mark.interop

START_MS = int(time.time() * 1000) - 3_600_000


@pytest.fixture(scope="module")
def admin(secured: SecuredKafka) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(secured.node.bootstrap) as client:
        yield client


@pytest.fixture
def topic(secured: SecuredKafka, admin: BlockingAdminClient, lowtide_topic: str) -> str:
    """Three partitions with ten records each, a second apart."""
    make(admin, secured, lowtide_topic)
    return lowtide_topic


def make(admin: BlockingAdminClient, secured: SecuredKafka, topic: str) -> None:
    made = admin.create_topics([NewTopic(name=topic, partitions=3, replication_factor=1)])[topic]
    assert isinstance(made, CreatedTopic), made
    producer = Producer({"bootstrap.servers": secured.node.bootstrap})
    for number in range(10):
        for partition in range(3):
            producer.produce(topic, b"%d" % number, partition=partition, timestamp=START_MS + number * 1000)
    assert producer.flush(60) == 0


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(3)]


def test_deletes(admin: BlockingAdminClient, topic: str) -> None:
    """Deletes by offset, by time, to the high watermark and by groups. Kafka returns no log start of the leader."""
    first, second, third = partitions(topic)
    targets = {first: 4, second: Timestamp(START_MS + 6500), third: -1}
    assert admin.delete_records(targets) == {
        first: DeletedRecords(4),
        second: DeletedRecords(7),
        third: DeletedRecords(10),
    }
    assert admin.delete_records({second: Timestamp(START_MS + 3_600_000)}) == {second: DeletedRecords(10)}
    earliest = admin.list_offsets(dict.fromkeys(partitions(topic), OffsetSpec.EARLIEST))
    assert [listed.offset for listed in earliest.values()] == [4, 10, 10]
    assert admin.alter_group_offsets("one", {first: 7}) == {first: None}
    assert admin.alter_group_offsets("two", {first: 6, second: 10}) == {first: None, second: None}
    results = admin.delete_records({first: Committed(["one", "two"]), second: Committed(["one", "two"])})
    assert results[first] == DeletedRecords(6)
    assert isinstance(results[second], DeleteRecordsError)
    too_far = admin.delete_records({first: 11})[first]
    assert isinstance(too_far, DeleteRecordsError)
    assert too_far.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_times_that_only_deleted_records_reach(admin: BlockingAdminClient, topic: str) -> None:
    """The newest record is below the log start: Kafka's largest timestamp may still be that record's.

    No newer record is deleted.
    """
    first = TopicPartition(topic, 0)
    admin.delete_records({first: 10})
    result = admin.delete_records({first: Timestamp(START_MS + 5000)})[first]
    if isinstance(result, DeleteRecordsError):
        assert "is not known" in str(result)
    else:
        assert result == DeletedRecords(10)


def test_leader_only_deletes_are_refused(admin: BlockingAdminClient, topic: str) -> None:
    first = TopicPartition(topic, 0)
    assert isinstance(admin.delete_records({first: 4}, leader_only=True)[first], LeaderOnlyUnsupportedError)
    listed = admin.list_offsets({first: OffsetSpec.EARLIEST})[first]
    assert not isinstance(listed, Exception)
    assert listed.offset == 0


def test_a_re_created_topic_is_not_touched(admin: BlockingAdminClient, secured: SecuredKafka, topic: str) -> None:
    described = admin.describe_topics([topic])[topic]
    assert isinstance(described, TopicDescription)
    assert described.topic_id is not None
    assert admin.delete_topics([topic]) == {topic: None}
    make(admin, secured, topic)
    first = TopicPartition(topic, 0)
    error = admin.delete_records({first: 5}, topic_ids={topic: described.topic_id})[first]
    assert isinstance(error, DeleteRecordsError)
    assert "created again" in str(error)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_logging_in(secured: SecuredKafka, topic: str, protocol: str, mechanism: str) -> None:
    with BlockingAdminClient(secured.settings(protocol, mechanism)) as client:
        assert client.delete_records({TopicPartition(topic, 0): 3}) == {TopicPartition(topic, 0): DeletedRecords(3)}
    with (
        BlockingAdminClient(secured.settings(protocol, mechanism, "wrong")) as stranger,
        pytest.raises(AuthenticationFailedError, match="alice cannot log in"),
    ):
        stranger.list_topics()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_logging_in_over_a_blocking_socket(secured: SecuredKafka, topic: str, protocol: str, mechanism: str) -> None:
    """Like Spark workers, with several answers in a row, one of them larger than a TLS record."""
    clock = SystemClock()
    settings = ClientSettings.of(secured.settings(protocol, mechanism))
    asked = [
        MetadataRequest(topics=[MetadataRequestTopic(name=name)] * count)
        for name, count in ((topic, 1), (topic, 2000), ("none", 1))
    ]
    with BlockingConnection.open(settings.bootstrap_servers[0], settings, clock.monotonic_ms() + 30_000) as connection:
        for request in asked:
            connection.send(request, clock.monotonic_ms() + 30_000)
        answers = [connection.receive(clock.monotonic_ms() + 30_000) for _ in asked]
        assert [{row.name for row in answer.topics} for answer in answers] == [{topic}, {topic}, {"none"}]
        assert not connection.waiting_count
    wrong = ClientSettings.of(secured.settings(protocol, mechanism, "wrong"))
    with pytest.raises(AuthenticationFailedError, match="alice cannot log in"):
        BlockingConnection.open(wrong.bootstrap_servers[0], wrong, clock.monotonic_ms() + 30_000)


def test_the_wrong_listener_is_reported(secured: SecuredKafka) -> None:
    """A user with a wrong port gets an error that says so, not only a timeout."""
    plain = {"bootstrap.servers": f"127.0.0.1:{secured.sasl}"}
    with BlockingAdminClient(plain) as client, pytest.raises(Exception, match=r"security\.protocol"):
        client.list_topics(timeout=5)
    sasl = secured.settings("SASL_PLAINTEXT", "PLAIN") | {"bootstrap.servers": secured.node.bootstrap}
    with (
        BlockingAdminClient(sasl) as client,
        pytest.raises(Exception, match=r"security\.protocol|no SASL|SaslHandshake"),
    ):
        client.list_topics(timeout=5)


def test_topics_configurations_and_the_cluster(admin: BlockingAdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    assert admin.alter_configs({resource: [ConfigChange("retention.ms", "1234567")]}) == {resource: None}

    def described() -> str | None:
        found = admin.describe_configs([resource], keys=["retention.ms"])[resource]
        assert isinstance(found, dict)
        return found["retention.ms"].value

    deadline = time.monotonic() + 30
    while described() != "1234567" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert described() == "1234567"
    assert admin.create_partitions({topic: 5}) == {topic: None}
    assert topic in admin.list_topics()
    (broker,) = admin.describe_cluster(include_fenced=True).brokers
    assert admin.describe_features()["metadata.version"].finalized_level > 0
    directories = admin.describe_log_dirs()[broker.broker_id]
    assert isinstance(directories, dict)
    assert TopicPartition(topic, 0) in next(iter(directories.values())).replicas
    fetched = admin.fetch_records(TopicPartition(topic, 0), 0)
    assert sum(header.record_count for _, header in iterate_batches(fetched.records)) == 10
    assert admin.delete_topics([topic, "nowhere"])[topic] is None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_both_kinds(admin: BlockingAdminClient, secured: SecuredKafka, topic: str, protocol: str) -> None:
    group = f"{topic}-{protocol}"
    settings = {"bootstrap.servers": secured.node.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        assert consumer.poll(60) is not None
        described = admin.describe_groups([group, "nowhere"])
        found = described[group]
        assert isinstance(found, GroupDescription), found
        assert (found.kind, found.members[0].assignment) == (protocol, tuple(partitions(topic)))
        assert isinstance(described["nowhere"], BrokerAnsweredError)
        assert admin.list_groups(kinds=[protocol]).groups[group].kind == protocol
    finally:
        consumer.close()
    first = TopicPartition(topic, 0)
    assert admin.alter_group_offsets(group, {first: 3}) == {first: None}
    assert admin.list_group_offsets([group]) == {group: {first: CommittedOffset(offset=3)}}
    assert admin.delete_group_offsets(group, [first]) == {first: None}
    assert admin.delete_groups([group]) == {group: None}
