"""AlterShareGroupOffsets: v0-v0.

Behaviour: sets where a share group without members continues. Its states are initialized again in a later epoch, which
fences leaders of the earlier one. A group that does not exist is created without members. If a partition is listed
twice, the last entry wins.

Errors: GROUP_ID_NOT_FOUND (a group of another type), GROUP_MAX_SIZE_REACHED, NON_EMPTY_GROUP, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE; of partitions UNKNOWN_TOPIC_OR_PARTITION and those of
InitializeShareGroupState.

KIPs: 932.
"""

from __future__ import annotations

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets, why_not
from lowtide.broker.guards import share_groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_share_group_offsets import (
    AlteredShareOffset,
    AlteredShareOffsetsTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId
from lowtide.replication.refusal import cut_message


def handler(broker: BrokerContext, offsets: ShareOffsets) -> HandlerSpec:
    """Returns the handler."""

    async def handle(
        request: AlterShareGroupOffsetsRequest, _context: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        image, wanted = broker.metadata.image, dict[TopicId, tuple[str, dict[int, Offset]]]()
        for row in request.topics:
            topic = image.topics.get(row.topic_name)
            if topic is not None:
                starts = wanted.setdefault(topic.topic_id, (row.topic_name, {}))[1]
                known = range(len(topic.partitions))
                starts |= {
                    each.partition_index: each.start_offset for each in row.partitions if each.partition_index in known
                }
        outcome = await offsets.alter(request.group_id, wanted)
        if isinstance(outcome, ErrorCode):
            return AlterShareGroupOffsetsResponse(error_code=outcome, error_message=why_not(outcome, request.group_id))
        responses = []
        for row in request.topics:
            topic = image.topics.get(row.topic_name)
            topic_id = ZERO_TOPIC_ID if topic is None else topic.topic_id
            numbers = dict.fromkeys(each.partition_index for each in row.partitions)
            codes = {
                number: outcome.get(
                    SharePlace(request.group_id, topic_id, number), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                for number in numbers
            }
            partitions = [_altered(row.topic_name, number, code) for number, code in codes.items()]
            responses.append(
                AlteredShareOffsetsTopic(topic_name=row.topic_name, topic_id=topic_id, partitions=partitions)
            )
        return AlterShareGroupOffsetsResponse(responses=responses)

    return HandlerSpec(
        key=ApiKey.ALTER_SHARE_GROUP_OFFSETS, guard=guards.alter_share_group_offsets, handle_later=handle
    )


def _altered(name: str, number: int, code: ErrorCode) -> AlteredShareOffset:
    message = f"There is no partition {name}-{number}." if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
    return AlteredShareOffset(partition_index=number, error_code=code, error_message=cut_message(message))
