"""ListConfigResources: v0-v1.

Behaviour: tells the names of the topics and brokers there are, and of the groups on which something is set; each broker
stands for its loggers too; and the subscriptions to clients' metrics.

Version notes: v0 lists clients' metrics only (KIP-714); v1 lists the types that are asked for, or all (KIP-1142).

Errors: UNSUPPORTED_VERSION for a type that isn't one.

KIPs: 714, 1142.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.config.resources import Resource, ResourceType
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

RESOURCES_A_STEP = 200
"""A tenth of a millisecond's work."""


def handler(administrator: ConfigAdministrator) -> HandlerSpec:
    """The handler over a cluster's configurations."""

    def steps(found: Sequence[Resource]) -> Generator[None, None, ListConfigResourcesResponse]:
        rows = []
        for resource in found:
            rows.append(ConfigResource(resource_name=resource.name, resource_type=resource.type))
            if len(rows) % RESOURCES_A_STEP == 0:
                yield
        return ListConfigResourcesResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, config_resources=rows)

    def handle(
        request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse | Pending[ListConfigResourcesResponse]:
        types = request.resource_types or [*ResourceType]
        if context.api_version == 0:
            types = [ResourceType.CLIENT_METRICS]
        if not set(types) <= set(ResourceType):
            return ListConfigResourcesResponse(
                throttle_time_ms=0, error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
            )
        found = administrator.list(frozenset(map(ResourceType, types)))
        return administrator.broker.turns.answer(steps(found))

    return HandlerSpec(key=ApiKey.LIST_CONFIG_RESOURCES, guard=guards.list_config_resources, handle=handle)
