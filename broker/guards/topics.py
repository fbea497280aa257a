"""Guards of requests about topics. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import (
    ALL_CLUSTER_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
    CLUSTER,
    Operation,
    topic,
    transactional_id,
)
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
from lowtide.broker.partitions.produce.produce_rows import has_transactional
from lowtide.broker.pending import NO_ANSWER
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersTopicResponse,
)
from lowtide.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.messages.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from lowtide.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderTopicResult,
)
from lowtide.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID
from lowtide.replication.topic_names import check_topic_name

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
TRANSACTION_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
DENIED_MESSAGE = "Topic authorization failed."

_LOOKUP_BY_ID_SINCE = 12
_NULL_MEANS_ALL_SINCE = 1


def produce(request: ProduceRequest, asker: Asker) -> Verdict:
    """Requires WRITE on the transactional id and on each topic. With acks=0 an error closes the connection."""
    if has_transactional(request.topic_data) and not _may_write_transactions(request, asker):
        if request.acks == 0:
            asker.context.close_connection(f"Produce with acks=0 failed with {TRANSACTION_DENIED.name}")
            return Verdict(answer=NO_ANSWER)
        return Verdict(
            answer=ProduceResponse(responses=[_refused_rows(each, TRANSACTION_DENIED) for each in request.topic_data])
        )
    by_id = asker.context.api_version >= TOPIC_IDS_SINCE
    allowed, denied = asker.split(
        Operation.WRITE,
        request.topic_data,
        lambda each: asker.name_of(each.name, each.topic_id, by_id=by_id and each.topic_id != ZERO_TOPIC_ID),
    )
    if denied and request.acks == 0:
        asker.context.close_connection(f"Produce with acks=0 failed with {DENIED.name}")
    rows = [_refused_rows(each, DENIED) for each in denied]
    return with_rows(replace(request, topic_data=allowed), "responses", rows)


def _may_write_transactions(request: ProduceRequest, asker: Asker) -> bool:
    """Returns whether the client may write the transactional batches, by their headers (CVE-2018-17196)."""
    name = request.transactional_id
    return name is not None and asker.may(Operation.WRITE, transactional_id(name))


def _refused_rows(asked: TopicProduceData, error: ErrorCode) -> TopicProduceResponse:
    rows = [
        PartitionProduceResponse(index=row.index, error_code=error, base_offset=UNKNOWN_OFFSET, error_message=None)
        for row in asked.partition_data
    ]
    return TopicProduceResponse(name=asked.name, topic_id=asked.topic_id, partition_responses=rows)


def list_offsets(request: ListOffsetsRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each topic."""
    allowed, denied = asker.split(Operation.DESCRIBE, request.topics, lambda each: each.name)
    rows = [
        ListOffsetsTopicResponse(
            name=each.name,
            partitions=[
                ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=DENIED)
                for row in each.partitions
            ],
        )
        for each in denied
    ]
    return with_rows(replace(request, topics=allowed), "topics", rows)


def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, asker: Asker) -> Verdict:
    """Requires CLUSTER_ACTION, which replicas have, or DESCRIBE on each topic."""
    if asker.may_cluster(Operation.CLUSTER_ACTION, Audit.ALLOWED):
        return Verdict(request)
    allowed, denied = asker.split(Operation.DESCRIBE, request.topics, lambda each: each.topic)
    rows = [
        OffsetForLeaderTopicResult(
            topic=each.topic,
            partitions=[EpochEndOffset(error_code=DENIED, partition=row.partition) for row in each.partitions],
        )
        for each in denied
    ]
    return with_rows(replace(request, topics=allowed), "topics", rows)


def describe_producers(request: DescribeProducersRequest, asker: Asker) -> Verdict:
    """Requires READ on each topic with a valid name."""
    allowed, denied = asker.split(
        Operation.READ, request.topics, lambda each: each.name if check_topic_name(each.name) is None else None
    )
    rows = [
        DescribeProducersTopicResponse(
            name=each.name,
            partitions=[
                DescribeProducersPartitionResponse(
                    partition_index=number, error_code=DENIED, error_message=DENIED_MESSAGE
                )
                for number in each.partition_indexes
            ],
        )
        for each in denied
    ]
    return with_rows(replace(request, topics=allowed), "topics", rows)


def describe_topic_partitions(request: DescribeTopicPartitionsRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each topic; a request for all topics leaves out the others."""
    wanted = request.topics or [TopicRequest(name=name) for name in asker.image.topics]
    audit = Audit.BOTH if request.topics else Audit.ALLOWED
    allowed, denied = asker.split(Operation.DESCRIBE, wanted, lambda each: each.name, audit)
    rows = [
        DescribeTopicPartitionsResponseTopic(error_code=DENIED, name=each.name) for each in denied if request.topics
    ]

    def merge(answer: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        described = [
            replace(row, topic_authorized_operations=asker.operations(topic(row.name or ""), ALL_TOPIC_OPERATIONS))
            for row in answer.topics
        ]
        return replace(answer, topics=[*described, *rows])

    if not allowed:
        return Verdict(answer=DescribeTopicPartitionsResponse(topics=rows))
    cursor = request.cursor
    if not request.topics and cursor is not None and cursor.topic_name not in {each.name for each in allowed}:
        # The cursor's topic must be among the named ones: the next topic that the client may describe takes its place.
        later = sorted(each.name for each in allowed if each.name > cursor.topic_name)
        if not later:
            return Verdict(answer=DescribeTopicPartitionsResponse(topics=[]))
        cursor = replace(cursor, topic_name=later[0], partition_index=0)
    return Verdict(replace(request, topics=allowed, cursor=cursor), merge)


def metadata(request: MetadataRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each topic, and CREATE on those that would be created.

    A request for all topics leaves out the others.
    """
    version = asker.context.api_version
    if request.topics is None or (not request.topics and version < _NULL_MEANS_ALL_SINCE):
        return Verdict(request, lambda answer: _seen(answer, request, asker, []))

    def by_id(each: MetadataRequestTopic) -> bool:
        return each.topic_id != ZERO_TOPIC_ID and version >= _LOOKUP_BY_ID_SINCE

    allowed, denied = asker.split(
        Operation.DESCRIBE,
        request.topics,
        lambda each: asker.name_of(each.name or "", each.topic_id, by_id=by_id(each)),
    )
    new = [
        each for each in allowed if not by_id(each) and each.name is not None and each.name not in asker.image.topics
    ]
    if (
        new
        and asker.config.auto_create_topics_enable
        and request.allow_auto_topic_creation
        and not asker.may_cluster(Operation.CREATE, Audit.ALLOWED)
    ):
        _, uncreatable = asker.split(Operation.CREATE, new, lambda each: each.name)
        denied += uncreatable
        allowed = [each for each in allowed if each not in uncreatable]
    # The client knows the id or the name, and must not learn the other.
    rows = [
        MetadataResponseTopic(error_code=DENIED, name=None, topic_id=each.topic_id, partitions=[])
        if by_id(each)
        else MetadataResponseTopic(error_code=DENIED, name=each.name, partitions=[])
        for each in denied
    ]
    if denied and not allowed and version < _NULL_MEANS_ALL_SINCE:
        # In version 0 an empty list asks for all topics.
        return Verdict(replace(request, topics=None), lambda answer: replace(answer, topics=rows))
    return Verdict(replace(request, topics=allowed), lambda answer: _seen(answer, request, asker, rows))


def _seen(
    answer: MetadataResponse, request: MetadataRequest, asker: Asker, denied: list[MetadataResponseTopic]
) -> MetadataResponse:
    """Returns the answer without what the client may not see, with its permitted operations if requested."""
    topics = answer.topics
    if request.topics is None or not request.topics:
        topics = [row for row in topics if asker.may(Operation.DESCRIBE, topic(row.name or ""), Audit.ALLOWED)]
    if request.include_topic_authorized_operations:
        topics = [
            row
            if row.error_code == DENIED
            else replace(row, topic_authorized_operations=asker.operations(topic(row.name or ""), ALL_TOPIC_OPERATIONS))
            for row in topics
        ]
    operations = answer.cluster_authorized_operations
    if operations != OPERATIONS_NOT_ASKED:
        operations = asker.operations(CLUSTER, ALL_CLUSTER_OPERATIONS) if asker.may_cluster(Operation.DESCRIBE) else 0
    return replace(answer, topics=[*topics, *denied], cluster_authorized_operations=operations)
