"""Guards that once required other rights than Kafka 4.3.1 does, one test each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.authorizer.resources import CLUSTER, Operation, group, topic, transactional_id
from lowtide.broker.handlers import write_txn_markers
from lowtide.broker.pending import NO_ANSWER
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from lowtide.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lowtide.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from lowtide.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from lowtide.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

from .asking import GROUP, TOPIC, WHOLE, Only, ask

TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TRANSACTIONAL = bytes(16) + b"\x02" + bytes(5) + b"\x10" + bytes(40)
"""Enough of a batch to see that it is transactional: its magic and its attributes."""


def produced(name: str | None, records: bytes = TRANSACTIONAL, acks: int = -1) -> ProduceRequest:
    rows = [
        TopicProduceData(name=each, partition_data=[PartitionProduceData(index=0, records=records)])
        for each in ("t", "secret")
    ]
    return ProduceRequest(transactional_id=name, acks=acks, timeout_ms=1, topic_data=rows)


@pytest.mark.parametrize("name", [None, "x"])
def test_transactional_batches_need_write_on_the_transactional_id(name: str | None) -> None:
    """The batches decide: WRITE on the topics is not enough (CVE-2018-17196)."""
    writes = [(Operation.WRITE, topic(each)) for each in ("t", "secret")]
    passed, told, _ = ask(Only(*writes), produced(name), ProduceResponse(responses=[]), 12)
    assert passed is None
    assert [row.error_code for each in told.responses for row in each.partition_responses] == [TRANSACTION, TRANSACTION]
    passed, told, context = ask(Only(*writes), produced(name, acks=0), NO_ANSWER, 12)
    assert (passed, told, len(context.closed)) == (None, NO_ANSWER, 1)


def test_transactional_batches_are_written_with_that_right_and_others_without() -> None:
    writes = [(Operation.WRITE, topic(each)) for each in ("t", "secret")]
    empty = ProduceResponse(responses=[])
    assert ask(Only(*writes, (Operation.WRITE, transactional_id("x"))), produced("x"), empty, 12)[0] is not None
    plain = bytes(16) + b"\x02" + bytes(46)
    assert ask(Only(*writes), produced("x", plain), empty, 12)[0] is not None


def test_a_first_producer_needs_write_on_any_topic_whether_or_not_it_is_there() -> None:
    given = InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=0)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    assert ask(Only((Operation.WRITE, topic("not there yet"))), request, given)[1].producer_id == 7
    assert ask(Only((Operation.READ, topic("t"))), request, given)[1].error_code == WHOLE


def test_create_is_asked_for_only_where_topics_are_created() -> None:
    """Otherwise a client would be denied a missing topic instead of learning that it does not exist."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    authorizer = Only((Operation.DESCRIBE, topic("new")))
    assert ask(authorizer, request, MetadataResponse(brokers=[], topics=[]), creates=False)[0].topics == request.topics
    assert ask(authorizer, request, MetadataResponse(brokers=[], topics=[]))[1].topics[0].error_code == TOPIC
    assert (Operation.CREATE, CLUSTER) in authorizer.asked
    known = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)
    reader = Only((Operation.DESCRIBE, topic("t")))
    ask(reader, known, MetadataResponse(brokers=[], topics=[]))
    assert reader.asked == [(Operation.DESCRIBE, topic("t"))]


@pytest.mark.parametrize("version", [5, 7])
def test_what_a_new_topic_is_like_needs_describe_configs(version: int) -> None:
    configs = [CreatableTopicConfigs(name="k", value="v", read_only=False, is_sensitive=False)]
    made = CreatableTopicResult(name="n", error_code=0, num_partitions=3, replication_factor=2, configs=configs)
    wanted = CreatableTopic(name="n", num_partitions=3, replication_factor=2, assignments=[], configs=[])
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=1, validate_only=False)
    create = (Operation.CREATE, CLUSTER)
    (row,) = ask(Only(create), request, CreateTopicsResponse(topics=[made]), version)[1].topics
    assert (row.error_code, row.topic_config_error_code, row.num_partitions, row.replication_factor, row.configs) == (
        0,
        TOPIC,
        -1,
        -1,
        [],
    )
    (row,) = ask(
        Only(create, (Operation.DESCRIBE_CONFIGS, topic("n"))), request, CreateTopicsResponse(topics=[made]), version
    )[1].topics
    assert (row.topic_config_error_code, row.num_partitions, len(row.configs)) == (0, 3, 1)


def test_topics_of_a_transaction_need_describe() -> None:
    rows = [TopicData(topic=name, partitions=[0]) for name in ("t", "secret")]
    state = TransactionState(error_code=0, transactional_id="x", topics=rows)
    request = DescribeTransactionsRequest(transactional_ids=["x"])
    authorizer = Only((Operation.DESCRIBE, transactional_id("x")), (Operation.DESCRIBE, topic("t")))
    (told,) = ask(authorizer, request, DescribeTransactionsResponse(transaction_states=[state]))[1].transaction_states
    assert [row.topic for row in told.topics] == ["t"]


@pytest.mark.parametrize(
    ("right", "error"), [(Operation.ALTER, 0), (Operation.CLUSTER_ACTION, 0), (Operation.DESCRIBE, WHOLE)]
)
def test_markers_are_written_by_administrators_and_brokers(right: Operation, error: int) -> None:
    """`kafka-transactions.sh abort` of an administrator has ALTER."""
    written = SimpleNamespace(write=lambda _end, keys, done, timeout_ms: [done(key, ErrorCode.NONE) for key in keys])
    broker: Any = SimpleNamespace(authorizer=Only((right, CLUSTER)))
    handle = write_txn_markers.handler(broker, written).handle
    assert handle is not None
    topics = [WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    marker = WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=False, topics=topics, coordinator_epoch=0
    )
    context: Any = SimpleNamespace(principal=ANONYMOUS)
    told = handle(WriteTxnMarkersRequest(markers=[marker]), context)
    assert [row.error_code for row in told.markers[0].topics[0].partitions] == [error]


def test_of_partitions_added_to_a_transaction_all_fail_for_one() -> None:
    """Internal topics are denied to all clients, missing topics are unknown, the rest was not attempted."""
    names = ("t", "secret", "__consumer_offsets", "none")
    topics = [AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )
    allowed = [(Operation.WRITE, topic(name)) for name in ("t", "__consumer_offsets", "none")]
    authorizer = Only((Operation.WRITE, transactional_id("x")), *allowed)
    rows = ask(authorizer, request, AddPartitionsToTxnResponse(), 3, topics=("__consumer_offsets",))[
        1
    ].results_by_topic_v3_and_below
    expected = (ErrorCode.OPERATION_NOT_ATTEMPTED, TOPIC, TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert {row.name: row.results_by_partition[0].partition_error_code for row in rows} == dict(
        zip(names, expected, strict=True)
    )


def test_a_name_that_is_none_is_no_secret() -> None:
    topics = [DescribeProducersTopicRequest(name=name, partition_indexes=[0]) for name in ("a/b", "secret")]
    passed, told, _ = ask(
        Only(), DescribeProducersRequest(topics=topics), DescribeProducersResponse(throttle_time_ms=0, topics=[])
    )
    assert [each.name for each in passed.topics] == ["a/b"]
    assert [(each.name, each.partitions[0].error_code) for each in told.topics] == [("secret", TOPIC)]


def test_share_groups_are_looked_for_by_brokers() -> None:
    """Before v6 the handler refuses the type. Before v4 a refusal has a message."""
    share = FindCoordinatorRequest(key_type=2, coordinator_keys=["g:t:0"])
    empty = FindCoordinatorResponse()
    assert ask(Only((Operation.DESCRIBE, group("g:t:0"))), share, empty, 6)[1].coordinators[0].error_code == WHOLE
    assert ask(Only((Operation.CLUSTER_ACTION, CLUSTER)), share, empty, 6)[0] == share
    assert ask(Only(), share, empty, 5)[0] == share
    told = ask(Only(), FindCoordinatorRequest(key="h"), empty, 3)[1]
    assert (told.error_code, told.error_message) == (GROUP, "Group authorization failed.")


@pytest.mark.parametrize("forwarded", [True, False])
def test_what_a_broker_forwards_it_has_asked_about(forwarded: bool) -> None:
    """A broker's client id and CLUSTER_ACTION are not enough: the request must come in an envelope."""
    request = ElectLeadersRequest(topic_partitions=None)
    empty = ElectLeadersResponse(replica_election_results=[])
    authorizer = Only((Operation.CLUSTER_ACTION, CLUSTER))
    passed, _, _ = ask(authorizer, request, empty, client_id="broker-1-forwarding-3", forwarded=forwarded)
    assert (passed is not None) == forwarded
