"""Requests for the controller, sent to other brokers: three real brokers in this process."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient
from lowtide.admin.quotas import QuotaEntity
from lowtide.protocol.api_keys import API
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest
from lowtide.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopicPartitions
from lowtide.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from lowtide.simulation.client import WireClient

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as running:
        yield running


def ask(cluster: LowtideCluster, broker_id: int, request: Any, version: int | None = None) -> Any:
    """Returns a broker's response, in the newest version unless another is given."""

    async def once() -> Any:
        host, _, port = cluster.address(broker_id).rpartition(":")
        client = await WireClient.connect(host, int(port))
        try:
            return await client.request(request, type(request).VERSIONS.high if version is None else version)
        finally:
            client.close()

    return asyncio.run(once())


def others_than_the_controller(cluster: LowtideCluster) -> list[int]:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    controller = ask(cluster, 1, request, 0).controller_id
    return [broker_id for broker_id in cluster.broker_ids if broker_id != controller]


def partitions_of(cluster: LowtideCluster, broker_id: int, name: str) -> list[Any]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return ask(cluster, broker_id, request).topics[0].partitions


def until(condition: Callable[..., bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {DEADLINE_S} s"
        time.sleep(0.02)


def topic(name: str, *replicas: list[int]) -> CreateTopicsRequest:
    assignments = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=ids) for number, ids in enumerate(replicas)
    ]
    row = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[])
    return CreateTopicsRequest(topics=[row], timeout_ms=20_000, validate_only=False)


@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_topics_are_created_grown_and_deleted_by_any_broker(cluster: LowtideCluster, version: int) -> None:
    """Covers all forms of the messages; the broker that answers shows the result."""
    for broker_id in others_than_the_controller(cluster):
        name = f"by-{broker_id}-{version}"
        (row,) = ask(cluster, broker_id, topic(name, [1, 2, 3], [2, 3, 1]), version).topics
        assert (row.name, row.error_code) == (name, ErrorCode.NONE)
        assert len(partitions_of(cluster, broker_id, name)) == 2
        again = ask(cluster, broker_id, topic(name, [1]), version).topics[0]
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        growth = CreatePartitionsTopic(name=name, count=5, assignments=None)
        (row,) = ask(
            cluster, broker_id, CreatePartitionsRequest(topics=[growth], timeout_ms=20_000, validate_only=False)
        ).results
        assert row.error_code == ErrorCode.NONE
        assert [len(each.replica_nodes) for each in partitions_of(cluster, broker_id, name)] == [3] * 5
        (row,) = ask(
            cluster,
            broker_id,
            DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[], timeout_ms=20_000),
        ).responses
        assert (row.name, row.error_code) == (name, ErrorCode.NONE)
        assert partitions_of(cluster, broker_id, name) == []


def test_topics_are_created_automatically_on_any_broker(cluster: LowtideCluster) -> None:
    """A client that requests metadata finds the topic in its next request."""
    for broker_id in others_than_the_controller(cluster):
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=f"auto-{broker_id}")], allow_auto_topic_creation=True
        )
        assert ask(cluster, broker_id, request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        until(lambda broker_id=broker_id: partitions_of(cluster, broker_id, f"auto-{broker_id}") != [])


def test_elections(cluster: LowtideCluster) -> None:
    """The responses when there is nothing to do, and for missing topics."""
    asked = others_than_the_controller(cluster)[0]
    assert ask(cluster, asked, topic("voting", [2, 1], [3, 2])).topics[0].error_code == ErrorCode.NONE
    wanted = [
        ElectLeadersTopicPartitions(topic="voting", partitions=[0, 9]),
        ElectLeadersTopicPartitions(topic="none", partitions=[0]),
    ]
    for version, election_type in ((0, 0), (1, 0), (2, 0), (2, 1)):
        answer = ask(cluster, asked, ElectLeadersRequest(election_type=election_type, topic_partitions=wanted), version)
        rows = [
            [(row.partition_id, row.error_code) for row in each.partition_result]
            for each in answer.replica_election_results
        ]
        not_needed, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert rows == [[(0, not_needed), (9, unknown)], [(0, unknown)]]
    everything = ask(cluster, asked, ElectLeadersRequest(topic_partitions=None))
    assert all(each.partition_result == [] for each in everything.replica_election_results)
    assert "voting" in {each.topic for each in everything.replica_election_results}
    strange = ask(cluster, asked, ElectLeadersRequest(election_type=7, topic_partitions=wanted))
    assert strange.error_code == ErrorCode.INVALID_REQUEST


def reassign(cluster: LowtideCluster, name: str, replicas: list[int] | None, number: int = 0, **options: Any) -> int:
    row = ReassignablePartition(partition_index=number, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=[row])], **options)
    answer = ask(cluster, others_than_the_controller(cluster)[0], request)
    assert answer.error_code == ErrorCode.NONE
    return answer.responses[0].partitions[0].error_code


def moving(cluster: LowtideCluster) -> dict[str, list[Any]]:
    answer = ask(cluster, others_than_the_controller(cluster)[0], ListPartitionReassignmentsRequest())
    assert answer.error_code == ErrorCode.NONE
    return {each.name: each.partitions for each in answer.topics}


def test_refused_reassignments(cluster: LowtideCluster) -> None:
    """Kafka's codes, in Kafka's order."""
    assert ask(cluster, 1, topic("stays", [1, 2])).topics[0].error_code == ErrorCode.NONE
    assert reassign(cluster, "none", [1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(cluster, "stays", [1], number=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(cluster, "stays", None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(cluster, "stays", []) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, "stays", [1, 1]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, "stays", [1, 9]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (
        reassign(cluster, "stays", [1, 9, 9], allow_replication_factor_change=False)
        == ErrorCode.INVALID_REPLICATION_FACTOR
    )
    assert reassign(cluster, "stays", [1], timeout_ms=0) == ErrorCode.REQUEST_TIMED_OUT
    assert moving(cluster) == {}


def test_fewer_replicas_and_another_order_need_no_moving(cluster: LowtideCluster) -> None:
    """The first of the new replicas is the preferred leader; it leads after an election request."""
    asked = others_than_the_controller(cluster)[0]
    assert ask(cluster, asked, topic("shrinks", [1, 2, 3])).topics[0].error_code == ErrorCode.NONE
    assert reassign(cluster, "shrinks", [3, 1]) == ErrorCode.NONE
    until(lambda: [each.replica_nodes for each in partitions_of(cluster, asked, "shrinks")] == [[3, 1]])
    (row,) = partitions_of(cluster, asked, "shrinks")
    assert (row.leader_id, sorted(row.isr_nodes)) == (1, [1, 3])
    wanted = [ElectLeadersTopicPartitions(topic="shrinks", partitions=[0])]
    answer = ask(cluster, asked, ElectLeadersRequest(topic_partitions=wanted))
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.NONE
    until(lambda: partitions_of(cluster, asked, "shrinks")[0].leader_id == 3)


def folders(cluster: LowtideCluster, name: str) -> set[int]:
    """Returns the brokers that have a log of a topic's first partition."""
    directory = Path(cluster.data_directory)
    return {broker_id for broker_id in cluster.broker_ids if (directory / f"broker-{broker_id}" / f"{name}-0").exists()}


def test_a_partition_moves_to_another_broker_with_its_records(cluster: LowtideCluster) -> None:
    """The new replica catches up, the old one is removed, and another becomes leader if the old one was."""
    asked = others_than_the_controller(cluster)[0]
    assert ask(cluster, asked, topic("moves", [1, 2])).topics[0].error_code == ErrorCode.NONE
    assert reassign(cluster, "moves", [3, 2]) == ErrorCode.NONE
    until(lambda: [each.replica_nodes for each in partitions_of(cluster, asked, "moves")] == [[3, 2]])
    (row,) = partitions_of(cluster, asked, "moves")
    assert sorted(row.isr_nodes) == [2, 3]
    assert row.leader_id in {2, 3}
    assert moving(cluster) == {}
    until(lambda: folders(cluster, "moves") == {2, 3})


def test_a_move_to_a_broker_that_is_down_can_be_cancelled() -> None:
    """Meanwhile it is listed with the added and removed replicas."""
    with LowtideCluster(brokers=3) as cluster:
        away = others_than_the_controller(cluster)[1]
        stays = [broker_id for broker_id in cluster.broker_ids if broker_id != away]
        assert ask(cluster, 1, topic("waits", stays)).topics[0].error_code == ErrorCode.NONE
        assert ask(cluster, 1, topic("other", [*stays, away])).topics[0].error_code == ErrorCode.NONE
        assert reassign(cluster, "other", stays) == ErrorCode.NONE
        cluster.stop_broker(away)
        assert reassign_from(cluster, stays[0], "waits", [away, stays[0]]) == ErrorCode.NONE
        answer = ask(cluster, stays[0], ListPartitionReassignmentsRequest())
        (row,) = answer.topics[0].partitions
        assert (row.adding_replicas, row.removing_replicas) == ([away], [stays[1]])
        assert row.replicas == [away, stays[0], stays[1]]
        assert reassign_from(cluster, stays[0], "waits", None) == ErrorCode.NONE
        assert ask(cluster, stays[0], ListPartitionReassignmentsRequest()).topics == []
        until(lambda: sorted(partitions_of(cluster, stays[0], "waits")[0].replica_nodes) == stays)


def reassign_from(cluster: LowtideCluster, asked: int, name: str, replicas: list[int] | None) -> int:
    row = ReassignablePartition(partition_index=0, replicas=replicas)
    answer = ask(
        cluster, asked, AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=[row])])
    )
    return answer.responses[0].partitions[0].error_code


def test_a_broker_that_was_down_removes_logs_that_are_not_its_own_any_more() -> None:
    """Logs of deleted, re-created and moved partitions: none is served or used for another topic."""
    with LowtideCluster(brokers=3) as cluster:
        away = others_than_the_controller(cluster)[0]
        one, other = (broker_id for broker_id in cluster.broker_ids if broker_id != away)
        for name in ("deleted", "re-created", "moved"):
            assert ask(cluster, one, topic(name, [one, away])).topics[0].error_code == ErrorCode.NONE
            until(lambda name=name: folders(cluster, name) == {one, away})
        cluster.stop_broker(away)
        for name in ("deleted", "re-created"):
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[], timeout_ms=20_000)
            assert ask(cluster, one, request).responses[0].error_code == ErrorCode.NONE
        assert ask(cluster, one, topic("re-created", [one, other])).topics[0].error_code == ErrorCode.NONE
        assert reassign_from(cluster, one, "moved", [one, other]) == ErrorCode.NONE
        until(lambda: sorted(partitions_of(cluster, one, "moved")[0].isr_nodes) == sorted([one, other]))
        assert folders(cluster, "deleted") == {away}
        cluster.start_broker(away)
        until(lambda: folders(cluster, "deleted") == set())
        until(lambda: folders(cluster, "re-created") == folders(cluster, "moved") == {one, other})
        cluster.stop_broker(away)
        cluster.start_broker(away)
        assert sorted(partitions_of(cluster, away, "moved")[0].replica_nodes) == sorted([one, other])


def test_a_quota_of_changes_is_of_the_client_whichever_broker_it_asks(cluster: LowtideCluster) -> None:
    """The controller counts for all of them. A client that calls itself like a broker is no broker."""
    name = "broker-1-forwarding-0"
    with BlockingAdminClient(cluster.bootstrap) as admin:
        admin.alter_quotas({QuotaEntity(client_id=name): {"controller_mutation_rate": 0.01}})
        try:
            made = [
                made_by(cluster, broker_id, name, f"quota-{broker_id}")
                for broker_id in others_than_the_controller(cluster)
            ]
            assert made == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
            assert [made_by(cluster, broker_id, "other", f"free-{broker_id}") for broker_id in cluster.broker_ids] == [
                0,
                0,
                0,
            ]
        finally:
            admin.alter_quotas({QuotaEntity(client_id=name): {"controller_mutation_rate": None}})


def test_topics_that_clients_ask_for_count_for_them_whichever_broker_they_ask(cluster: LowtideCluster) -> None:
    with BlockingAdminClient(cluster.bootstrap) as admin:
        admin.alter_quotas({QuotaEntity(client_id="asks"): {"controller_mutation_rate": 0.01}})
        try:
            first, second = others_than_the_controller(cluster)
            until(lambda: asked_by(cluster, first, "asks", "asked-for-1") == 0)
            assert [asked_by(cluster, each, "asks", "asked-for-2") for each in (first, second)] == [
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ] * 2
            until(lambda: asked_by(cluster, second, "other", "asked-for-3") == 0)
            assert "asked-for-2" not in admin.list_topics()
        finally:
            admin.alter_quotas({QuotaEntity(client_id="asks"): {"controller_mutation_rate": None}})


def made_by(cluster: LowtideCluster, broker_id: int, client_id: str, topic: str) -> int:
    """Returns the error code of a topic's creation by a client of that name."""
    wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=20_000, validate_only=False)
    return int(answer_of(cluster, broker_id, client_id, request, 7).topics[0].error_code)


def asked_by(cluster: LowtideCluster, broker_id: int, client_id: str, topic: str) -> int:
    """Returns the error code of a topic in Metadata, which creates it."""
    return int(
        answer_of(cluster, broker_id, client_id, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
        .topics[0]
        .error_code
    )


def answer_of(cluster: LowtideCluster, broker_id: int, client_id: str, request: Any, version: int) -> Any:
    """Returns the answer to a request of a client of that name, in a version with flexible headers."""
    (key,) = [each for each in API if API[each].request is type(request)]
    frame = request_header(key, version, 1, client_id) + codec_for(type(request), version).encode(request)
    host, _, port = cluster.address(broker_id).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        body = answer.read(size)
    codec: Any = codec_for(API[key].response, version)
    return codec.decode(memoryview(body), 5, size)


def update_feature(
    cluster: LowtideCluster, name: str, level: int, kind: int, *, check: bool = False, version: int = 2
) -> Any:
    """Sent to a broker that is not the controller."""
    row = FeatureUpdateKey(
        feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=version == 0 and kind > 1
    )
    request = UpdateFeaturesRequest(feature_updates=[row], validate_only=check)
    return ask(cluster, others_than_the_controller(cluster)[0], request, version)


def levels_at(cluster: LowtideCluster, broker_id: int) -> tuple[int, dict[str, int]]:
    answer = ask(cluster, broker_id, ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    return answer.finalized_features_epoch, {row.name: row.max_version_level for row in answer.finalized_features}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_levels_of_features_are_changed_for_all_brokers(cluster: LowtideCluster, version: int) -> None:
    """A rehearsal changes nothing; at `group.version` 0 no broker accepts members of modern groups."""
    epoch, before = levels_at(cluster, 1)
    assert (before["group.version"], before["metadata.version"]) == (1, 33)
    if version > 0:
        assert update_feature(cluster, "group.version", 0, 2, check=True, version=version).error_code == ErrorCode.NONE
        assert levels_at(cluster, 1) == (epoch, before)
    changed = update_feature(cluster, "group.version", 0, 2, version=version)
    assert (changed.error_code, [row.feature for row in changed.results]) == (
        ErrorCode.NONE,
        ["group.version"] if version < 2 else [],
    )
    without = {name: level for name, level in before.items() if name != "group.version"}
    for broker_id in cluster.broker_ids:
        until(lambda broker_id=broker_id: levels_at(cluster, broker_id)[1] == without)
        assert levels_at(cluster, broker_id)[0] > epoch
        joining = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert ask(cluster, broker_id, joining, 0).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert update_feature(cluster, "group.version", 1, 1, version=version).error_code == ErrorCode.NONE
    for broker_id in cluster.broker_ids:
        until(lambda broker_id=broker_id: levels_at(cluster, broker_id)[1] == before)


@pytest.mark.parametrize(
    ("name", "level"), [("metadata.version", 29), ("eligible.leader.replicas.version", 0), ("share.version", 9)]
)
def test_levels_that_cannot_be_had_are_refused(cluster: LowtideCluster, name: str, level: int) -> None:
    refused = update_feature(cluster, name, level, 2)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert refused.error_message.startswith(
        "The update failed for all features since the following feature had an error: "
    )
    assert name in refused.error_message
    many = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature=f"f{number}", max_version_level=1) for number in range(101)]
    )
    assert ask(cluster, 1, many).error_code == ErrorCode.INVALID_REQUEST
