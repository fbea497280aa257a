"""DescribeSegments: v0-v0.

Behaviour: Lowtide's own, not advertised. Returns, for partitions that are led here, their segments, the position of
each replica as far as the leader knows it, which rules keep the oldest segment (as DescribeRetention), and up to where
each retention rule alone would delete now. With a delete offset it returns the bytes that such a delete would free on
the leader. With proposed settings it returns what the next retention pass would delete with them. Segments are examined
one by one, in turn with other work; timestamps that are not in memory are read from the time index.

Errors: INVALID_REQUEST for too many partitions, segments or settings, THROTTLING_QUOTA_EXCEEDED if too many requests
wait; of single partitions TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
KAFKA_STORAGE_ERROR, INVALID_CONFIG for proposed settings.

KIPs: 47, 68.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.observation.segments import SEGMENTS_MAX, replica_rows, segment_rows
from lowtide.broker.request_context import RequestContext
from lowtide.broker.retention.consumption import Doubt, Outcome
from lowtide.broker.retention.explained import Explanations, refused
from lowtide.broker.retention.forecast import PROPOSED_MAX, forecast, proposed_rules
from lowtide.broker.retention.log_retention import offsets_of
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import UNKNOWN
from lowtide.protocol.messages.describe_segments import (
    DescribeSegmentsRequest,
    DescribeSegmentsResponse,
    FreedByDelete,
    RetentionBoundary,
    SegmentsOfPartition,
    SegmentsOfTopic,
)
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.retention.retention_explain import Boundary, boundaries
from lowtide.storage.log.retention.retention_plan import Reason

PARTITIONS_MAX: Final = 100
"""The most partitions of a request."""


class _SegmentsAnswer(msgspec.Struct):
    """The answer to one request: what groups have consumed, and how many more segments fit."""

    request: DescribeSegmentsRequest
    context: RequestContext
    consumed: Outcome | Doubt
    delete_offsets: dict[TopicPartition, Offset]
    proposed: dict[str, LogConfig]
    """The rules of topics with proposed settings."""
    room: int = SEGMENTS_MAX


class DescribeSegmentsHandler:
    """Answers DescribeSegments requests."""

    def __init__(self, broker: BrokerContext, explanations: Explanations) -> None:
        self._broker = broker
        self._explanations = explanations

    async def handle(self, request: DescribeSegmentsRequest, context: RequestContext) -> DescribeSegmentsResponse:
        """Answers for each partition once, even if it was named more often."""
        explanations = self._explanations
        wanted = {topic.name: dict.fromkeys(topic.partitions) for topic in request.topics}
        offsets = {
            TopicPartition(topic.name, number): offset
            for topic in request.topics
            for number, offset in zip(topic.partitions, topic.delete_offsets, strict=False)
        }
        is_uneven = any(len(topic.delete_offsets) not in {0, len(topic.partitions)} for topic in request.topics)
        is_too_large = sum(map(len, wanted.values())) > PARTITIONS_MAX or not 1 <= request.segments_max <= SEGMENTS_MAX
        is_too_large |= any(len(topic.proposed) > PROPOSED_MAX for topic in request.topics)
        if is_too_large or is_uneven:
            return DescribeSegmentsResponse(error_code=ErrorCode.INVALID_REQUEST)
        proposed = proposed_rules(self._broker, request.topics)
        rules = {topic: each for topic, each in proposed.items() if each is not None}
        is_invalid = proposed.keys() - rules.keys()
        found = {
            key: ErrorCode.INVALID_CONFIG if key.topic in is_invalid and isinstance(each, Partition) else each
            for key, each in explanations.find(context, wanted).items()
        }
        consumed = await explanations.ask(context.connection, found.values(), rules)
        if isinstance(consumed, ErrorCode):
            return DescribeSegmentsResponse(error_code=consumed)
        answering = _SegmentsAnswer(request, context, consumed, offsets, rules)
        topics: dict[str, SegmentsOfTopic] = {}
        for key, before in found.items():
            rows = topics.setdefault(key.topic, SegmentsOfTopic(name=key.topic, partitions=[])).partitions
            partition = explanations.still(key, before)
            if isinstance(partition, ErrorCode):
                rows.append(_refused(key, partition))
            else:
                await self._broker.turns.walk(self._row(partition, answering, rows))
        return DescribeSegmentsResponse(
            error_code=ErrorCode.NONE,
            checked_at_ms=self._broker.clock.wall_ms(),
            next_check_at_ms=explanations.next_check_at_ms,
            topics=list(topics.values()),
        )

    def _row(self, partition: Partition, answering: _SegmentsAnswer, rows: list[SegmentsOfPartition]) -> Iterator[None]:
        """Adds the row of one partition."""
        log, replicas, times = partition.log, self._broker.replicas, self._explanations.retention.times
        consumed = self._explanations.consumed(partition, answering.consumed, answering.context)
        offsets = offsets_of(partition, consumed.offset if consumed.is_known else None)
        asked, now_ms = answering.request, self._broker.clock.wall_ms()
        try:
            found = yield from boundaries(tuple(log.segments), offsets, log.config, times, now_ms)
            segments = yield from segment_rows(log, times, asked.first_offset, min(asked.segments_max, answering.room))
            rules = answering.proposed.get(partition.topic_partition.topic)
            foreseen = []
            if rules is not None:
                foreseen.append((yield from forecast(partition, rules, answering.consumed, times, now_ms)))
            freed = self._freed(log, answering.delete_offsets.get(partition.topic_partition, UNKNOWN))
        except StorageError as error:
            replicas.on_read_failed(partition, error)
            rows.append(_refused(partition.topic_partition, ErrorCode.KAFKA_STORAGE_ERROR))
            return
        answering.room -= len(segments)
        asks = self._explanations.retention.asks_groups
        retained = self._explanations.row(partition, answering.consumed, answering.context)
        rows.append(
            SegmentsOfPartition(
                partition_index=retained.partition_index,
                error_code=retained.error_code,
                leader_epoch=partition.leader_epoch,
                last_stable_offset=log.last_stable_offset,
                retained=retained,
                segments=segments,
                replicas=replica_rows(partition, replicas.image, self._broker.clock.monotonic_ms()),
                boundaries=[
                    _boundary(each, consumed.group_id) for each in found if asks or each.reason is not Reason.CONSUMED
                ],
                freed=freed,
                forecast=foreseen,
            )
        )

    def _freed(self, log: Log, delete_offset: Offset) -> list[FreedByDelete]:
        """Returns what a delete would free, in a list of one; an empty list without a delete. Errors: StorageError."""
        if delete_offset < 0:
            return []
        room = self._broker.replicas.log_manager.directories.planned(log, min(delete_offset, log.log_end_offset))
        return [
            FreedByDelete(
                file_count=room.file_count,
                file_bytes=room.file_bytes,
                delay_ms=room.delay_ms,
                hole_bytes=room.hole_bytes,
                kept_bytes=room.kept_bytes,
                waits_for=room.waits_for.value if room.waits_for else "",
            )
        ]


def handler(broker: BrokerContext, explanations: Explanations) -> HandlerSpec:
    """Returns the handler."""
    return HandlerSpec(
        key=ApiKey.DESCRIBE_SEGMENTS,
        guard=CHECKS_ITSELF,
        handle_later=DescribeSegmentsHandler(broker, explanations).handle,
    )


def _boundary(boundary: Boundary, group_id: str | None) -> RetentionBoundary:
    row = RetentionBoundary(reason=boundary.reason.value, offset=boundary.offset, limit=boundary.limit)
    if boundary.reason is Reason.CONSUMED:
        row.group_id = group_id
    return row


def _refused(key: TopicPartition, error: ErrorCode) -> SegmentsOfPartition:
    return SegmentsOfPartition(partition_index=key.partition, error_code=error, retained=refused(key, error))
