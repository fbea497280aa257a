"""Guards of quotas. Source: Kafka's `KafkaApis` and `ControllerApis`."""

from __future__ import annotations

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.guard import Asker, Verdict
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
)
from lowtide.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_MESSAGE = "Cluster authorization failed."


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
