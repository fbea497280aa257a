"""AlterConfigs: v0-v2.

Behaviour: replaces the whole configuration of topics, of this broker, of all brokers (a broker with an empty name), or
of groups: keys that the request does not name are deleted. The response is sent when this broker applies the change;
a request may also only be validated. All keys of a resource are changed, or none. Clients should use
IncrementalAlterConfigs, which leaves other keys as they are.

Version notes: v2 is the first flexible version.

Errors: INVALID_REQUEST, INVALID_CONFIG, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT,
NOT_CONTROLLER, COORDINATOR_NOT_AVAILABLE, POLICY_VIOLATION if too many groups would have settings.

KIPs: 133, 226, 714, 848.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.administration.config_administrator import ConfigAdministrator, change_each
from lowtide.broker.config.resources import check_keys, resource_of
from lowtide.broker.guards import cluster as guards
from lowtide.broker.guards.audited_requests import CHANGED_CONFIGS
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from lowtide.replication.refusal import Refusal

CUT: Final = Cut(
    levels=(("resources", "responses"),), names=("resource_type", "resource_name"), changes=True, sequential=True
)


def handler(administrator: ConfigAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def replace(row: AlterConfigsResource, *, validate_only: bool) -> Refusal | None:
        wanted = {key.name: key.value for key in row.configs if key.value is not None}
        refusal = check_keys([key.name for key in row.configs], [key.name for key in row.configs if key.value is None])
        if refusal is not None:
            return refusal
        resource = resource_of(row.resource_type, row.resource_name, without=ConfigResourceType.BROKER_LOGGER)
        return (
            resource
            if isinstance(resource, Refusal)
            else await administrator.replace(resource, wanted, validate_only=validate_only)
        )

    async def handle(request: AlterConfigsRequest, _context: RequestContext) -> AlterConfigsResponse:
        rows = await change_each(
            request.resources,
            lambda row: replace(row, validate_only=request.validate_only),
            administrator.lane,
            AlterConfigsResourceResponse,
        )
        return AlterConfigsResponse(responses=rows)

    return HandlerSpec(
        key=ApiKey.ALTER_CONFIGS,
        guard=guards.alter_configs,
        handle_later=handle,
        cut=CUT,
        audit=CHANGED_CONFIGS,
    )
