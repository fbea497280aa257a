"""Our admin client against Apache Kafka: every method, every way to log in; what Kafka doesn't have is refused, not imitated."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from lowtide import BlockingAdminClient, TopicPartition
from lowtide.admin import (
    AuthenticationFailedError,
    BrokerAnsweredError,
    Committed,
    CommittedOffset,
    ConfigChange,
    ConfigResource,
    CreatedTopic,
    DeletedRecords,
    DeleteRecordsError,
    GroupDescription,
    LeaderOnlyUnsupportedError,
    NewTopic,
    OffsetSpec,
    ResourceType,
    Timestamp,
    TopicDescription,
)
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import iterate_batches
from lowtide.testing.free_ports import free_ports

from .kafka import CLUSTER_ID, TOOL_TIMEOUT_S, Kafka, java

pytestmark = pytest.mark.interop

CERTIFICATES = Path(__file__).parents[1] / "clients" / "certificates"
START_MS = int(time.time() * 1000) - 3_600_000
SECURED = """
listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},SASL_PLAINTEXT://127.0.0.1:{sasl},SASL_SSL://127.0.0.1:{tls}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},SASL_SSL://127.0.0.1:{tls}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
connections.max.reauth.ms=600000
"""
LOGIN = "listener.name.{listener}.{mechanism}.sasl.jaas.config=org.apache.kafka.common.security.{module} required{users};\n"


class Secured:
    """A Kafka node with a listener in plain text, one with SASL, and one with SASL over TLS."""

    def __init__(self, jars: Path, folder: Path) -> None:
        plain, controller, self.sasl, self.tls = free_ports(4)
        self.node = Kafka(jars, folder, (plain, controller))
        keystore = folder / "keystore.pem"
        keystore.write_text((CERTIFICATES / "key.pem").read_text() + (CERTIFICATES / "certificate.pem").read_text())
        lines = SECURED.format(plain=plain, controller=controller, sasl=self.sasl, tls=self.tls, keystore=keystore)
        for listener in ("sasl_plaintext", "sasl_ssl"):
            lines += LOGIN.format(listener=listener, mechanism="plain", module="plain.PlainLoginModule", users=' user_alice="alices"')
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                lines += LOGIN.format(listener=listener, mechanism=mechanism, module="scram.ScramLoginModule", users="")
        properties = folder / "server.properties"
        with properties.open("a") as file:
            file.write(lines)
        shutil.rmtree(self.node.directory)
        users = [f"--add-scram=SCRAM-SHA-{bits}=[name=alice,password=alices]" for bits in (256, 512)]
        command = java(jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *users)
        subprocess.run(command, check=True, capture_output=True, timeout=TOOL_TIMEOUT_S)

    def settings(self, protocol: str, mechanism: str = "", password: str = "alices") -> dict[str, Any]:
        """What a client needs for one of the listeners."""
        if protocol == "PLAINTEXT":
            return {"bootstrap.servers": self.node.bootstrap}
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        return {
            "bootstrap.servers": f"127.0.0.1:{self.sasl if protocol == 'SASL_PLAINTEXT' else self.tls}",
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'org.apache.kafka.common.security.{module} required username="alice" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(CERTIFICATES / "certificate.pem"),
        }


@pytest.fixture(scope="module")
def secured(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(jars, tmp_path_factory.mktemp("kafka") / "node")
    made.node.start()
    yield made
    made.node.stop()


@pytest.fixture(scope="module")
def admin(secured: Secured) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(secured.node.bootstrap) as client:
        yield client


@pytest.fixture
def topic(secured: Secured, admin: BlockingAdminClient, lowtide_topic: str) -> str:
    """Three partitions with ten records each, a second apart."""
    make(admin, secured, lowtide_topic)
    return lowtide_topic


def make(admin: BlockingAdminClient, secured: Secured, topic: str) -> None:
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
    """By offset, by time, to the high watermark and by groups; Kafka tells no log start of the leader's."""
    first, second, third = partitions(topic)
    targets = {first: 4, second: Timestamp(START_MS + 6500), third: -1}
    assert admin.delete_records(targets) == {first: DeletedRecords(4), second: DeletedRecords(7), third: DeletedRecords(10)}
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
    """The newest record is below the log start: Kafka's largest timestamp may still be its. Nothing that is newer than asked for goes."""
    first = TopicPartition(topic, 0)
    admin.delete_records({first: 10})
    result = admin.delete_records({first: Timestamp(START_MS + 5000)})[first]
    if isinstance(result, DeleteRecordsError):
        assert "can't be told" in str(result)
    else:
        assert result == DeletedRecords(10)


def test_deletes_of_the_leader_alone_are_refused(admin: BlockingAdminClient, topic: str) -> None:
    first = TopicPartition(topic, 0)
    assert isinstance(admin.delete_records({first: 4}, leader_only=True)[first], LeaderOnlyUnsupportedError)
    listed = admin.list_offsets({first: OffsetSpec.EARLIEST})[first]
    assert not isinstance(listed, Exception)
    assert listed.offset == 0


def test_a_topic_made_anew_is_left_alone(admin: BlockingAdminClient, secured: Secured, topic: str) -> None:
    described = admin.describe_topics([topic])[topic]
    assert isinstance(described, TopicDescription)
    assert described.topic_id is not None
    assert admin.delete_topics([topic]) == {topic: None}
    make(admin, secured, topic)
    first = TopicPartition(topic, 0)
    error = admin.delete_records({first: 5}, topic_ids={topic: described.topic_id})[first]
    assert isinstance(error, DeleteRecordsError)
    assert "made anew" in str(error)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_logging_in(secured: Secured, topic: str, protocol: str, mechanism: str) -> None:
    with BlockingAdminClient(secured.settings(protocol, mechanism)) as client:
        assert client.delete_records({TopicPartition(topic, 0): 3}) == {TopicPartition(topic, 0): DeletedRecords(3)}
    with (
        BlockingAdminClient(secured.settings(protocol, mechanism, "wrong")) as stranger,
        pytest.raises(AuthenticationFailedError, match="alice can't log in"),
    ):
        stranger.list_topics()


def test_the_wrong_listener_is_told(secured: Secured) -> None:
    """Whoever mixes up ports learns it from the error, not from a time-out alone."""
    plain = {"bootstrap.servers": f"127.0.0.1:{secured.sasl}"}
    with BlockingAdminClient(plain) as client, pytest.raises(Exception, match=r"security\.protocol"):
        client.list_topics(timeout=5)
    sasl = secured.settings("SASL_PLAINTEXT", "PLAIN") | {"bootstrap.servers": secured.node.bootstrap}
    with BlockingAdminClient(sasl) as client, pytest.raises(Exception, match=r"security\.protocol|no SASL|SaslHandshake"):
        client.list_topics(timeout=5)


def test_topics_configurations_and_the_cluster(admin: BlockingAdminClient, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
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
def test_groups_of_both_kinds(admin: BlockingAdminClient, secured: Secured, topic: str, protocol: str) -> None:
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
