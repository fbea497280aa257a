"""DeleteRecords: v0-v3.

Behaviour: raises the log start offset of each partition. Checked in this order: the partition exists, its topic isn't internal, this
broker leads it, its policy allows deletes, the offset is in range; -1 stands for the high watermark. An accepted delete is written
to the log-start journal; when that is durable it becomes visible, is checked again and is answered. At or below the log start it is a
success that changes nothing. Of a partition named twice the last row counts. A request of very many partitions is carried out in parts, one
after the other.

Version notes: v2 is flexible. v3 adds LeaderOnly and LeaderLogStartOffset (KIP-1343); it is in no Apache release yet and can be
switched off with a lower maximum version.

Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION, OFFSET_OUT_OF_RANGE,
KAFKA_STORAGE_ERROR; REQUEST_TIMED_OUT tells the low watermark as it is then.

KIPs: 107, 1343.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from lowtide.broker.authorizer import Operation, allowed_topics
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.connection import RequestContext
from lowtide.broker.network.dispatcher import HandlerSpec
from lowtide.broker.partitions.delayed.delete_records import DelayedDeleteRecords, DeleteRow
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending, answer_of, promised
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopicResult
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.replication.topic_names import INTERNAL_TOPICS

PARTITIONS_AT_ONCE: Final = 1_000
"""Some ten milliseconds of work, and then as much again when it is durable."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""

    def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        wanted = {TopicPartition(topic.name, row.partition_index): row.offset for topic in request.topics for row in topic.partitions}
        allowed = allowed_topics(broker.authorizer, context.principal, Operation.DELETE, {key.topic for key in wanted})
        begin = partial(begin_allowed, allowed)
        if len(wanted) <= PARTITIONS_AT_ONCE:
            return begin(list(wanted.items()), request.timeout_ms, leader_only=request.leader_only).start()
        work = partial(delete_in_parts, begin, list(wanted.items()), request.timeout_ms, leader_only=request.leader_only)
        return promised(work, broker.tasks.spawn, name=f"DELETE_RECORDS of {context.connection.peer}")

    def begin_allowed(
        allowed: frozenset[str], wanted: list[tuple[TopicPartition, Offset]], timeout_ms: int, *, leader_only: bool
    ) -> DelayedDeleteRecords:
        replicas = broker.replicas
        rows = [_accept(replicas, key, offset) if key.topic in allowed else _denied(key) for key, offset in wanted]
        to_commit = [
            (row.partition, row.offset) for row in rows if row.partition is not None and row.offset > row.partition.log.log_start_pending
        ]
        delayed = DelayedDeleteRecords(replicas, broker.clock, rows, leader_only=leader_only, timeout_ms=timeout_ms)
        if to_commit:
            replicas.delete_to(to_commit)
        return delayed

    async def delete_in_parts(
        begin: Callable[..., DelayedDeleteRecords], wanted: list[tuple[TopicPartition, Offset]], timeout_ms: int, *, leader_only: bool
    ) -> DeleteRecordsResponse | None:
        parts: list[DeleteRecordsResponse | Pending[DeleteRecordsResponse]] = []
        until_ms = broker.clock.monotonic_ms() + timeout_ms
        for start in range(0, len(wanted), PARTITIONS_AT_ONCE):
            left_ms = until_ms - broker.clock.monotonic_ms()
            delayed = begin(wanted[start : start + PARTITIONS_AT_ONCE], left_ms, leader_only=leader_only)
            part = delayed.start()
            parts.append(part)
            if isinstance(part, Pending) and not delayed.is_durable:
                await _durable_or_answered(delayed, part)
            await asyncio.sleep(0)
        topics: dict[str, DeleteRecordsTopicResult] = {}
        for part in parts:
            if isinstance(part, Pending):
                answer = await answer_of(part)
                if answer is None:
                    return None
                part = answer  # noqa: PLW2901
            for topic in part.topics:
                topics.setdefault(topic.name, DeleteRecordsTopicResult(name=topic.name, partitions=[])).partitions.extend(topic.partitions)
        return DeleteRecordsResponse(throttle_time_ms=0, topics=list(topics.values()))

    return HandlerSpec(key=ApiKey.DELETE_RECORDS, handle=handle)


async def _durable_or_answered(delayed: DelayedDeleteRecords, part: Pending[DeleteRecordsResponse]) -> None:
    """Wait for our own disk; what waits for followers goes on by itself, so that one that is slow holds up no other part."""
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_moved(_answer: object = None) -> None:
        if not moved.done():
            moved.set_result(None)

    delayed.on_durable = on_moved
    part.listen(on_moved)
    await moved


def _denied(key: TopicPartition) -> DeleteRow:
    return DeleteRow(key=key, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, done=True)


def _accept(replicas: ReplicaManager, key: TopicPartition, offset: Offset) -> DeleteRow:
    partition = replicas.find(*key)
    if isinstance(partition, ErrorCode):
        return DeleteRow(key=key, error_code=partition, done=True)
    if key.topic in INTERNAL_TOPICS:
        return DeleteRow(key=key, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, done=True)
    target = partition.check_delete(offset)
    if isinstance(target, ErrorCode):
        return DeleteRow(key=key, error_code=target, done=True)
    return DeleteRow(key=key, partition=partition, leader_epoch=partition.leader_epoch, offset=target)
