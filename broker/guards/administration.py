"""Guards of changes of topics, partitions and brokers. Source: Kafka's `ControllerApis`.

They stand before the request is forwarded to the controller: the broker that a client is connected to knows who it is.
What another broker forwards is not asked about again (`guard`).
"""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from lowtide.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from lowtide.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from lowtide.protocol.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopicResult,
)
from lowtide.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from lowtide.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from lowtide.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.deletions import TopicDeletion, resolve_deletions
from lowtide.replication.topic_names import CLUSTER_METADATA_TOPIC, repeated_names

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TOPIC_MESSAGE = "Topic authorization failed."
_CLUSTER_MESSAGE = "Cluster authorization failed."
_BY_ID_SINCE = 6


def create_topics(request: CreateTopicsRequest, asker: Asker) -> Verdict:
    """CREATE on the cluster, or on the topic. What a new topic is like is reported with DESCRIBE_CONFIGS on it."""
    left = {CLUSTER_METADATA_TOPIC, *repeated_names(each.name for each in request.topics)}
    allowed: list[CreatableTopic] = request.topics
    denied: list[CreatableTopic] = []
    if not asker.may_cluster(Operation.CREATE, Audit.ALLOWED):
        allowed, denied = asker.split(
            Operation.CREATE, request.topics, lambda each: None if each.name in left else each.name
        )
    rows = [
        CreatableTopicResult(name=each.name, error_code=DENIED, error_message="Authorization failed.")
        for each in denied
    ]

    def shown(row: CreatableTopicResult) -> CreatableTopicResult:
        if row.error_code != ErrorCode.NONE or asker.may(Operation.DESCRIBE_CONFIGS, topic(row.name)):
            return row
        return replace(row, topic_config_error_code=DENIED, num_partitions=-1, replication_factor=-1, configs=[])

    def merge(answer: CreateTopicsResponse) -> CreateTopicsResponse:
        return replace(answer, topics=[*map(shown, answer.topics), *rows])

    return Verdict(replace(request, topics=allowed), merge)


def create_partitions(request: CreatePartitionsRequest, asker: Asker) -> Verdict:
    """ALTER on each topic."""
    twice = repeated_names(each.name for each in request.topics)
    allowed, denied = asker.split(
        Operation.ALTER, request.topics, lambda each: None if each.name in twice else each.name
    )
    rows = [
        CreatePartitionsTopicResult(name=each.name, error_code=DENIED, error_message=_TOPIC_MESSAGE) for each in denied
    ]

    def merge(answer: CreatePartitionsResponse) -> CreatePartitionsResponse:
        return replace(answer, results=[*answer.results, *rows])

    return with_rows(replace(request, topics=allowed), merge, denied)


def delete_topics(request: DeleteTopicsRequest, asker: Asker) -> Verdict:
    """DELETE on the cluster, or DESCRIBE and DELETE on each topic.

    Whether there is such a topic is reported only with DESCRIBE.
    """
    if asker.may_cluster(Operation.DELETE, Audit.ALLOWED):
        return Verdict(request)
    by_id = asker.context.api_version >= _BY_ID_SINCE
    wanted = (
        [(each.name, each.topic_id) for each in request.topics]
        if by_id
        else [(name, ZERO_TOPIC_ID) for name in request.topic_names]
    )
    denied = {}
    for deletion in resolve_deletions(asker.image, wanted):
        row = _undeletable(deletion, asker)
        if row is not None:
            denied[
                (None if deletion.by_id else deletion.name, deletion.topic_id if deletion.by_id else ZERO_TOPIC_ID)
            ] = row

    def merge(answer: DeleteTopicsResponse) -> DeleteTopicsResponse:
        return replace(answer, responses=[*answer.responses, *denied.values()])

    if by_id:
        rows = [row for row, each in zip(request.topics, wanted, strict=True) if each not in denied]
        return with_rows(replace(request, topics=rows), merge, list(denied))
    names = [name for name, each in zip(request.topic_names, wanted, strict=True) if each not in denied]
    return with_rows(replace(request, topic_names=names), merge, list(denied))


def _undeletable(deletion: TopicDeletion, asker: Asker) -> DeletableTopicResult | None:
    """The row of a topic that the client may not delete; None where the handler is to answer."""
    name = deletion.name
    if name is None or (deletion.refusal is not None and deletion.refusal.error_code == ErrorCode.INVALID_REQUEST):
        return None
    sees = asker.may(Operation.DESCRIBE, topic(name))
    if sees and (deletion.topic is None or asker.may(Operation.DELETE, topic(name))):
        return None
    shows_name, shows_id = sees or not deletion.by_id, sees or deletion.by_id
    return DeletableTopicResult(
        name=name if shows_name else None,
        topic_id=deletion.topic_id if shows_id else ZERO_TOPIC_ID,
        error_code=DENIED,
        error_message=_TOPIC_MESSAGE,
    )


def elect_leaders(request: ElectLeadersRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    rows = [
        ElectLeadersTopicResult(
            topic=each.topic,
            partition_result=[
                ElectLeadersPartitionResult(
                    partition_id=number, error_code=CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE
                )
                for number in each.partitions
            ],
        )
        for each in request.topic_partitions or ()
    ]
    return Verdict(answer=ElectLeadersResponse(error_code=CLUSTER_DENIED, replica_election_results=rows))


def alter_partition_reassignments(request: AlterPartitionReassignmentsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    rows = [
        ReassignableTopicResponse(
            name=each.name,
            partitions=[
                ReassignablePartitionResponse(
                    partition_index=row.partition_index, error_code=CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE
                )
                for row in each.partitions
            ],
        )
        for each in request.topics
    ]
    return Verdict(
        answer=AlterPartitionReassignmentsResponse(
            error_code=CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE, responses=rows
        )
    )


def list_partition_reassignments(request: ListPartitionReassignmentsRequest, asker: Asker) -> Verdict:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return Verdict(request)
    return Verdict(
        answer=ListPartitionReassignmentsResponse(error_code=CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE, topics=[])
    )


def unregister_broker(request: UnregisterBrokerRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    return Verdict(answer=UnregisterBrokerResponse(error_code=CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE))


def update_features(request: UpdateFeaturesRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    return Verdict(answer=UpdateFeaturesResponse(error_code=CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE))
