"""Guards of the rules of access control themselves. Source: Kafka's `AclApis`."""

from __future__ import annotations

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.guard import Asker, Verdict
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from lowtide.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_MESSAGE = "Cluster authorization failed."


def describe_acls(request: DescribeAclsRequest, asker: Asker) -> Verdict:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return Verdict(request)
    return Verdict(answer=DescribeAclsResponse(error_code=DENIED, error_message=_MESSAGE))


def create_acls(request: CreateAclsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    row = AclCreationResult(error_code=DENIED, error_message=_MESSAGE)
    return Verdict(answer=CreateAclsResponse(results=[row] * len(request.creations)))


def delete_acls(request: DeleteAclsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    row = DeleteAclsFilterResult(error_code=DENIED, error_message=_MESSAGE)
    return Verdict(answer=DeleteAclsResponse(filter_results=[row] * len(request.filters)))
