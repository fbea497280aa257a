"""DescribeRetention: v0-v0.

Behaviour: Lowtide's own, not advertised. Tells of partitions that are led here what keeps their oldest segment and when it will go, rule
by rule, as the next check would decide it now. Where consumed records may go before their time, all coordinators are asked what the
groups have consumed; one such question is out at a time, and a few requests may wait for it. A group that the client may not see is left
unnamed.

Errors: INVALID_REQUEST for too many partitions, THROTTLING_QUOTA_EXCEEDED when too many wait; of single partitions
TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.

KIPs: 47, 68.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from lowtide.broker.authorizer import Operation, allowed_topics, group
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.consumed import NOT_CONSUMED, Consumed
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.broker.retention.consumption import PARTITIONS_PER_REQUEST, Asked, Doubt, Outcome
from lowtide.broker.retention.log_retention import Retention, offsets_of
from lowtide.broker.slices import walk_in_slices
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import (
    UNKNOWN,
    DescribeRetentionRequest,
    DescribeRetentionResponse,
    RetainedPartition,
    RetainedTopic,
    RetentionRule,
)
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError
from lowtide.storage.log.retention_explain import Kept, Outlook, explain
from lowtide.storage.log.retention_plan import Reason

WAITING_MAX: Final = 16
"""Requests that may wait for what the groups have consumed."""


class DescribeRetentionHandler:
    """DescribeRetention over a broker's partitions."""

    def __init__(self, broker: BrokerContext, retention: Retention) -> None:
        self._broker = broker
        self._retention = retention
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def handle(self, request: DescribeRetentionRequest, context: RequestContext) -> DescribeRetentionResponse:
        """Answer for each partition that was named, once."""
        wanted = {topic.name: dict.fromkeys(topic.partitions) for topic in request.topics}
        if sum(map(len, wanted.values())) > PARTITIONS_PER_REQUEST:
            return DescribeRetentionResponse(error_code=ErrorCode.INVALID_REQUEST)
        if self._waiting >= WAITING_MAX:
            return DescribeRetentionResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        allowed = allowed_topics(self._broker.authorizer, context.principal, Operation.DESCRIBE, wanted)
        found = {TopicPartition(name, number): self._find(name, number, allowed) for name, numbers in wanted.items() for number in numbers}
        self._waiting += 1
        try:
            async with self._turn:
                consumed = await self._ask([each for each in found.values() if isinstance(each, Partition)])
        finally:
            self._waiting -= 1
        topics: dict[str, RetainedTopic] = {}
        await walk_in_slices(self._broker.turns, self._rows(found, consumed, topics, context.principal))
        next_check_ms = self._retention.next_check_ms
        return DescribeRetentionResponse(
            error_code=ErrorCode.NONE,
            checked_at_ms=self._broker.clock.wall_ms(),
            next_check_at_ms=UNKNOWN if next_check_ms is None else next_check_ms,
            topics=list(topics.values()),
        )

    def _find(self, topic: str, number: int, allowed: frozenset[str]) -> Partition | ErrorCode:
        if topic not in allowed:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = self._broker.replicas.find(topic, number)
        if isinstance(found, Partition) and not found.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return found

    async def _ask(self, partitions: list[Partition]) -> Outcome | Doubt:
        """What the groups have consumed of those partitions where that matters."""
        asked = [Asked(each.topic_partition, each.topic_id) for each in partitions if each.log.config.retention_commitoffset_ms >= 0]
        return await self._retention.consumption.ask(asked) if asked and self._retention.asks_groups else {}

    def _rows(
        self,
        found: dict[TopicPartition, Partition | ErrorCode],
        consumed: Outcome | Doubt,
        topics: dict[str, RetainedTopic],
        principal: str,
    ) -> Iterator[None]:
        for key, partition in found.items():
            rows = topics.setdefault(key.topic, RetainedTopic(name=key.topic, partitions=[])).partitions
            error = partition if isinstance(partition, ErrorCode) else ErrorCode.NONE
            if isinstance(partition, Partition) and self._broker.replicas.find(*key) is not partition:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if isinstance(partition, ErrorCode) or error != ErrorCode.NONE:
                rows.append(RetainedPartition(partition_index=key.partition, error_code=error))
            else:
                rows.append(self._row(partition, consumed, principal))
            yield

    def _row(self, partition: Partition, outcome: Outcome | Doubt, principal: str) -> RetainedPartition:
        log, number = partition.log, partition.topic_partition.partition
        consumed, doubt = NOT_CONSUMED, None
        if isinstance(outcome, Doubt):
            doubt = outcome.reason
        else:
            consumed = outcome.get(Asked(partition.topic_partition, partition.topic_id), NOT_CONSUMED)
        offsets = offsets_of(partition, consumed.offset if consumed.is_known else None)
        try:
            kept = explain(log.segments, offsets, log.config, self._retention.times, self._broker.clock.wall_ms())
        except StorageError as error:
            self._broker.replicas.on_read_failed(partition, error)
            return RetainedPartition(partition_index=number, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        if consumed.group_id is not None and not self._may_see(principal, consumed.group_id):
            consumed = consumed._replace(group_id=None)
        asks = self._retention.asks_groups
        rules = [_rule(row, consumed, doubt, kept.end_offset) for row in kept.outlooks if asks or row.reason is not Reason.CONSUMED]
        return _partition_row(partition, kept, rules)

    def _may_see(self, principal: str, group_id: str) -> bool:
        return self._broker.authorizer.authorize(principal, Operation.DESCRIBE, group(group_id))


def handler(broker: BrokerContext, retention: Retention) -> HandlerSpec:
    """The handler over a broker's partitions."""
    return HandlerSpec(key=ApiKey.DESCRIBE_RETENTION, handle_later=DescribeRetentionHandler(broker, retention).handle)


def _rule(outlook: Outlook, consumed: Consumed, doubt: str | None, end_offset: Offset) -> RetentionRule:
    rule = RetentionRule(
        reason=outlook.reason.value,
        goes_at_ms=UNKNOWN if outlook.goes_at_ms is None else outlook.goes_at_ms,
        bytes_missing=UNKNOWN if outlook.bytes_missing is None else outlook.bytes_missing,
    )
    if outlook.reason is Reason.CONSUMED and consumed.offset < end_offset:
        rule.consumed_offset, rule.group_id, rule.doubt = consumed.offset, consumed.group_id, doubt
    return rule


def _partition_row(partition: Partition, kept: Kept, rules: list[RetentionRule]) -> RetainedPartition:
    log = partition.log
    return RetainedPartition(
        partition_index=partition.topic_partition.partition,
        error_code=ErrorCode.NONE,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=log.log_end_offset,
        segment_count=len(log.segments),
        size_bytes=log.size_bytes,
        segment_start=kept.first_offset,
        segment_end=kept.end_offset,
        segment_bytes=kept.size_bytes,
        is_active=kept.is_active,
        hold="" if kept.hold is None else kept.hold.value,
        rules=rules,
    )
