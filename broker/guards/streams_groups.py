"""Guards of requests about streams groups. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS, Operation, group, topic
from lowtide.broker.coordinator.streams.heartbeat_checks import check_topics
from lowtide.broker.coordinator.streams.streams_heartbeats import heartbeat_failed
from lowtide.broker.coordinator.streams.topology_records import topic_names
from lowtide.broker.guards.guard import Asker, Verdict
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_describe import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from lowtide.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from lowtide.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)


def streams_group_heartbeat(request: StreamsGroupHeartbeatRequest, asker: Asker) -> Verdict:
    """Requires READ on the group, and DESCRIBE on each topic of the topology, whose names are checked before."""
    if not asker.may(Operation.READ, group(request.group_id)):
        return Verdict(answer=heartbeat_failed(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    refusal = check_topics(request)
    if refusal is not None:
        return Verdict(answer=heartbeat_failed(refusal.error, refusal.message))
    names = [] if request.topology is None else topic_names(request.topology)
    if all(asker.may(Operation.DESCRIBE, topic(name)) for name in names):
        return Verdict(request)
    return Verdict(answer=heartbeat_failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED))


def streams_group_describe(request: StreamsGroupDescribeRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each group, and on each topic of its topology."""
    allowed, denied = asker.split_ids(Operation.DESCRIBE, group, dict.fromkeys(request.group_ids))
    rows = [DescribedStreamsGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=name) for name in denied]

    def merge(answer: StreamsGroupDescribeResponse) -> StreamsGroupDescribeResponse:
        return replace(answer, groups=[*rows, *(_shown(row, asker) for row in answer.groups)])

    return Verdict(replace(request, group_ids=allowed), merge)


def _shown(row: DescribedStreamsGroup, asker: Asker) -> DescribedStreamsGroup:
    if all(asker.may(Operation.DESCRIBE, topic(name)) for name in dict.fromkeys(_topics(row))):
        shown: DescribedStreamsGroup = asker.with_operations(row, group(row.group_id), ALL_GROUP_OPERATIONS)
        return shown
    return DescribedStreamsGroup(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The described group uses topics that the client is not authorized to describe.",
        group_id=row.group_id,
    )


def _topics(row: DescribedStreamsGroup) -> Iterator[str]:
    for each in (row.topology.subtopologies or ()) if row.topology is not None else ():
        yield from each.source_topics
        yield from each.repartition_sink_topics
        yield from (info.name for info in (*each.repartition_source_topics, *each.state_changelog_topics))


def topology_description_update(request: StreamsGroupTopologyDescriptionUpdateRequest, asker: Asker) -> Verdict:
    """Requires READ on the group."""
    if asker.may(Operation.READ, group(request.group_id)):
        return Verdict(request)
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    return Verdict(answer=StreamsGroupTopologyDescriptionUpdateResponse(error_code=denied))
