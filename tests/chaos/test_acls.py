"""Access rules on real brokers: enforced everywhere once they are answered, and kept over restarts and kills."""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from lowtide import LowtideCluster
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.simulation.client import WireClient
from tests.free_ports import HOST

from .serving import ServeProcess

with warnings.catch_warnings():
    # The package reads its own message files, as it is imported, by functions that Python 3.11 calls deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourcePatternFilter
    from kafka.admin import ACLResourcePatternType as Pattern
    from kafka.admin import ResourceType as Kind

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
OPEN = {**AUTHORIZER, "super.users": "User:ANONYMOUS"}
TOPIC, CLUSTER, LITERAL, PREFIXED = 2, 4, 3, 4
ALL, READ, WRITE, CREATE, DESCRIBE, CLUSTER_ACTION = 2, 3, 4, 5, 8, 9
DENY, ALLOW = 2, 3
EVERYTHING = DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)


def rule(
    kind: int,
    name: str,
    operation: int,
    *,
    pattern: int = LITERAL,
    permission: int = ALLOW,
    principal: str = "User:ANONYMOUS",
    host: str = "*",
) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal="User:ANONYMOUS",
        host=host,
        operation=operation,
        permission_type=permission,
    )


def removal(kind: int = 1, name: str | None = None) -> DeleteAclsRequest:
    wanted = DeleteAclsFilter(
        resource_type_filter=kind,
        resource_name_filter=name,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return DeleteAclsRequest(filters=[wanted])


async def send(port: int, request: Any) -> Any:
    client = await WireClient.connect(HOST, port)
    try:
        return await client.request(request, type(request).VERSIONS.high)
    finally:
        client.close()


def ask(cluster: LowtideCluster, request: Any, broker_id: int | None = None) -> Any:
    address = cluster.bootstrap.split(",")[0] if broker_id is None else cluster.address(broker_id)
    return asyncio.run(send(int(address.rpartition(":")[2]), request))


def creation(name: str, replicas: int = 1) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=replicas, assignments=[], configs=[])
    return CreateTopicsRequest(topics=[topic], timeout_ms=20_000, validate_only=False)


def latest(name: str) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])],
    )


def test_without_an_authorizer_there_are_no_rules() -> None:
    with LowtideCluster() as cluster:
        assert ask(cluster, EVERYTHING).error_code == ErrorCode.SECURITY_DISABLED
        assert (
            ask(cluster, CreateAclsRequest(creations=[rule(TOPIC, "t", READ)])).results[0].error_code
            == ErrorCode.SECURITY_DISABLED
        )
        assert ask(cluster, removal()).filter_results[0].error_code == ErrorCode.SECURITY_DISABLED


def test_rules_outlive_the_administrator_that_made_them(tmp_path: Path) -> None:
    """In the first run every client is an administrator; in the second, only requests that the rules allow succeed."""
    with LowtideCluster(data_directory=tmp_path, config=OPEN) as cluster:
        rules = [
            rule(TOPIC, "mine-", CREATE, pattern=PREFIXED),
            rule(TOPIC, "mine-", READ, pattern=PREFIXED),
            rule(TOPIC, "mine-secret", ALL, permission=DENY),
        ]
        assert [row.error_code for row in ask(cluster, CreateAclsRequest(creations=rules)).results] == [0, 0, 0]
        for name in ("mine-a", "mine-secret", "other"):
            assert ask(cluster, creation(name)).topics[0].error_code == 0
    with LowtideCluster(data_directory=tmp_path, config=AUTHORIZER) as cluster:
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        errors = {
            name: ask(cluster, latest(name)).topics[0].partitions[0].error_code
            for name in ("mine-a", "mine-secret", "other", "none")
        }
        assert errors == {"mine-a": 0, "mine-secret": denied, "other": denied, "none": denied}
        assert [ask(cluster, creation(name)).topics[0].error_code for name in ("mine-b", "yours")] == [0, denied]
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="mine-a")], topic_names=[], timeout_ms=10_000)
        assert ask(cluster, deletion).responses[0].error_code == denied
        assert ask(cluster, EVERYTHING).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (
            ask(cluster, CreateAclsRequest(creations=rules)).results[2].error_code
            == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
        assert ask(cluster, removal()).filter_results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        told: list[Any] = []
        producer.produce("mine-a", b"x", on_delivery=lambda error, _message: told.append(error))
        producer.flush(20)
        assert told[0] is not None
        assert told[0].code() == denied


@pytest.fixture(scope="module")
def several() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3, config=OPEN) as cluster:
        yield cluster


def described(cluster: LowtideCluster, broker_id: int) -> list[tuple[str, int]]:
    answer = ask(cluster, EVERYTHING, broker_id)
    assert answer.error_code == 0
    return sorted((row.resource_name, len(row.acls)) for row in answer.resources)


def test_a_change_is_in_force_on_all_brokers_when_it_is_answered(several: LowtideCluster) -> None:
    """Without that, tests that create rules and use them at once would fail now and then."""
    for number in range(10):
        name = f"spread-{number}"
        made = ask(
            several, CreateAclsRequest(creations=[rule(TOPIC, name, READ), rule(TOPIC, name, WRITE)]), 1 + number % 3
        )
        assert [row.error_code for row in made.results] == [0, 0]
        for broker_id in several.broker_ids:
            assert described(several, broker_id) == [(name, 2)]
        removed = ask(several, removal(TOPIC, name), 1 + (number + 1) % 3)
        assert len(removed.filter_results[0].matching_acls) == 2
        for broker_id in several.broker_ids:
            assert described(several, broker_id) == []


def test_many_rules_in_one_request(several: LowtideCluster) -> None:
    """More than a transaction holds; what is wrong is refused by itself, and what is there twice is there once."""
    rules = [rule(TOPIC, f"many-{number % 300}", READ) for number in range(350)]
    rules[7] = rule(TOPIC, "", READ)
    rules[8] = rule(CLUSTER, "other-cluster", READ)
    rules[9] = rule(TOPIC, "many-9", 1)
    results = ask(several, CreateAclsRequest(creations=rules)).results
    assert [index for index, row in enumerate(results) if row.error_code] == [7, 8, 9]
    assert {row.error_code for row in results} == {0, ErrorCode.INVALID_REQUEST}
    assert len(described(several, 2)) == 300
    removed = ask(several, removal(TOPIC)).filter_results[0]
    assert (removed.error_code, len(removed.matching_acls)) == (0, 300)
    assert described(several, 3) == []


def test_the_admin_clients_of_others(several: LowtideCluster) -> None:
    """confluent-kafka (librdkafka) and kafka-python: created, found, removed."""
    admin = AdminClient({"bootstrap.servers": several.bootstrap})
    binding = AclBinding(
        ResourceType.TOPIC,
        "theirs",
        ResourcePatternType.PREFIXED,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for _ in range(2):
        for made in admin.create_acls([binding]).values():
            made.result(30)
    anything = (None, None, AclOperation.ANY, AclPermissionType.ANY)
    wanted = AclBindingFilter(ResourceType.TOPIC, None, ResourcePatternType.ANY, *anything)
    assert admin.describe_acls(wanted).result(30) == [binding]
    matched = AclBindingFilter(
        ResourceType.TOPIC, "theirs-1", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin.describe_acls(matched).result(30) == [binding]
    broken = AclBinding(
        ResourceType.BROKER,
        "not-it",
        ResourcePatternType.LITERAL,
        "User:b",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for refused in admin.create_acls([broken]).values():
        with pytest.raises(KafkaException) as caught:
            refused.result(30)
        assert caught.value.args[0].code() == ErrorCode.INVALID_REQUEST
    other = KafkaAdminClient(bootstrap_servers=several.bootstrap)
    try:
        kafka_python(other)
    finally:
        other.close()
    for removed in admin.delete_acls([wanted]).values():
        assert removed.result(30) == [binding]
    assert admin.describe_acls(wanted).result(30) == []


def kafka_python(admin: KafkaAdminClient) -> None:
    """Beside what confluent-kafka made."""
    made = ACL(
        "User:carol",
        "10.0.0.1",
        ACLOperation.WRITE,
        ACLPermissionType.DENY,
        ResourcePattern(Kind.GROUP, "g", Pattern.LITERAL),
    )
    created = admin.create_acls([made])
    assert created["failed"] == []
    wanted = ACLFilter(
        "User:carol", None, ACLOperation.ANY, ACLPermissionType.ANY, ResourcePatternFilter(Kind.ANY, None, Pattern.ANY)
    )
    found, error = admin.describe_acls(wanted)
    assert [str(each) for each in found] == [str(made)], error
    (deleted,) = admin.delete_acls([wanted])
    assert [str(each) for each in deleted[1]] == [str(made)]


@pytest.mark.slow
def test_brokers_that_are_no_super_users_form_a_cluster(tmp_path: Path) -> None:
    """CLUSTER_ACTION is enough to replicate and to forward requests that the client itself may make."""
    with LowtideCluster(brokers=3, data_directory=tmp_path, config=OPEN) as cluster:
        rules = [rule(CLUSTER, "kafka-cluster", CLUSTER_ACTION), rule(TOPIC, "mine-", ALL, pattern=PREFIXED)]
        assert [row.error_code for row in ask(cluster, CreateAclsRequest(creations=rules)).results] == [0, 0]
    with LowtideCluster(brokers=3, data_directory=tmp_path, config=AUTHORIZER) as cluster:
        for broker_id in cluster.broker_ids:
            made = ask(cluster, creation(f"mine-{broker_id}", replicas=3), broker_id).topics[0]
            assert (made.error_code, made.error_message) == (0, None)
            assert (
                ask(cluster, creation("yours"), broker_id).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        told: list[Any] = []
        for broker_id in cluster.broker_ids:
            producer.produce(f"mine-{broker_id}", b"x", on_delivery=lambda error, _message: told.append(error))
        assert producer.flush(30) == 0
        assert told == [None, None, None]


@pytest.mark.parametrize("size", [5, 400])
@pytest.mark.slow
async def test_rules_survive_sigkill_and_are_never_half_applied(tmp_path: Path, size: int) -> None:
    """Batches of rules are created and removed until the broker is killed: what was answered holds, and none is there
    in part.

    Five rules are one transaction of the store, four hundred are more.
    """
    settings = [f"{name}={value}" for name, value in OPEN.items()]
    chance = random.Random(16)
    kept: set[int] = set()
    removed: set[int] = set()
    sent = -1
    for _ in range(4):
        async with ServeProcess(tmp_path, *settings) as broker:
            found = {row.resource_name: len(row.acls) for row in (await send(broker.port, EVERYTHING)).resources}
            assert {name: count for name, count in found.items() if count != size} == {}
            assert (
                {f"batch-{number}" for number in kept}
                <= found.keys()
                <= {f"batch-{number}" for number in range(sent + 1)}
            )
            assert not {f"batch-{number}" for number in removed} & found.keys()
            client = await WireClient.connect(HOST, broker.port)

            async def change(client: WireClient = client) -> None:
                nonlocal sent
                while True:
                    sent += 1
                    batch = [
                        rule(TOPIC, f"batch-{sent}", READ, host=f"10.0.{host // 256}.{host % 256}")
                        for host in range(size)
                    ]
                    answer = await client.request(CreateAclsRequest(creations=batch), 3)
                    assert [row.error_code for row in answer.results] == [0] * size
                    kept.add(sent)
                    if sent % 2:
                        kept.discard(sent - 1)
                        gone = await client.request(removal(TOPIC, f"batch-{sent - 1}"), 3)
                        assert len(gone.filter_results[0].matching_acls) in (0, size)
                        removed.add(sent - 1)

            before = sent
            changing = asyncio.create_task(change())
            while (
                sent < before + 2 and not changing.done()
            ):  # One batch is answered; how far the next one is, is left to chance.
                await asyncio.sleep(0.001)
            await asyncio.wait([changing], timeout=chance.uniform(0.0, 0.3))
            await broker.kill()
            with pytest.raises(OSError) if not changing.done() else pytest.raises(Exception):
                await changing
    assert len(kept) + len(removed) > 2
