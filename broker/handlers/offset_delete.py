"""OffsetDelete: v0-v0.

Behaviour: deletes committed offsets of a group, except in topics that its members consume. Deleting an offset that was
never committed succeeds.

Errors: of the whole group INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP if its members aren't consumers,
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE; of single partitions
UNKNOWN_TOPIC_OR_PARTITION, GROUP_SUBSCRIBED_TO_TOPIC.

KIPs: 496.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

CUT: Final = Cut(levels=(("topics", "topics"), ("partitions", "partitions")), changes=True, sequential=True)


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: OffsetDeleteRequest, _context: RequestContext) -> Answer[OffsetDeleteResponse]:
        shard = groups.find_named(request.group_id)
        if isinstance(shard, ErrorCode):
            return _failed(shard)
        group = shard.state.find_for_offset_delete(request.group_id)
        if isinstance(group, ErrorCode):
            return _failed(group)
        known, refused = _check_topics(groups.broker.metadata.image, request.topics)

        def decide(pending: Pending[OffsetDeleteResponse], effects: Effects) -> None:
            rows = {row.name: row for row in refused}
            for row in shard.state.committed.delete(group, known, effects):
                there = rows.setdefault(row.name, row)
                if there is not row:
                    there.partitions = [*there.partitions, *row.partitions]
            effects.answer_when_committed(
                pending, OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=list(rows.values())), _failed
            )

        return groups.decide(shard, decide)

    return HandlerSpec(key=ApiKey.OFFSET_DELETE, guard=guards.offset_delete, handle=handle, cut=CUT)


def _check_topics(
    image: MetadataImage, topics: Iterable[OffsetDeleteRequestTopic]
) -> tuple[list[OffsetDeleteRequestTopic], list[OffsetDeleteResponseTopic]]:
    """Returns the existing partitions of a request, each topic once, and the rows of the others."""
    wanted: dict[str, OffsetDeleteRequestTopic] = {}
    for topic in topics:
        there = wanted.setdefault(topic.name, topic)
        if there is not topic:
            there.partitions = [*there.partitions, *topic.partitions]
    known: list[OffsetDeleteRequestTopic] = []
    refused: list[OffsetDeleteResponseTopic] = []
    for topic in wanted.values():
        found = image.topics.get(topic.name)
        count = len(found.partitions) if found is not None else 0
        missing = dict.fromkeys(row.partition_index for row in topic.partitions if not 0 <= row.partition_index < count)
        if missing:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows = [OffsetDeleteResponsePartition(partition_index=number, error_code=error) for number in missing]
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=rows))
        existing = [row for row in topic.partitions if row.partition_index not in missing]
        if existing:
            known.append(OffsetDeleteRequestTopic(name=topic.name, partitions=existing))
    return known, refused


def _failed(error: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error, topics=[])
