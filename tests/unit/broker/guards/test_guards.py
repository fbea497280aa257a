"""Guards: which requests reach a handler, and what clients without the rights get instead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from lowtide.broker.authorizer.resources import CLUSTER, Operation, Resource, ResourceType, group, topic
from lowtide.broker.guards.fetching import GuardedFetchReader
from lowtide.broker.guards.guard import behind_guard, guarded
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages import alter_configs, incremental_alter_configs
from lowtide.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from lowtide.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from lowtide.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from lowtide.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from lowtide.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from lowtide.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from lowtide.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from lowtide.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from lowtide.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from lowtide.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from lowtide.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from lowtide.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)
from lowtide.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.topic_traffic import TrafficTable
from tests.unit.broker.declared import spec_of

from .asking import GROUP, ID, SECRET_ID, TOPIC, WHOLE, Everything, Only, ask, guard_of, image


def test_where_nothing_is_forbidden_there_are_no_guards() -> None:
    """The handlers are unchanged: no request costs more."""
    for key in (ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT):
        spec = spec_of(key, handle=MagicMock())
        assert behind_guard(spec, MagicMock(authorizer=SimpleNamespace(allows_all=True))) is spec
        assert behind_guard(spec, MagicMock(authorizer=Only())).handle is not spec.handle


def produce(version: int, *names: str, acks: int = 1) -> ProduceRequest:
    identity = {"t": ID, "secret": SECRET_ID}
    rows = [
        TopicProduceData(
            name=name if version < 13 else "",
            topic_id=identity.get(name, b"9" * 16) if version >= 13 else ZERO_TOPIC_ID,
            partition_data=[PartitionProduceData(index=4, records=None)],
        )
        for name in names
    ]
    return ProduceRequest(acks=acks, timeout_ms=1, topic_data=rows)


@pytest.mark.parametrize("version", [3, 12, 13])
@pytest.mark.parametrize("pending", [False, True])
def test_produce(version: int, pending: bool) -> None:
    """Forbidden batches do not reach the log; the handler answers for an unknown topic id."""
    authorizer = Only((Operation.WRITE, topic("t")))
    request = produce(version, "secret", "t", *(["unknown"] if version >= 13 else []))
    passed, told, _ = ask(authorizer, request, ProduceResponse(responses=[]), version, pending=pending)
    assert passed.topic_data == request.topic_data[1:]
    assert len(request.topic_data) >= 2
    (row,) = told.responses
    assert (row.name, row.topic_id) == (("secret", ZERO_TOPIC_ID) if version < 13 else ("", SECRET_ID))
    (partition,) = row.partition_responses
    assert (partition.index, partition.error_code, partition.base_offset) == (4, TOPIC, -1)


@pytest.mark.parametrize("nothing", [None, NO_ANSWER])
def test_acks_0_an_error_closes_the_connection(nothing: Any) -> None:
    request = produce(12, "secret", "t", acks=0)
    passed, told, context = ask(Only((Operation.WRITE, topic("t"))), request, nothing, 12)
    assert [each.name for each in passed.topic_data] == ["t"]
    assert told is nothing
    assert len(context.closed) == 1
    assert ask(Everything(), request, nothing, 12)[2].closed == []


def committed(version: int) -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")]
    topics = [
        OffsetCommitRequestTopic(
            name=name if version < 10 else "", topic_id=identity if version >= 10 else ZERO_TOPIC_ID, partitions=rows
        )
        for name, identity in (("t", ID), ("secret", SECRET_ID))
    ]
    return OffsetCommitRequest(group_id="g", member_id="", topics=topics)


@pytest.mark.parametrize("version", [2, 9, 10])
def test_offset_commit(version: int) -> None:
    empty = OffsetCommitResponse(topics=[])
    passed, told, _ = ask(Only(), committed(version), empty, version)
    assert passed is None
    assert [row.partitions[0].error_code for row in told.topics] == [GROUP, GROUP]
    allowed = Only((Operation.READ, group("g")), (Operation.READ, topic("t")))
    passed, told, _ = ask(allowed, committed(version), empty, version)
    assert len(passed.topics) == 1
    assert [(row.name, row.partitions[0].error_code) for row in told.topics] == [
        ("secret" if version < 10 else "", TOPIC)
    ]


@pytest.mark.parametrize("version", [1, 2, 7])
def test_offset_fetch_of_one_group(version: int) -> None:
    topics = [OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("t", "secret")]
    request = OffsetFetchRequest(group_id="g", topics=topics)
    passed, told, _ = ask(Only(), request, OffsetFetchResponse(), version)
    assert passed is None
    if version == 1:
        assert [row.partitions[0].error_code for row in told.topics] == [GROUP, GROUP]
    else:
        assert (told.error_code, told.topics) == (GROUP, [])
    allowed = Only((Operation.DESCRIBE, group("g")), (Operation.DESCRIBE, topic("t")))
    passed, told, _ = ask(allowed, request, OffsetFetchResponse(), version)
    assert [row.name for row in passed.topics] == ["t"]
    assert [(row.name, row.partitions[0].error_code, row.partitions[0].committed_offset) for row in told.topics] == [
        ("secret", TOPIC, -1)
    ]


@pytest.mark.parametrize("version", [8, 10])
def test_offset_fetch_of_many_groups(version: int) -> None:
    """In a request for all offsets forbidden topics are left out; named ones are refused."""
    by_id = version >= 10
    named = [
        OffsetFetchRequestTopics(
            name="" if by_id else name, topic_id=identity if by_id else ZERO_TOPIC_ID, partition_indexes=[0]
        )
        for name, identity in (("t", ID), ("secret", SECRET_ID))
    ]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id="closed", topics=None),
            OffsetFetchRequestGroup(group_id="g", topics=named),
            OffsetFetchRequestGroup(group_id="all", topics=None),
        ]
    )
    found = [
        OffsetFetchResponseTopics(name=name, topic_id=identity) for name, identity in (("t", ID), ("secret", SECRET_ID))
    ]
    answers = [
        OffsetFetchResponseGroup(group_id="g", topics=found[:1]),
        OffsetFetchResponseGroup(group_id="all", topics=found),
    ]
    allowed = Only(
        (Operation.DESCRIBE, group("g")), (Operation.DESCRIBE, group("all")), (Operation.DESCRIBE, topic("t"))
    )
    passed, told, _ = ask(allowed, request, OffsetFetchResponse(groups=answers), version)
    assert [(each.group_id, each.topics and len(each.topics)) for each in passed.groups] == [("g", 1), ("all", None)]
    g, everything, closed = told.groups
    assert (closed.group_id, closed.error_code) == ("closed", GROUP)
    assert [[row.error_code for row in each.partitions] for each in g.topics] == [[], [TOPIC]]
    assert len(everything.topics) == 1


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_named_topics(version: int) -> None:
    names = ("t", "secret", "new", "mine")
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    allowed = [(Operation.DESCRIBE, topic(name)) for name in ("t", "new", "mine")]
    authorizer = Only(*allowed, (Operation.CREATE, topic("mine")))
    passed, told, _ = ask(authorizer, request, MetadataResponse(brokers=[], topics=[]), version)
    assert [each.name for each in passed.topics] == ["t", "mine"]
    assert [(row.name, row.error_code, row.topic_id) for row in told.topics] == [
        (name, TOPIC, ZERO_TOPIC_ID) for name in ("secret", "new")
    ]
    nothing = MetadataRequest(topics=[MetadataRequestTopic(name="secret")])
    some = MetadataResponseTopic(error_code=0, name="t", partitions=[])
    passed, told, _ = ask(
        authorizer, nothing, MetadataResponse(brokers=[], topics=[some] if version == 0 else []), version
    )
    assert [(row.name, row.error_code) for row in told.topics] == [("secret", TOPIC)]


def test_metadata_by_id_and_of_all() -> None:
    """An id is answered with its error and no name; in a request for all topics forbidden ones are left out."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=None, topic_id=each) for each in (ID, SECRET_ID, b"9" * 16)]
    )
    authorizer = Only((Operation.DESCRIBE, topic("t")))
    passed, told, _ = ask(authorizer, request, MetadataResponse(brokers=[], topics=[]), 13)
    assert [each.topic_id for each in passed.topics] == [ID, b"9" * 16]
    assert [(row.name, row.topic_id, row.error_code) for row in told.topics] == [(None, SECRET_ID, TOPIC)]
    rows = [MetadataResponseTopic(error_code=0, name=name, partitions=[]) for name in ("t", "secret")]
    for version, topics in ((0, []), (1, None), (13, None)):
        everything = MetadataRequest(topics=topics, include_topic_authorized_operations=version == 13)
        _, told, _ = ask(authorizer, everything, MetadataResponse(brokers=[], topics=rows), version)
        assert [row.name for row in told.topics] == ["t"]
    assert told.topics[0].topic_authorized_operations == 1 << Operation.DESCRIBE
    assert rows[0].topic_authorized_operations < 0, "a response that the handler may reuse is not modified"


def test_describe_topic_partitions() -> None:
    row = DescribeTopicPartitionsResponseTopic(error_code=0, name="t", topic_authorized_operations=3576)
    found = DescribeTopicPartitionsResponse(topics=[row])
    authorizer = Only((Operation.DESCRIBE, topic("t")))
    named = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in ("secret", "t")])
    passed, told, _ = ask(authorizer, named, found)
    assert [each.name for each in passed.topics] == ["t"]
    assert [(each.name, each.error_code, each.topic_authorized_operations > 0) for each in told.topics] == [
        ("t", 0, True),
        ("secret", TOPIC, False),
    ]
    assert told.topics[0].topic_authorized_operations == 1 << Operation.DESCRIBE
    passed, told, _ = ask(authorizer, DescribeTopicPartitionsRequest(topics=[]), found)
    assert ([each.name for each in passed.topics], len(told.topics)) == (["t"], 1)
    later = DescribeTopicPartitionsRequest(topics=[], cursor=Cursor(topic_name="secret", partition_index=3))
    passed, _, _ = ask(authorizer, later, found)
    assert (passed.cursor.topic_name, passed.cursor.partition_index) == ("t", 0)
    passed, told, _ = ask(Only(), DescribeTopicPartitionsRequest(topics=[]), found)
    assert (passed, told.topics) == (None, [])


def list_offsets() -> ListOffsetsRequest:
    rows = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=rows) for name in ("t", "secret")]
    )


def epochs() -> OffsetForLeaderEpochRequest:
    rows = [OffsetForLeaderPartition(partition=0, leader_epoch=1)]
    return OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=name, partitions=rows) for name in ("t", "secret")]
    )


def producers() -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[DescribeProducersTopicRequest(name=name, partition_indexes=[0]) for name in ("t", "secret")]
    )


@pytest.mark.parametrize(
    ("operation", "request_", "empty"),
    [
        (Operation.DESCRIBE, list_offsets(), ListOffsetsResponse(topics=[])),
        (Operation.DESCRIBE, epochs(), OffsetForLeaderEpochResponse(topics=[])),
        (Operation.READ, producers(), DescribeProducersResponse(throttle_time_ms=0, topics=[])),
    ],
)
def test_rows_of_topics_are_refused_one_by_one(operation: Operation, request_: Any, empty: Any) -> None:
    spec = next(API[key] for key in API if API[key].request is type(request_))
    for version in range(spec.min_version, spec.max_version + 1):
        passed, told, _ = ask(Only((operation, topic("t"))), request_, empty, version)
        assert passed.topics == request_.topics[:1]
        assert [row.error_code for each in told.topics for row in each.partitions] == [TOPIC]
        assert ask(Everything(), request_, empty, version)[0] == request_


def test_replicas_may_ask_for_epochs_of_all() -> None:
    assert (
        ask(Only((Operation.CLUSTER_ACTION, CLUSTER)), epochs(), OffsetForLeaderEpochResponse(topics=[]))[0] == epochs()
    )


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (
            JoinGroupRequest(group_id="g", session_timeout_ms=1, member_id="", protocol_type="", protocols=[]),
            JoinGroupResponse(error_code=0, protocol_name="", leader="", member_id="", members=[]),
        ),
        (
            SyncGroupRequest(group_id="g", generation_id=1, member_id="", assignments=[]),
            SyncGroupResponse(error_code=0, assignment=b""),
        ),
        (HeartbeatRequest(group_id="g", generation_id=1, member_id=""), HeartbeatResponse(error_code=0)),
        (LeaveGroupRequest(group_id="g"), LeaveGroupResponse(error_code=0)),
        (OffsetDeleteRequest(group_id="g", topics=[]), OffsetDeleteResponse(error_code=0, topics=[])),
    ],
)
def test_groups_are_closed(request_: Any, response: Any) -> None:
    spec = next(API[key] for key in API if API[key].request is type(request_))
    needed = Operation.DELETE if isinstance(request_, OffsetDeleteRequest) else Operation.READ
    for version in range(spec.min_version, spec.max_version + 1):
        passed, told, _ = ask(Only(), request_, response, version)
        assert (passed, told.error_code) == (None, GROUP)
        passed, told, _ = ask(Only((needed, group("g"))), request_, response, version)
        assert (passed, told.error_code) == (request_, 0)


def test_offsets_of_topics_are_not_deleted() -> None:
    rows = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in ("t", "secret")
    ]
    allowed = Only((Operation.DELETE, group("g")), (Operation.READ, topic("t")))
    request = OffsetDeleteRequest(group_id="g", topics=rows)
    passed, told, _ = ask(allowed, request, OffsetDeleteResponse(error_code=0, topics=[]))
    assert passed.topics == rows[:1]
    assert [(row.name, row.partitions[0].error_code) for row in told.topics] == [("secret", TOPIC)]
    assert ask(allowed, request, OffsetDeleteResponse(error_code=16, topics=[]))[1].topics == []


def test_groups_are_described_listed_and_deleted_one_by_one() -> None:
    described = DescribedGroup(
        error_code=0,
        group_id="g",
        group_state="Empty",
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=3400,
    )
    authorizer = Only((Operation.DESCRIBE, group("g")), (Operation.DELETE, group("g")))
    request = DescribeGroupsRequest(groups=["g", "h", "h"], include_authorized_operations=True)
    passed, told, _ = ask(authorizer, request, DescribeGroupsResponse(groups=[described]))
    assert passed.groups == ["g"]
    assert [(row.group_id, row.error_code) for row in told.groups] == [("g", 0), ("h", GROUP)]
    assert told.groups[0].authorized_operations == 1 << Operation.DESCRIBE | 1 << Operation.DELETE
    rows = ListGroupsResponse(
        error_code=0, groups=[ListedGroup(group_id=name, protocol_type="") for name in ("g", "h")]
    )
    assert [row.group_id for row in ask(authorizer, ListGroupsRequest(), rows)[1].groups] == ["g"]
    assert len(ask(Only((Operation.DESCRIBE, CLUSTER)), ListGroupsRequest(), rows)[1].groups) == 2
    passed, told, _ = ask(authorizer, DeleteGroupsRequest(groups_names=["h", "g"]), DeleteGroupsResponse(results=[]))
    assert passed.groups_names == ["g"]
    assert [(row.group_id, row.error_code) for row in told.results] == [("h", GROUP)]


def test_coordinators() -> None:
    authorizer = Only(
        (Operation.DESCRIBE, group("g")), (Operation.DESCRIBE, Resource(ResourceType.TRANSACTIONAL_ID, "x"))
    )
    empty = FindCoordinatorResponse()
    assert ask(authorizer, FindCoordinatorRequest(key="h"), empty, 3)[1].error_code == GROUP
    assert ask(authorizer, FindCoordinatorRequest(key="g"), empty, 0)[0].key == "g"
    passed, told, _ = ask(authorizer, FindCoordinatorRequest(coordinator_keys=["g", "h"]), empty)
    assert passed.coordinator_keys == ["g"]
    assert [(row.key, row.error_code) for row in told.coordinators] == [("h", GROUP)]
    passed, told, _ = ask(authorizer, FindCoordinatorRequest(key_type=1, coordinator_keys=["y"]), empty)
    assert (passed, told.coordinators[0].error_code) == (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


KINDS = {2: "t", 4: "1", 8: "1", 16: "m", 32: "g", 77: "?"}


@pytest.mark.parametrize("messages", [alter_configs, incremental_alter_configs])
def test_configurations_are_not_changed(messages: Any) -> None:
    """Topics and groups one by one; brokers, loggers and metrics with the cluster. Handlers refuse unknown kinds."""
    rows = [
        messages.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
        for kind, name in KINDS.items()
    ]
    prefix = "Alter" if messages is alter_configs else "IncrementalAlter"
    request = getattr(messages, f"{prefix}ConfigsRequest")(resources=rows, validate_only=False)
    empty = getattr(messages, f"{prefix}ConfigsResponse")(responses=[])
    passed, told, _ = ask(Only(), request, empty)
    assert [row.resource_type for row in passed.resources] == [77]
    assert {row.resource_type: row.error_code for row in told.responses} == {
        2: TOPIC,
        4: WHOLE,
        8: WHOLE,
        16: WHOLE,
        32: GROUP,
    }
    assert all(row.error_message for row in told.responses)
    allowed = Only((Operation.ALTER_CONFIGS, topic("t")), (Operation.ALTER_CONFIGS, CLUSTER))
    assert [row.resource_type for row in ask(allowed, request, empty)[0].resources] == [2, 4, 8, 16, 77]


_SASL, _TLS = "listener.name.sasl_ssl", "listener.name.https"
OF_LOGINS = (
    f"{_SASL}.sasl.enabled.mechanisms",
    *(f"{_SASL}.{each}.sasl.jaas.config" for each in ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")),
    *(f"{_TLS}.ssl.truststore.{each}" for each in ("type", "location", "password", "certificates")),
)


@pytest.mark.parametrize("key", OF_LOGINS)
@pytest.mark.parametrize("name", ["1", "+1", ""])
@pytest.mark.parametrize("messages", [alter_configs, incremental_alter_configs])
def test_keys_that_decide_who_may_log_in_need_alter_as_well(messages: Any, name: str, key: str) -> None:
    """They make their holder any user, so they need the right to set any user's password.

    Nothing of such a row is carried out.
    """
    prefix = "Alter" if messages is alter_configs else "IncrementalAlter"
    change: Any = messages.AlterableConfig
    changed = (
        {"name": "max.connections", "value": "9"},
        {"name": key, "value": None if messages is incremental_alter_configs else "x"},
    )
    operation = {} if messages is alter_configs else {"config_operation": 1}
    row = messages.AlterConfigsResource(
        resource_type=4, resource_name=name, configs=[change(**each, **operation) for each in changed]
    )
    request = getattr(messages, f"{prefix}ConfigsRequest")(resources=[row], validate_only=True)
    empty = getattr(messages, f"{prefix}ConfigsResponse")(responses=[])
    passed, told, _ = ask(Only((Operation.ALTER_CONFIGS, CLUSTER)), request, empty)
    assert passed.resources == []
    assert [(each.resource_name, each.error_code) for each in told.responses] == [(name, WHOLE)]
    assert key in told.responses[0].error_message
    both = Only((Operation.ALTER_CONFIGS, CLUSTER), (Operation.ALTER, CLUSTER))
    assert ask(both, request, empty)[0].resources == [row]
    assert ask(Only((Operation.ALTER, CLUSTER)), request, empty)[1].responses[0].error_code == WHOLE


def test_keys_of_a_key_store_and_names_of_other_resources_need_no_alter() -> None:
    """A key store decides which certificate the broker shows. Such a key of a logger or topic is not a listener's."""
    rows = [
        (4, f"{_TLS}.ssl.keystore.location"),
        (2, OF_LOGINS[0]),
        (32, OF_LOGINS[0]),
        (8, OF_LOGINS[0]),
        (16, OF_LOGINS[0]),
    ]
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind,
            resource_name=KINDS[kind],
            configs=[incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value="x")],
        )
        for kind, key in rows
    ]
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    group = Resource(ResourceType.GROUP, "g")
    allowed = Only(*((Operation.ALTER_CONFIGS, each) for each in (CLUSTER, group, topic("t"))))
    assert (
        ask(allowed, request, incremental_alter_configs.IncrementalAlterConfigsResponse(responses=[]))[0].resources
        == resources
    )


def test_what_alter_configs_does_not_name_is_removed_with_the_same_right() -> None:
    """AlterConfigs of a broker removes its JAAS setting if it does not name it. For all brokers, none can be set."""
    row = alter_configs.AlterConfigsResource(resource_type=4, resource_name="1", configs=[])
    request = alter_configs.AlterConfigsRequest(resources=[row], validate_only=False)
    empty = alter_configs.AlterConfigsResponse(responses=[])
    allowed, is_set = Only((Operation.ALTER_CONFIGS, CLUSTER)), {OF_LOGINS[1]: "x"}
    assert ask(allowed, request, empty, set_on_broker=is_set)[0].resources == []
    assert ask(allowed, request, empty, set_on_broker={"max.connections": "9"})[0].resources == [row]
    all_brokers = alter_configs.AlterConfigsResource(resource_type=4, resource_name="", configs=[])
    request = alter_configs.AlterConfigsRequest(resources=[all_brokers], validate_only=False)
    assert ask(allowed, request, empty, set_on_broker=is_set)[0].resources == [all_brokers]


def test_configurations_are_not_described() -> None:
    rows = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in KINDS.items()
    ]
    passed, told, _ = ask(Only(), DescribeConfigsRequest(resources=rows), DescribeConfigsResponse(results=[]))
    assert [row.resource_type for row in passed.resources] == [77]
    assert {row.resource_type: row.error_code for row in told.results} == {
        2: TOPIC,
        4: WHOLE,
        8: WHOLE,
        16: WHOLE,
        32: GROUP,
    }


def test_the_cluster_is_closed() -> None:
    """Log directories, resources and producer ids. Clients that may describe the cluster get its allowed operations."""
    dirs = DescribeLogDirsRequest(topics=None)
    assert ask(Only(), dirs, DescribeLogDirsResponse(throttle_time_ms=0))[1].error_code == WHOLE
    assert ask(Only(), dirs, DescribeLogDirsResponse(throttle_time_ms=0), 1)[1].results == []
    resources = ListConfigResourcesResponse(throttle_time_ms=0, error_code=0, config_resources=[])
    assert ask(Only(), ListConfigResourcesRequest(), resources)[1].error_code == WHOLE
    ids = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    given = InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=0)
    assert ask(Only(), ids, given)[1].error_code == WHOLE
    for enough in ((Operation.IDEMPOTENT_WRITE, CLUSTER), (Operation.WRITE, topic("secret"))):
        assert ask(Only(enough), ids, given)[1].producer_id == 7
    named = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1)
    assert ask(Only(), named, given)[1].error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    cluster = DescribeClusterResponse(cluster_authorized_operations=8096)
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert ask(Only(), request, cluster)[1].cluster_authorized_operations == 0
    described = ask(Only((Operation.DESCRIBE, CLUSTER), (Operation.ALTER, CLUSTER)), request, cluster)[1]
    assert described.cluster_authorized_operations == 1 << Operation.DESCRIBE | 1 << Operation.ALTER
    assert ask(Everything(), request, cluster)[1].cluster_authorized_operations == 8096


def test_a_handler_that_answers_later_is_guarded_too() -> None:
    async def handle(request: Any, _context: Any) -> Any:
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0)

    broker: Any = SimpleNamespace(authorizer=Only(), metadata=SimpleNamespace(image=image()), config=None)
    spec = guarded(spec_of(ApiKey.DESCRIBE_LOG_DIRS, handle_later=handle), guard_of(ApiKey.DESCRIBE_LOG_DIRS), broker)
    assert spec.handle_later is not None
    context = SimpleNamespace(api_version=5, principal=ANONYMOUS)
    assert asyncio.run(spec.handle_later(DescribeLogDirsRequest(topics=None), context)).error_code == WHOLE


def test_a_client_that_disconnects_abandons_what_the_handler_waits_for() -> None:
    inner: Pending[Any] = Pending(holds_connection=True)
    broker: Any = SimpleNamespace(authorizer=Only(), metadata=SimpleNamespace(image=image()), config=None)
    spec = guarded(spec_of(ApiKey.PRODUCE, handle=lambda _request, _context: inner), guard_of(ApiKey.PRODUCE), broker)
    assert spec.handle is not None
    outer = spec.handle(produce(12, "secret"), SimpleNamespace(api_version=12, principal=ANONYMOUS))
    assert outer.holds_connection
    outer.abandon()
    assert inner.abandoned


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("here", TOPIC),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TOPIC),
        (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_fetches_read_what_may_be_read(found: Any, told: ErrorCode) -> None:
    """The response does not reveal whether the topic exists; for followers more was authorized before."""
    identity = b"9" * 16 if found is ErrorCode.UNKNOWN_TOPIC_ID else ID
    replicas: Any = SimpleNamespace(image=image(), find=lambda _topic, _number: found, traffic=TrafficTable())
    reader = GuardedFetchReader(lambda name: name == "secret", replicas, list)
    target: Any = SimpleNamespace(topic="t", topic_id=identity, partition=0)
    consumer: Any = SimpleNamespace(is_follower=False, api_version=17 if found is ErrorCode.UNKNOWN_TOPIC_ID else 12)
    assert reader.find(target, consumer) == told
    if found is not ErrorCode.UNKNOWN_TOPIC_ID:
        assert reader.find(target, SimpleNamespace(is_follower=True, api_version=12)) == found
    allowed: Any = SimpleNamespace(topic="secret", topic_id=SECRET_ID, partition=0)
    assert reader.find(allowed, SimpleNamespace(is_follower=False, api_version=12)) == found
