"""DeleteAcls: v1-v3.

Behaviour: removes all access rules that the filters match, at most ten thousand, and returns them when all brokers
decide without them. All rules that a request matches are removed, or none.

Version notes: v1 has pattern types, v2 is flexible, v3 has user resources.

Errors: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED without an authorizer; of single filters INVALID_REQUEST,
UNKNOWN_SERVER_ERROR for too many rules, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE, NOT_CONTROLLER if this broker
lost its registration.

KIPs: 140, 290, 373.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.authorizer.acls import AclSelector
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.audited_requests import DELETED_ACLS
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.handlers.create_acls import DISABLED
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from lowtide.replication.refusal import Refusal


def handler(administrator: AclAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        if not administrator.is_enabled:
            return refused(request, context.api_version, DISABLED)
        outcomes = await administrator.remove([AclSelector.asked(each) for each in request.filters])
        removed = {key: acl for each in outcomes if not isinstance(each, Refusal) for key, acl in each.items()}
        if removed:
            first = str(next(iter(removed.values())))
            administrator.broker.log.info(
                "acls removed", principal=str(context.principal), count=len(removed), first=first
            )
        return DeleteAclsResponse(
            filter_results=[
                _refused(each) if isinstance(each, Refusal) else _removed(each.values()) for each in outcomes
            ]
        )

    return HandlerSpec(
        key=ApiKey.DELETE_ACLS, guard=on_cluster(Operation.ALTER, refused), handle_later=handle, audit=DELETED_ACLS
    )


def refused(request: DeleteAclsRequest, _version: int, refusal: Refusal) -> DeleteAclsResponse:
    """Returns the answer to a request that is refused as a whole."""
    return DeleteAclsResponse(filter_results=[_refused(refusal)] * len(request.filters))


def _refused(refusal: Refusal) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(**outcome_fields(refusal))


def _removed(acls: Iterable[AclRecord]) -> DeleteAclsFilterResult:
    rows = [
        DeleteAclsMatchingAcl(
            error_code=ErrorCode.NONE,
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    return DeleteAclsFilterResult(error_code=ErrorCode.NONE, matching_acls=rows)
