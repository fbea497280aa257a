"""Explains what keeps the oldest segments of partitions, and when the next retention passes delete them.

If consumed records can be deleted early, all coordinators are asked: one such round at a time, with a bounded number of
waiting requests. Groups that the client must not see are omitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import Operation, group
from lowtide.broker.client_waits import client_wait
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.consumed import NOT_CONSUMED, ConsumedEnd
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import Client, RequestContext
from lowtide.broker.retention.consumption import Doubt, Outcome, consumption_query
from lowtide.broker.retention.log_retention import Retention, offsets_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import UNKNOWN, RetainedPartition, RetentionRule
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.retention.retention_explain import KeptSegment, Outlook, explain
from lowtide.storage.log.retention.retention_plan import Reason
from lowtide.storage.log.segments.unfreed import UnfreedRoom

WAITING_MAX: Final = 16
WAITING_SHARE: Final = 8
"""The maximum number of waiting requests, in total and per client."""

PartitionOrError = Partition | ErrorCode
"""A partition that this broker leads, or an error."""


class Explanations:
    """Explains retention for the partitions of a broker."""

    def __init__(self, broker: BrokerContext, retention: Retention) -> None:
        self.retention = retention
        self._broker = broker
        self._turn = asyncio.Lock()
        self._places = WaitingPlaces(WAITING_MAX, WAITING_SHARE)

    @property
    def next_check_at_ms(self) -> int:
        """The wall-clock time of the next retention check; -1 during one."""
        next_check_ms = self.retention.next_check_ms
        return UNKNOWN if next_check_ms is None else next_check_ms

    def find(
        self, context: RequestContext, wanted: dict[str, dict[int, None]]
    ) -> dict[TopicPartition, PartitionOrError]:
        """Returns the requested partitions, by topic and number.

        Errors per partition: TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
        KAFKA_STORAGE_ERROR.
        """
        allowed = allowed_topics(self._broker.authorizer, context, Operation.DESCRIBE, wanted)
        return {
            TopicPartition(name, number): self._find(name, number, allowed)
            for name, numbers in wanted.items()
            for number in numbers
        }

    def _find(self, topic: str, number: int, allowed: frozenset[str]) -> PartitionOrError:
        if topic not in allowed:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = self._broker.replicas.find(topic, number)
        if isinstance(found, Partition) and not found.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return found

    def still(self, key: TopicPartition, found: PartitionOrError) -> PartitionOrError:
        """Returns `found` after a wait, or an error if the partition has left this broker."""
        is_here = isinstance(found, ErrorCode) or self._broker.replicas.find(*key) is found
        return found if is_here else ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def ask(
        self,
        client: Client,
        found: Iterable[PartitionOrError],
        proposed: Mapping[str, LogConfig] = MappingProxyType({}),
    ) -> Outcome | Doubt | ErrorCode:
        """Returns what groups have consumed, for partitions where it matters.

        It matters by the rules of their logs, or by the `proposed` rules of their topics.
        Errors: THROTTLING_QUOTA_EXCEEDED if too many requests wait, in total or of this client; REQUEST_TIMED_OUT if it
        disconnected.
        """
        partitions = [each for each in found if isinstance(each, Partition)]
        asked = [
            consumption_query(each, rules)
            for each in partitions
            for rules in (each.log.config, proposed.get(each.topic_partition.topic))
            if rules is not None and rules.retention_commitoffset_ms >= 0
        ]
        with self._places.taken_by(client) as has_place:
            if not has_place:
                return ErrorCode.THROTTLING_QUOTA_EXCEEDED
            try:
                async with client_wait(), self._turn:
                    return await self.retention.consumption.ask(asked) if asked and self.retention.asks_groups else {}
            except TimeoutError:
                return ErrorCode.REQUEST_TIMED_OUT

    def consumed(self, partition: Partition, outcome: Outcome | Doubt, context: RequestContext) -> ConsumedEnd:
        """Returns what groups have consumed of a partition, as far as the client may see it; nothing if in doubt."""
        consumed = (
            NOT_CONSUMED if isinstance(outcome, Doubt) else outcome.get(consumption_query(partition), NOT_CONSUMED)
        )
        if consumed.group_id is not None and not self._may_see(context, consumed.group_id):
            return consumed._replace(group_id=None)
        return consumed

    def row(self, partition: Partition, outcome: Outcome | Doubt, context: RequestContext) -> RetainedPartition:
        """Returns what keeps the oldest segment of a partition, or KAFKA_STORAGE_ERROR if it cannot be read."""
        log, consumed = partition.log, self.consumed(partition, outcome, context)
        offsets = offsets_of(partition, consumed.offset if consumed.is_known else None)
        try:
            kept = explain(log.segments, offsets, log.config, self.retention.times, self._broker.clock.wall_ms())
        except StorageError as error:
            self._broker.replicas.on_read_failed(partition, error)
            return refused(partition.topic_partition, ErrorCode.KAFKA_STORAGE_ERROR)
        asks, doubt = self.retention.asks_groups, outcome.reason if isinstance(outcome, Doubt) else None
        rules = [
            _rule(row, consumed, doubt, kept.end_offset)
            for row in kept.outlooks
            if asks or row.reason is not Reason.CONSUMED
        ]
        directories, clock = self._broker.replicas.log_manager.directories, self._broker.clock
        found = _partition_row(partition, kept, rules, directories.unfreed(log.parent_directory, log))
        wait = directories.erasure_waits(log).wait_of(log, clock.monotonic_ms())
        if wait is not None:
            found.erasures_waiting, found.records_to_erase = wait.erasures, wait.records
            found.erasing_since_ms, found.erasing_waits_for = clock.wall_ms() - wait.waited_ms, wait.reason
        return found

    def _may_see(self, context: RequestContext, group_id: str) -> bool:
        return self._broker.authorizer.authorize(context, Operation.DESCRIBE, group(group_id))


def refused(key: TopicPartition, error: ErrorCode) -> RetainedPartition:
    """Returns the response row for an error."""
    return RetainedPartition(partition_index=key.partition, error_code=error)


def _rule(outlook: Outlook, consumed: ConsumedEnd, doubt: str | None, end_offset: Offset) -> RetentionRule:
    rule = RetentionRule(
        reason=outlook.reason.value,
        goes_at_ms=UNKNOWN if outlook.goes_at_ms is None else outlook.goes_at_ms,
        bytes_missing=UNKNOWN if outlook.bytes_missing is None else outlook.bytes_missing,
    )
    if outlook.reason is Reason.CONSUMED and (consumed.offset < end_offset or not consumed.is_known):
        rule.consumed_offset, rule.group_id, rule.doubt = consumed.offset, consumed.group_id, doubt
    return rule


def _partition_row(
    partition: Partition, kept: KeptSegment, rules: list[RetentionRule], unfreed: UnfreedRoom | None
) -> RetainedPartition:
    log = partition.log
    return RetainedPartition(
        partition_index=partition.topic_partition.partition,
        error_code=ErrorCode.NONE,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=log.log_end_offset,
        segment_count=len(log.segments),
        size_bytes=log.size_bytes,
        unfreed_bytes=0 if unfreed is None else unfreed.size_bytes,
        unfreed_waits_for="" if unfreed is None else unfreed.waits_for.value,
        segment_start=kept.first_offset,
        segment_end=kept.end_offset,
        segment_bytes=kept.size_bytes,
        is_active=kept.is_active,
        hold="" if kept.hold is None else kept.hold.value,
        rules=rules,
    )
