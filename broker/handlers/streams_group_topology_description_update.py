"""StreamsGroupTopologyDescriptionUpdate: v0-v0.

Behaviour: always refused with UNSUPPORTED_VERSION, as in a Kafka without a topology description plugin
(`group.streams.topology.description.plugin.class`). No heartbeat asks members for a description.

Errors: UNSUPPORTED_VERSION.

KIPs: 1331.
"""

from __future__ import annotations

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.guards import streams_groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(
        _request: StreamsGroupTopologyDescriptionUpdateRequest, _context: RequestContext
    ) -> StreamsGroupTopologyDescriptionUpdateResponse:
        message = "The broker has no streams group topology description plugin configured."
        return StreamsGroupTopologyDescriptionUpdateResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=message if groups.serves_streams_groups else None
        )

    return HandlerSpec(
        key=ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, guard=guards.topology_description_update, handle=handle
    )
