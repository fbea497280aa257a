"""OffsetCommit: v2-v10.

Behaviour: keeps how far a group has read, for partitions that exist. A member commits with its generation, which is a sign of life too;
others (generation -1) only while the group has no members. Any offset is taken, also below what was committed before. It is answered when
it is committed in the log; one request is kept whole unless the broker fails in between, and each of its offsets whole in any case.

Version notes: v2 to v4 say how long offsets are to be kept. v6 has leader epochs, v7 static members, v10 topic ids.

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE in single partitions; in all, UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND (v9), REBALANCE_IN_PROGRESS, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 211, 320, 345, 848.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.broker.connection import RequestContext
from lowtide.broker.coordinator.effects import Effects
from lowtide.broker.coordinator.service import GroupCoordinator
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from lowtide.protocol.types import ZERO_TOPIC_ID

_TOPIC_IDS_SINCE = 10


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """The handler over the groups of a broker."""

    def handle(request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
        version = context.api_version
        known, refused = _check_topics(groups.broker.metadata.image, request.topics, version)
        if not known:
            return OffsetCommitResponse(topics=refused)
        shard = groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            return _failed(known, refused, shard)

        def decide(pending: Pending[OffsetCommitResponse], effects: Effects) -> None:
            error = shard.groups.check_commit(request, version, effects)
            if error != ErrorCode.NONE:
                effects.answer(pending, _failed(known, refused, error))
                return
            rows = shard.groups.committed.commit(request, known, effects)
            response = OffsetCommitResponse(topics=_merged(rows, refused))
            effects.answer_when_committed(pending, response, lambda error: _failed(known, refused, error))

        return groups.decide(shard, decide)

    return HandlerSpec(key=ApiKey.OFFSET_COMMIT, handle=handle)


def _check_topics(
    image: MetadataImage, topics: Iterable[OffsetCommitRequestTopic], version: int
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """What of a request there is, with names and ids, and the refusals of the rest."""
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in topics:
        by_id = version >= _TOPIC_IDS_SINCE
        found = image.topic_by_id(topic.topic_id) if by_id else image.topics.get(topic.name)
        if found is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic_id = topic.topic_id if by_id else ZERO_TOPIC_ID
            refused.append(_rows(topic.name, topic_id, (row.partition_index for row in topic.partitions), error))
            continue
        count = len(found.partitions)
        there = [row for row in topic.partitions if 0 <= row.partition_index < count]
        if len(there) < len(topic.partitions):
            missing = [row.partition_index for row in topic.partitions if not 0 <= row.partition_index < count]
            refused.append(_rows(found.name, found.topic_id, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if there:
            known.append(OffsetCommitRequestTopic(name=found.name, topic_id=found.topic_id, partitions=there))
    return known, refused


def _rows(name: str, topic_id: bytes, partitions: Iterable[int], error: ErrorCode) -> OffsetCommitResponseTopic:
    rows = [OffsetCommitResponsePartition(partition_index=number, error_code=error) for number in partitions]
    return OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=rows)


def _failed(known: list[OffsetCommitRequestTopic], refused: list[OffsetCommitResponseTopic], error: ErrorCode) -> OffsetCommitResponse:
    rows = [_rows(topic.name, topic.topic_id, (row.partition_index for row in topic.partitions), error) for topic in known]
    return OffsetCommitResponse(topics=_merged(rows, refused))


def _merged(rows: list[OffsetCommitResponseTopic], refused: list[OffsetCommitResponseTopic]) -> list[OffsetCommitResponseTopic]:
    """One row for each topic, whether all of its partitions were taken or not."""
    if not refused:
        return rows
    merged: dict[tuple[str, bytes], OffsetCommitResponseTopic] = {}
    for row in (*refused, *rows):
        there = merged.setdefault((row.name, row.topic_id), row)
        if there is not row:
            there.partitions = [*there.partitions, *row.partitions]
    return list(merged.values())
