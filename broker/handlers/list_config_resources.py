"""ListConfigResources: v0-v1.

Behaviour: returns the names of all topics, brokers and brokers' loggers, of groups with settings, and of client metrics
subscriptions.

Version notes: v0 lists client metrics only (KIP-714); v1 lists the requested types, or all (KIP-1142).

Errors: UNSUPPORTED_VERSION for an unknown type.

KIPs: 714, 1142.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.config.resources import ConfiguredResource
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from lowtide.replication.refusal import Refusal

RESOURCES_A_STEP = 200
"""A tenth of a millisecond's work."""

UNSUPPORTED: Final = Refusal(ErrorCode.UNSUPPORTED_VERSION, "There is no such type of resource.")


def handler(administrator: ConfigAdministrator) -> HandlerSpec:
    """Returns the handler."""

    def steps(found: Sequence[ConfiguredResource]) -> Generator[None, None, ListConfigResourcesResponse]:
        rows = []
        for resource in found:
            rows.append(ConfigResource(resource_name=resource.name, resource_type=resource.type))
            if len(rows) % RESOURCES_A_STEP == 0:
                yield
        return ListConfigResourcesResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, config_resources=rows)

    def handle(request: ListConfigResourcesRequest, context: RequestContext) -> Answer[ListConfigResourcesResponse]:
        types = request.resource_types or [*ConfigResourceType]
        if context.api_version == 0:
            types = [ConfigResourceType.CLIENT_METRICS]
        if not set(types) <= set(ConfigResourceType):
            return refused(request, context.api_version, UNSUPPORTED)
        found = administrator.list(frozenset(map(ConfigResourceType, types)))
        return administrator.broker.turns.answer(steps(found))

    return HandlerSpec(
        key=ApiKey.LIST_CONFIG_RESOURCES, guard=on_cluster(Operation.DESCRIBE_CONFIGS, refused), handle=handle
    )


def refused(_request: ListConfigResourcesRequest, _version: int, refusal: Refusal) -> ListConfigResourcesResponse:
    """Returns the answer to a request that is refused. It has no field for the message."""
    return ListConfigResourcesResponse(throttle_time_ms=0, error_code=refusal.error_code, config_resources=[])
