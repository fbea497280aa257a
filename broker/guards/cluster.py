"""Guards of requests about the cluster: brokers, configurations, producer ids, ACLs, users and client quotas.

Sources: Kafka's `KafkaApis` and `ControllerApis`.
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
    topic,
)
from lowtide.broker.config.dynamic_config import decides_logins
from lowtide.broker.config.resources import ResourceType as Configured
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
from lowtide.metadata.config_image import NOTHING_SET
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
)
from lowtide.protocol.messages.alter_configs import AlterConfigsResourceResponse
from lowtide.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from lowtide.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from lowtide.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from lowtide.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from lowtide.protocol.messages.describe_cluster import (
    OPERATIONS_NOT_ASKED,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from lowtide.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from lowtide.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from lowtide.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from lowtide.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from lowtide.protocol.messages.incremental_alter_configs import AlterConfigsResourceResponse as ChangedResource
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lowtide.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from lowtide.protocol.types import NO_PRODUCER_EPOCH

_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_MESSAGE: Final = "Cluster authorization failed."
_ERROR_SINCE = 3
_NAME_SHOWN: Final = 249
"""Characters of a key in a refusal."""

_MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


def describe_cluster(request: DescribeClusterRequest, asker: Asker) -> Verdict:
    """Every client may list the brokers. The authorized operations on the cluster need DESCRIBE on it."""

    def merge(answer: DescribeClusterResponse) -> DescribeClusterResponse:
        if answer.cluster_authorized_operations == OPERATIONS_NOT_ASKED:
            return answer
        operations = asker.operations(CLUSTER, ALL_CLUSTER_OPERATIONS) if asker.may_cluster(Operation.DESCRIBE) else 0
        return replace(answer, cluster_authorized_operations=operations)

    return Verdict(request, merge)


def describe_log_dirs(request: DescribeLogDirsRequest, asker: Asker) -> Verdict:
    """DESCRIBE on the cluster. Versions without a field for an error return nothing."""
    if asker.may_cluster(Operation.DESCRIBE):
        return Verdict(request)
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if asker.context.api_version >= _ERROR_SINCE else ErrorCode.NONE
    return Verdict(answer=DescribeLogDirsResponse(throttle_time_ms=0, error_code=error))


def describe_quorum(request: DescribeQuorumRequest, asker: Asker) -> Verdict:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return Verdict(request)
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return Verdict(answer=DescribeQuorumResponse(error_code=error, error_message=_MESSAGES[error]))


def alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    denied: dict[str, dict[int, AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for named in directory.topics:
            for index in named.partitions:
                row = AlterReplicaLogDirPartitionResult(
                    partition_index=index, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                )
                denied.setdefault(named.name, {})[index] = row
    results = [
        AlterReplicaLogDirTopicResult(topic_name=name, partitions=list(rows.values())) for name, rows in denied.items()
    ]
    return Verdict(answer=AlterReplicaLogDirsResponse(results=results))


def init_producer_id(request: InitProducerIdRequest, asker: Asker) -> Verdict:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on any topic."""
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


def list_config_resources(request: ListConfigResourcesRequest, asker: Asker) -> Verdict:
    """DESCRIBE_CONFIGS on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE_CONFIGS):
        return Verdict(request)
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return Verdict(answer=ListConfigResourcesResponse(throttle_time_ms=0, error_code=denied, config_resources=[]))


def _refusal_of(asker: Asker, operation: Operation, kind: int, name: str) -> ErrorCode:
    """Whether a resource's configuration may be seen, or changed.

    Kinds that there aren't are the handler's business.
    """
    if kind == Configured.TOPIC:
        return ErrorCode.NONE if asker.may(operation, topic(name)) else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if kind == Configured.GROUP:
        return (
            ErrorCode.NONE
            if asker.may(operation, Resource(ResourceType.GROUP, name))
            else ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
    if kind in Configured.__members__.values():
        return ErrorCode.NONE if asker.may_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _denied(asker: Asker, operation: Operation, resources: list[Any]) -> list[tuple[Any, ErrorCode]]:
    refusals = ((row, _refusal_of(asker, operation, row.resource_type, row.resource_name)) for row in resources)
    return [(row, error) for row, error in refusals if error != ErrorCode.NONE]


def describe_configs(request: DescribeConfigsRequest, asker: Asker) -> Verdict:
    """DESCRIBE_CONFIGS on each topic and group, and for brokers on the cluster."""
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

    def merge(answer: DescribeConfigsResponse) -> DescribeConfigsResponse:
        return replace(answer, results=[*answer.results, *rows])

    return with_rows(replace(request, resources=_without(request.resources, denied)), merge, denied)


def alter_configs(request: Any, asker: Asker) -> Verdict:
    """ALTER_CONFIGS on each topic and group, and for brokers on the cluster.

    Keys that decide who may log in need ALTER on it too.
    """
    return _changes(request, asker, AlterConfigsResourceResponse, _set_on_broker(asker))


def incremental_alter_configs(request: Any, asker: Asker) -> Verdict:
    """As `alter_configs`."""
    return _changes(request, asker, ChangedResource)


def _set_on_broker(asker: Asker) -> Collection[str]:
    """What is set on this broker: AlterConfigs removes what it doesn't name."""
    return asker.image.broker_configs.get(str(asker.config.node_id), NOTHING_SET).configs


def _changes(
    request: Any, asker: Asker, row_of: Callable[..., msgspec.Struct], replaced: Collection[str] = ()
) -> Verdict:
    """`replaced`: the keys of this broker that are changed besides those that its row names."""
    denied = [
        (row, error, _MESSAGES[error]) for row, error in _denied(asker, Operation.ALTER_CONFIGS, request.resources)
    ]
    for row in _without(request.resources, denied):
        named = [key.name for key in row.configs] if row.resource_type == Configured.BROKER else []
        named += replaced if row.resource_type == Configured.BROKER and row.resource_name else ()
        of_logins = next(filter(decides_logins, named), None)
        if of_logins is not None and not asker.may_cluster(Operation.ALTER):
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            message = f"{_MESSAGES[error]} {of_logins[:_NAME_SHOWN]} decides who may log in, which needs ALTER on the cluster."
            denied.append((row, error, message))
    rows = [
        row_of(
            error_code=error, error_message=message, resource_type=row.resource_type, resource_name=row.resource_name
        )
        for row, error, message in denied
    ]
    return with_rows(
        replace(request, resources=_without(request.resources, denied)),
        lambda answer: replace(answer, responses=[*answer.responses, *rows]),
        denied,
    )


def _without(rows: list[Any], denied: Sequence[tuple[Any, ...]]) -> list[Any]:
    gone = {id(row) for row, *_ in denied}
    return [row for row in rows if id(row) not in gone]


def describe_acls(request: DescribeAclsRequest, asker: Asker) -> Verdict:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return Verdict(request)
    return Verdict(answer=DescribeAclsResponse(error_code=_DENIED, error_message=_MESSAGE))


def create_acls(request: CreateAclsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    row = AclCreationResult(error_code=_DENIED, error_message=_MESSAGE)
    return Verdict(answer=CreateAclsResponse(results=[row] * len(request.creations)))


def delete_acls(request: DeleteAclsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    row = DeleteAclsFilterResult(error_code=_DENIED, error_message=_MESSAGE)
    return Verdict(answer=DeleteAclsResponse(filter_results=[row] * len(request.filters)))


def describe_client_quotas(request: DescribeClientQuotasRequest, asker: Asker) -> Verdict:
    """DESCRIBE_CONFIGS on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE_CONFIGS):
        return Verdict(request)
    return Verdict(answer=DescribeClientQuotasResponse(error_code=_DENIED, error_message=_MESSAGE, entries=None))


def alter_client_quotas(request: AlterClientQuotasRequest, asker: Asker) -> Verdict:
    """ALTER_CONFIGS on the cluster."""
    if asker.may_cluster(Operation.ALTER_CONFIGS):
        return Verdict(request)
    rows = [
        AlterClientQuotasResult(error_code=_DENIED, error_message=_MESSAGE, entity=entry.entity)
        for entry in request.entries
    ]
    return Verdict(answer=AlterClientQuotasResponse(entries=rows))


def describe_user_scram_credentials(request: DescribeUserScramCredentialsRequest, asker: Asker) -> Verdict:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return Verdict(request)
    rows = [
        DescribeUserScramCredentialsResult(
            user=row.name, error_code=_DENIED, error_message=_MESSAGE, credential_infos=[]
        )
        for row in request.users or ()
    ]
    return Verdict(
        answer=DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=_DENIED, error_message=_MESSAGE, results=rows
        )
    )


def alter_user_scram_credentials(request: AlterUserScramCredentialsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    names = dict.fromkeys([*(row.name for row in request.deletions), *(row.name for row in request.upsertions)])
    rows = [AlterUserScramCredentialsResult(user=name, error_code=_DENIED, error_message=_MESSAGE) for name in names]
    return Verdict(answer=AlterUserScramCredentialsResponse(throttle_time_ms=0, results=rows))
