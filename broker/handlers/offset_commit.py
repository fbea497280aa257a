"""OffsetCommit: v2-v10.

Behaviour: stores how far a group has read partitions, which must exist. A member commits with its generation, which
also extends its session; other clients (generation -1) may commit only while the group has no members. Any offset is
accepted, also one below the committed offset. The response is sent when the offsets are committed in the log. A request
is stored as a whole unless the broker fails in between, and each offset always is.

Version notes: v2 to v4 have a retention time. v6 has leader epochs, v7 static members, v10 topic ids.

Errors: of single partitions UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE; of all
UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION (a member of the
consumer protocol before v9), GROUP_ID_NOT_FOUND (v9), REBALANCE_IN_PROGRESS, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 211, 320, 345, 848, 1251.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.coordinator.groups.commit_topics import CommitTopics
from lowtide.broker.coordinator.groups.committers import committers
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_TOPIC_IDS_SINCE = 10
_TYPES = (OffsetCommitResponseTopic, OffsetCommitResponsePartition)

CUT: Final = Cut(levels=(("topics", "topics"), ("partitions", "partitions")), changes=True)


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: OffsetCommitRequest, context: RequestContext) -> Answer[OffsetCommitResponse]:
        version = context.api_version
        topics: CommitTopics[OffsetCommitRequestTopic, OffsetCommitResponseTopic] = CommitTopics(
            groups.broker.metadata.image, request.topics, _TYPES, by_id=version >= _TOPIC_IDS_SINCE
        )
        if not topics.known:
            return OffsetCommitResponse(topics=topics.refused)
        by = committers(groups.broker, context, topics.known)
        shard = groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            return OffsetCommitResponse(topics=topics.failed(shard))

        def decide(pending: Pending[OffsetCommitResponse], effects: Effects) -> None:
            error = shard.state.admit_commit(request, version, effects)
            if error != NONE:
                effects.answer(pending, OffsetCommitResponse(topics=topics.failed(error)))
                return
            rows = shard.state.committed.commit(request, topics.known, effects, by)
            response = OffsetCommitResponse(topics=topics.merged(rows))
            effects.answer_when_committed(
                pending, response, lambda error: OffsetCommitResponse(topics=topics.failed(error))
            )

        return groups.decide(shard, decide)

    return HandlerSpec(key=ApiKey.OFFSET_COMMIT, guard=guards.offset_commit, handle=handle, cut=CUT)
