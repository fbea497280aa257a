"""ListConfigResources: v0-v1.

Behaviour: tells the names of the topics and brokers there are, and of the groups on which something is set; each broker stands for its
loggers too. Clients' metrics have no settings here, so none is listed.

Version notes: v0 lists clients' metrics only (KIP-714); v1 lists the types that are asked for, or all (KIP-1142).

Errors: UNSUPPORTED_VERSION for a type that isn't one.

KIPs: 714, 1142.
"""

from __future__ import annotations

from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.config.resources import ResourceType
from lowtide.broker.network.connection import RequestContext
from lowtide.broker.network.dispatcher import HandlerSpec
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_config_resources import ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse


def handler(administrator: ConfigAdministrator) -> HandlerSpec:
    """The handler over a cluster's configurations."""

    def handle(request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
        types = request.resource_types or [*ResourceType]
        if context.api_version == 0:
            types = [ResourceType.CLIENT_METRICS]
        if not set(types) <= set(ResourceType):
            return ListConfigResourcesResponse(throttle_time_ms=0, error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
        found = administrator.list(frozenset(map(ResourceType, types)))
        rows = [ConfigResource(resource_name=resource.name, resource_type=resource.type) for resource in found]
        return ListConfigResourcesResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, config_resources=rows)

    return HandlerSpec(key=ApiKey.LIST_CONFIG_RESOURCES, handle=handle)
