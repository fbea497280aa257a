"""Guards of requests about the cluster, configurations and producer ids.

Sources: Kafka's `KafkaApis`, `ControllerApis`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import (
    ALL_CLUSTER_OPERATIONS,
    CLUSTER,
    Operation,
    Resource,
    ResourceType,
    group,
    topic,
)
from lowtide.broker.config.dynamic_config import decides_logins
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
from lowtide.metadata.config_image import NOTHING_SET
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_configs import AlterConfigsResourceResponse
from lowtide.protocol.messages.describe_cluster import (
    OPERATIONS_NOT_ASKED,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from lowtide.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResult,
)
from lowtide.protocol.messages.incremental_alter_configs import AlterConfigsResourceResponse as ChangedResource
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lowtide.protocol.types import NO_PRODUCER_EPOCH
from lowtide.replication.config_changes import Operation as ConfigOperation

_UNTIL: Final = "lowtide.hold.until"
_OF_HOLDS: Final = (_UNTIL, "lowtide.hold.reason")

_NAME_SHOWN: Final = 249
"""The number of characters of a key in a refusal."""

_MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


def describe_cluster(request: DescribeClusterRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on the cluster for its authorized operations. Every client may list the brokers."""

    def merge(answer: DescribeClusterResponse) -> DescribeClusterResponse:
        if answer.cluster_authorized_operations == OPERATIONS_NOT_ASKED:
            return answer
        operations = asker.operations(CLUSTER, ALL_CLUSTER_OPERATIONS) if asker.may_cluster(Operation.DESCRIBE) else 0
        return replace(answer, cluster_authorized_operations=operations)

    return Verdict(request, merge)


def init_producer_id(request: InitProducerIdRequest, asker: Asker) -> Verdict:
    """Requires WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on any topic."""
    error = ErrorCode.NONE
    if request.transactional_id is not None:
        if not asker.may(Operation.WRITE, Resource(ResourceType.TRANSACTIONAL_ID, request.transactional_id)):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not asker.may_cluster(Operation.IDEMPOTENT_WRITE, Audit.ALLOWED) and not asker.may_any(
        Operation.WRITE, ResourceType.TOPIC
    ):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if error == ErrorCode.NONE:
        return Verdict(request)
    return Verdict(answer=InitProducerIdResponse(error_code=error, producer_epoch=NO_PRODUCER_EPOCH))


def _refusal_of(asker: Asker, operation: Operation, kind: int, name: str) -> ErrorCode:
    """Returns why a resource's configuration may not be seen or changed. The handler refuses unknown types."""
    resource, error = CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if kind == ConfigResourceType.TOPIC:
        resource, error = topic(name), ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif kind == ConfigResourceType.GROUP:
        resource, error = group(name), ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif kind not in ConfigResourceType.__members__.values():
        return ErrorCode.NONE
    return ErrorCode.NONE if asker.may(operation, resource) else error


def _denied(asker: Asker, operation: Operation, resources: list[Any]) -> list[tuple[Any, ErrorCode]]:
    refusals = ((row, _refusal_of(asker, operation, row.resource_type, row.resource_name)) for row in resources)
    return [(row, error) for row, error in refusals if error != ErrorCode.NONE]


def describe_configs(request: DescribeConfigsRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE_CONFIGS on each topic and group, and on the cluster for brokers."""
    denied = _denied(asker, Operation.DESCRIBE_CONFIGS, request.resources)
    rows = [
        DescribeConfigsResult(
            error_code=error,
            error_message=_MESSAGES[error],
            resource_type=row.resource_type,
            resource_name=row.resource_name,
            configs=[],
        )
        for row, error in denied
    ]
    return with_rows(replace(request, resources=_without(request.resources, denied)), "results", rows)


def alter_configs(request: Any, asker: Asker) -> Verdict:
    """Requires ALTER_CONFIGS on each topic and group, and on the cluster for brokers.

    Keys that decide who may log in also require ALTER on the cluster, and so does what weakens a topic's hold.
    """
    # AlterConfigs also removes the keys of this broker that the request does not name.
    removed = asker.image.broker_configs.get(str(asker.config.node_id), NOTHING_SET).configs
    return _changes(request, asker, AlterConfigsResourceResponse, removed, is_whole=True)


def incremental_alter_configs(request: Any, asker: Asker) -> Verdict:
    """Requires the same as `alter_configs`."""
    return _changes(request, asker, ChangedResource)


def _changes(
    request: Any,
    asker: Asker,
    row_of: Callable[..., msgspec.Struct],
    replaced: Collection[str] = (),
    *,
    is_whole: bool = False,
) -> Verdict:
    """Checks the rows of a request. `replaced`: keys of this broker that change besides those that its row names.

    `is_whole`: keys of a topic that its row doesn't name are removed.
    """
    denied = [
        (row, error, _MESSAGES[error]) for row, error in _denied(asker, Operation.ALTER_CONFIGS, request.resources)
    ]
    for row in _without(request.resources, denied):
        named = [key.name for key in row.configs] if row.resource_type == ConfigResourceType.BROKER else []
        named += replaced if row.resource_type == ConfigResourceType.BROKER and row.resource_name else ()
        of_logins = next(filter(decides_logins, named), None)
        if of_logins is not None and not asker.may_cluster(Operation.ALTER):
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            why = f"{of_logins[:_NAME_SHOWN]} decides who may log in, which needs ALTER on the cluster."
            message = f"{_MESSAGES[error]} {why}"
            denied.append((row, error, message))
    for row in _without(request.resources, denied):
        weakened = row.resource_type == ConfigResourceType.TOPIC and _weakens_hold(row, asker, is_whole=is_whole)
        if weakened and not asker.may_cluster(Operation.ALTER):
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            denied.append((row, error, f"{_MESSAGES[error]} To weaken a hold needs ALTER on the cluster."))
    rows = [
        row_of(
            error_code=error, error_message=message, resource_type=row.resource_type, resource_name=row.resource_name
        )
        for row, error, message in denied
    ]
    return with_rows(replace(request, resources=_without(request.resources, denied)), "responses", rows)


def _weakens_hold(row: Any, asker: Asker, *, is_whole: bool) -> bool:
    """Returns whether a change of a topic's configuration lowers its hold, or changes the reason of one.

    `is_whole`: keys that the row doesn't name are removed.
    """
    topic = asker.image.topics.get(row.resource_name)
    held = {} if topic is None else {key: topic.configs[key] for key in _OF_HOLDS if key in topic.configs}
    if _UNTIL not in held:
        return False
    named = {key.name: key for key in row.configs}
    until = named.get(_UNTIL)
    if until is None:
        return is_whole or named.keys() & held.keys() != set()
    is_set = getattr(until, "config_operation", ConfigOperation.SET) == ConfigOperation.SET
    try:
        return not is_set or int(until.value or "") < int(held[_UNTIL])
    except ValueError:
        return False  # It is refused.


def _without(rows: list[Any], denied: Sequence[tuple[Any, ...]]) -> list[Any]:
    gone = {id(row) for row, *_ in denied}
    return [row for row in rows if id(row) not in gone]
