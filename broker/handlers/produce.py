"""Produce: v3-v13, advertised from v0.

Behaviour: validates the one batch of each partition, appends it and answers its base offset. With acks=0 nothing is answered; an
error then closes the connection. While this broker is the whole in-sync replica set acks=1 and acks=all are the same.

Version notes: v0-v2 are advertised because old librdkafka looks for them before it compresses (KAFKA-18659), and are refused. zstd
needs v7. v8 names records that were refused. v9 is flexible. v10 tells the current leader (KIP-951). v13 has topic ids (KIP-516).

Errors: those of the validator and of the producer state; UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER,
INVALID_REQUIRED_ACKS, KAFKA_STORAGE_ERROR; TRANSACTIONAL_ID_AUTHORIZATION_FAILED is not used yet: a transactional batch is
INVALID_TXN_STATE until transactions exist.

KIPs: 98, 467, 516, 951.
"""

from __future__ import annotations

from typing import Any

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.delayed.produce import DelayedProduce, FlushWait
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID
from lowtide.replication.partition import Partition
from lowtide.storage.validator import Rejection, validate_produce

LOCAL_COMMIT_GRACE_MS = 500
"""A flush of our own disk is not counted against the request's time-out, up to this: Kafka flushes before its time-out begins."""

_TOPIC_IDS_SINCE = 13
_ZSTD_SINCE = 7
_CURRENT_LEADER_SINCE = 10


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    replicas, clock = broker.replicas, broker.clock
    waits: list[FlushWait] = []
    """What the request at hand must wait for; empty between requests."""

    def append(partition: Partition, records: Any, version: int, now_ms: int) -> PartitionProduceResponse:
        index = partition.topic_partition.partition
        error = partition.check_leadership(-1)
        if error != ErrorCode.NONE:
            return _failed(index, error, leader=partition if version >= _CURRENT_LEADER_SINCE else None)
        rules = partition.rules if version >= _ZSTD_SINCE else partition.rules_without_zstd
        batch = validate_produce(records, rules, now_ms)
        if isinstance(batch, Rejection):
            return _rejected(index, partition, batch)
        if batch.is_transactional:
            return _failed(index, ErrorCode.INVALID_TXN_STATE)
        appended = replicas.append(partition, batch, now_ms)
        if isinstance(appended, ErrorCode):
            found_in_log = appended not in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return _failed(index, appended, log_start_offset=partition.log.log_start_offset if found_in_log else UNKNOWN_OFFSET)
        response = PartitionProduceResponse(
            index=index,
            error_code=ErrorCode.NONE,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=partition.log.log_start_offset,
        )
        if partition.log.unflushed_records >= partition.log.config.flush_messages:
            waits.append(FlushWait(partition, appended.last_offset + 1, response))
        return response

    def answer(name: str, index: int, records: Any, version: int, now_ms: int) -> PartitionProduceResponse:
        partition = replicas.find(name, index)
        if isinstance(partition, ErrorCode):
            return _failed(index, partition)
        return append(partition, records, version, now_ms)

    def handle(request: ProduceRequest, context: RequestContext) -> ProduceResponse | Pending[ProduceResponse] | None:
        version, acks = context.api_version, request.acks
        now_ms = clock.wall_ms()
        responses = []
        failed = ErrorCode.NONE
        for topic in request.topic_data:
            name: str | None = topic.name
            if version >= _TOPIC_IDS_SINCE:
                image = replicas.image
                name = image.topic_names.get(topic.topic_id) if image is not None and topic.topic_id != ZERO_TOPIC_ID else None
            rows = topic.partition_data
            if len(rows) > 1:
                rows = list({row.index: row for row in rows}.values())
            if not -1 <= acks <= 1:
                results = [_failed(row.index, ErrorCode.INVALID_REQUIRED_ACKS) for row in rows]
            elif name is None:
                results = [_failed(row.index, ErrorCode.UNKNOWN_TOPIC_ID) for row in rows]
            else:
                results = [answer(name, row.index, row.records, version, now_ms) for row in rows]
            for result in results:
                if result.error_code != ErrorCode.NONE:
                    failed = ErrorCode(result.error_code)
            responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results))
        if acks != 0:
            response = ProduceResponse(responses=responses)
            if not waits:
                return response
            flushing, waits[:] = list(waits), []
            deadline_ms = clock.monotonic_ms() + max(request.timeout_ms, 0) + LOCAL_COMMIT_GRACE_MS
            return DelayedProduce(replicas, response, flushing, deadline_ms).start()
        waits.clear()
        if failed != ErrorCode.NONE:
            context.close_connection(f"Produce with acks=0 failed with {failed.name}")
        return None

    return HandlerSpec(key=ApiKey.PRODUCE, handle=handle, advertised_minimum=0)


def _failed(
    index: int, error: int, *, log_start_offset: int = UNKNOWN_OFFSET, message: str | None = None, leader: Partition | None = None
) -> PartitionProduceResponse:
    response = PartitionProduceResponse(
        index=index, error_code=error, base_offset=UNKNOWN_OFFSET, log_start_offset=log_start_offset, error_message=message
    )
    if leader is not None:
        response.current_leader = LeaderIdAndEpoch(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)
    return response


def _rejected(index: int, partition: Partition, rejection: Rejection) -> PartitionProduceResponse:
    log_start_offset = partition.log.log_start_offset if rejection.found_in_log else UNKNOWN_OFFSET
    response = _failed(index, rejection.error_code, log_start_offset=log_start_offset, message=rejection.error_message)
    response.record_errors = [
        BatchIndexAndErrorMessage(batch_index=batch_index, batch_index_error_message=message) for batch_index, message in rejection.record_errors
    ]
    return response
