"""Guards of requests that change topics. Source: Kafka's `ControllerApis`.

The client's broker checks the permissions before it forwards a request. The controller does not check them again.
"""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopicResult,
)
from lowtide.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.deletions import TopicDeletion, resolve_deletions
from lowtide.replication.topic_names import CLUSTER_METADATA_TOPIC, repeated_names

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TOPIC_MESSAGE = "Topic authorization failed."
_BY_ID_SINCE = 6


def create_topics(request: CreateTopicsRequest, asker: Asker) -> Verdict:
    """Requires CREATE on the cluster or on each topic. Configurations of new topics also require DESCRIBE_CONFIGS."""
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
    """Requires ALTER on each topic."""
    twice = repeated_names(each.name for each in request.topics)
    allowed, denied = asker.split(
        Operation.ALTER, request.topics, lambda each: None if each.name in twice else each.name
    )
    rows = [
        CreatePartitionsTopicResult(name=each.name, error_code=DENIED, error_message=_TOPIC_MESSAGE) for each in denied
    ]
    return with_rows(replace(request, topics=allowed), "results", rows)


def delete_topics(request: DeleteTopicsRequest, asker: Asker) -> Verdict:
    """Requires DELETE on the cluster, or DESCRIBE and DELETE on each topic. DESCRIBE shows whether a topic exists."""
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
    field = "topics" if by_id else "topic_names"
    allowed = [row for row, each in zip(getattr(request, field), wanted, strict=True) if each not in denied]
    return with_rows(replace(request, **{field: allowed}), "responses", list(denied.values()))


def _undeletable(deletion: TopicDeletion, asker: Asker) -> DeletableTopicResult | None:
    """Returns the row of a topic that the client may not delete; None if the handler decides."""
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
