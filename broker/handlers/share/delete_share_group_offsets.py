"""DeleteShareGroupOffsets: v0-v0.

Behaviour: removes topics from a share group without members: the states of their partitions are deleted. A topic that
is listed twice is answered once.

Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; of topics
UNKNOWN_TOPIC_OR_PARTITION, also if the group has no state of it, COORDINATOR_NOT_AVAILABLE.

KIPs: 932.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets, why_not
from lowtide.broker.guards import share_groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_share_group_offsets import (
    DeletedShareOffsetsTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.refusal import cut_message

_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def handler(broker: BrokerContext, offsets: ShareOffsets) -> HandlerSpec:
    """Returns the handler."""

    async def handle(
        request: DeleteShareGroupOffsetsRequest, _context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        topics = broker.metadata.image.topics
        names = list(dict.fromkeys(row.topic_name for row in request.topics))
        ids = {name: topics[name].topic_id if name in topics else ZERO_TOPIC_ID for name in names}
        outcome = await offsets.delete(request.group_id, {ids[name]: topics[name] for name in names if name in topics})
        if isinstance(outcome, ErrorCode):
            return DeleteShareGroupOffsetsResponse(error_code=outcome, error_message=why_not(outcome, request.group_id))
        codes = {name: outcome.get(topic_id, _UNKNOWN) for name, topic_id in ids.items()}
        unknown = {
            name: cut_message(f"Share group {request.group_id} has no offsets of topic {name}.")
            for name, code in codes.items()
            if code == _UNKNOWN
        }
        rows = [
            DeletedShareOffsetsTopic(
                topic_name=name, topic_id=ids[name], error_code=code, error_message=unknown.get(name)
            )
            for name, code in codes.items()
        ]
        return DeleteShareGroupOffsetsResponse(responses=rows)

    return HandlerSpec(
        key=ApiKey.DELETE_SHARE_GROUP_OFFSETS, guard=guards.delete_share_group_offsets, handle_later=handle
    )
