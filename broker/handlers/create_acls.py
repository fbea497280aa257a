"""CreateAcls: v1-v3.

Behaviour: creates access rules. The response is sent when all brokers decide by them. A rule that exists already is
accepted, as in Kafka. Hosts are stored in normal form; a host that is neither an address, a range of addresses nor `*`
is refused, while Kafka compares text. All valid rules of a request are created, or none.

Version notes: v1 has pattern types, v2 is flexible, v3 has user resources.

Errors: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED without an authorizer; of single rules INVALID_REQUEST,
POLICY_VIOLATION for too many rules in total or too large a change, UNSUPPORTED_VERSION for an address range while a
broker is too old to apply it, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE,
NOT_CONTROLLER if this broker lost its registration.

KIPs: 140, 290, 373, 1276.
"""

from __future__ import annotations

from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.authorizer.acls import fault_of
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.audited_requests import CREATED_ACLS
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from lowtide.replication.refusal import Refusal
from lowtide.runtime.addresses import in_normal_form

DISABLED = Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def handler(administrator: AclAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        if not administrator.is_enabled:
            return refused(request, context.api_version, DISABLED)
        wanted = [_acl(each) for each in request.creations]
        faults = [fault_of(acl) for acl in wanted]
        valid = [acl for acl, fault in zip(wanted, faults, strict=True) if fault is None]
        made = iter(await administrator.create(valid) if valid else ())
        outcomes = [next(made) if fault is None else Refusal(ErrorCode.INVALID_REQUEST, fault) for fault in faults]
        created = [str(acl) for acl, outcome in zip(wanted, outcomes, strict=True) if outcome is None]
        if created:
            administrator.broker.log.info(
                "acls created", principal=str(context.principal), count=len(created), first=created[0]
            )
        return CreateAclsResponse(results=[AclCreationResult(**outcome_fields(outcome)) for outcome in outcomes])

    return HandlerSpec(
        key=ApiKey.CREATE_ACLS, guard=on_cluster(Operation.ALTER, refused), handle_later=handle, audit=CREATED_ACLS
    )


def refused(request: CreateAclsRequest, _version: int, refusal: Refusal) -> CreateAclsResponse:
    """Returns the answer to a request that is refused as a whole."""
    return CreateAclsResponse(results=[AclCreationResult(**outcome_fields(refusal))] * len(request.creations))


def _acl(asked: AclCreation) -> AclRecord:
    return AclRecord(
        asked.resource_type,
        asked.resource_name,
        asked.resource_pattern_type,
        asked.principal,
        in_normal_form(asked.host),
        asked.operation,
        asked.permission_type,
    )
