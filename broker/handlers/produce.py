"""Produce: v3-v13, advertised from v0.

Behaviour: validates the one batch of each partition, appends it and answers its base offset. With acks=0 nothing is answered; an
error then closes the connection. A batch that takes long to check (many records, much behind its compression) is checked by the worker,
and so is what is left of a request of many batches that takes long together; the connection waits meanwhile, and others are served. Of a
partition named twice the last batch counts. While this broker is the whole in-sync replica set acks=1 and acks=all are the same.

Version notes: v0-v2 are advertised because old librdkafka looks for them before it compresses (KAFKA-18659), and are refused. zstd
needs v7. v8 names records that were refused. v9 is flexible. v10 tells the current leader (KIP-951). v13 has topic ids (KIP-516).

Errors: those of the validator and of the producer state; UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER,
INVALID_REQUIRED_ACKS, KAFKA_STORAGE_ERROR; TRANSACTIONAL_ID_AUTHORIZATION_FAILED is not used yet: a transactional batch is
INVALID_TXN_STATE until transactions exist.

KIPs: 98, 467, 516, 951.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.delayed.produce import DelayedProduce, FlushWait
from lowtide.broker.delayed.queue import commit_deadline_ms
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE, ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from lowtide.protocol.records import TRANSACTIONAL_BIT
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, TopicId
from lowtide.replication.partition import Partition
from lowtide.storage.validator import Rejection, ValidatedBatch, ValidationRules, validate_produce

_ZSTD_SINCE = 7
_CURRENT_LEADER_SINCE = 10

SLOW_BYTES_MAX = 64 << 20
"""Copies of batches that wait for the worker."""

REQUEST_MS = 5
"""How long one request is worked on at a time: what follows then is left to the worker, whatever it is."""


class SlowBatch(msgspec.Struct):
    """A batch that the worker checks; `placeholder` stands in the answer until then."""

    topic: str
    partition: Partition
    records: bytes
    rules: ValidationRules
    version: int
    now_ms: int
    placeholder: PartitionProduceResponse

    def check(self) -> ValidatedBatch | Rejection | None:
        """In the worker: touches nothing but the bytes."""
        return validate_produce(self.records, self.rules, self.now_ms)


class ProduceHandler:
    """Produce over a broker's state. One for each broker; requests are handled one after the other."""

    def __init__(self, broker: BrokerContext) -> None:
        self._replicas = broker.replicas
        self._clock = broker.clock
        self._waits: list[FlushWait] = []
        """What the request at hand must wait for; empty between requests."""
        self._worker = broker.worker
        self._log = broker.log
        self._slow: list[SlowBatch] = []
        """What of the request at hand the worker has to check; empty between requests."""
        self._slow_bytes = 0
        """What the worker has, or is to get, of all requests."""
        self._ends_ms = 0
        """When the request at hand has taken long, on the monotonic clock; 0 for one that has a single batch."""

    def handle(self, request: ProduceRequest, context: RequestContext) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Append every batch of the request; answer, or promise to when a flush is due."""
        now_ms, topics = self._clock.wall_ms(), request.topic_data
        self._ends_ms = 0
        if len(topics) != 1 or len(topics[0].partition_data) != 1:
            topics = _once_each(topics)
            self._ends_ms = self._clock.monotonic_ms() + REQUEST_MS
        responses: list[TopicProduceResponse] = []
        try:
            for topic in topics:  # Loops here and below, for a comprehension costs a call.
                responses.append(self._append_topic(topic, request.acks, context.api_version, now_ms))  # noqa: PERF401
        except BaseException:
            self._forget_request()
            raise
        if self._slow:
            return self._handle_slowly(request, responses, context)
        if request.acks != 0:
            return self._answer(ProduceResponse(responses=responses), request.timeout_ms)
        self._answer_nothing(responses, context)
        return None

    def _forget_request(self) -> None:
        """It has failed inside: nothing of it may be taken for a part of the next one."""
        self._waits.clear()
        self._slow_bytes -= sum(len(batch.records) for batch in self._slow)
        self._slow.clear()

    def _answer_nothing(self, responses: list[TopicProduceResponse], context: RequestContext) -> None:
        self._waits.clear()
        for response in responses:
            for row in response.partition_responses:
                if row.error_code != ErrorCode.NONE:
                    context.close_connection(f"Produce with acks=0 failed with {ErrorCode(row.error_code).name}")

    def _answer(self, response: ProduceResponse, timeout_ms: int) -> ProduceResponse | Pending[ProduceResponse]:
        if not self._waits:
            return response
        waits, self._waits = self._waits, []
        deadline_ms = commit_deadline_ms(self._clock, timeout_ms)
        return DelayedProduce(self._replicas, response, waits, deadline_ms).start()

    def _handle_slowly(
        self, request: ProduceRequest, responses: list[TopicProduceResponse], context: RequestContext
    ) -> Pending[ProduceResponse]:
        """Have the worker check what takes long, then append that too, and answer."""
        slow, self._slow = self._slow, []
        waits, self._waits = self._waits, []
        pending: Pending[ProduceResponse] = Pending(holds_connection=True)
        rows: dict[int, PartitionProduceResponse] = {}

        def finish() -> None:
            for topic in responses:
                topic.partition_responses = [rows.get(id(row), row) for row in topic.partition_responses]
            self._waits = waits
            answer = NO_ANSWER
            if request.acks == 0:
                self._answer_nothing(responses, context)
            else:
                answer = self._answer(ProduceResponse(responses=responses), request.timeout_ms)
            if isinstance(answer, Pending):
                pending.on_abandoned = answer.abandon
                answer.listen(pending.complete)
            else:
                pending.complete(answer)

        def on_checked(batch: SlowBatch, outcome: Any) -> None:
            self._slow_bytes -= len(batch.records)
            if pending.done:
                return
            try:
                rows[id(batch.placeholder)] = self._append_slow(batch, outcome)
                waits.extend(self._waits)
                self._waits = []
                if len(rows) == len(slow):
                    finish()
            except Exception as error:  # noqa: BLE001  a bug of ours costs one connection, and is logged with its traceback
                self._waits = []
                self._log.error("request failed", request="Produce", exc_info=error)
                pending.fail()

        for batch in slow:
            self._worker.submit(batch.check, partial(on_checked, batch))
        return pending

    def _append_slow(self, batch: SlowBatch, outcome: ValidatedBatch | Rejection | BaseException | None) -> PartitionProduceResponse:
        """Append what the worker has checked, if that partition is still here; the client need not be."""
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None, "rules without haste always come to a result"
        index = batch.placeholder.index
        found = self._replicas.find(batch.topic, index)
        if found is not batch.partition:
            return _failed(index, found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._append(batch.topic, index, batch.records, batch.version, batch.now_ms, checked=outcome)

    def _put_off(self, batch: SlowBatch) -> PartitionProduceResponse:
        """Leave a batch to the worker; where that has enough to do the check holds the loop, for memory must not grow without end."""
        if self._slow_bytes > SLOW_BYTES_MAX:
            return self._append_slow(batch, batch.check())
        self._slow_bytes += len(batch.records)
        self._slow.append(batch)
        return batch.placeholder

    def _append_topic(self, topic: TopicProduceData, acks: int, version: int, now_ms: int) -> TopicProduceResponse:
        """The rows of one topic."""
        rows = topic.partition_data
        name: str | None = topic.name
        if version >= TOPIC_IDS_SINCE:
            image = self._replicas.image
            name = image.topic_names.get(topic.topic_id) if image is not None and topic.topic_id != ZERO_TOPIC_ID else None
        if not -1 <= acks <= 1:
            results = [_failed(row.index, ErrorCode.INVALID_REQUIRED_ACKS) for row in rows]
        elif name is None:
            results = [_failed(row.index, ErrorCode.UNKNOWN_TOPIC_ID) for row in rows]
        else:
            results = []
            for row in rows:
                results.append(self._append(name, row.index, row.records, version, now_ms))
        return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results)

    def _append(  # noqa: PLR0911 - one return per fault
        self, topic: str, index: int, records: Any, version: int, now_ms: int, checked: ValidatedBatch | Rejection | None = None
    ) -> PartitionProduceResponse:
        """Append one batch, which was `checked` before if that took long."""
        partition = self._replicas.find(topic, index)
        if isinstance(partition, ErrorCode):
            return _failed(index, partition)
        if not partition.is_leader:
            return _failed(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=partition if version >= _CURRENT_LEADER_SINCE else None)
        rules = partition.rules if version >= _ZSTD_SINCE else partition.rules_without_zstd
        batch = checked
        if batch is None and not (self._ends_ms and records and self._clock.monotonic_ms() >= self._ends_ms):
            batch = validate_produce(records, rules, now_ms)
        if batch is None:
            placeholder = _failed(index, ErrorCode.NONE)
            return self._put_off(SlowBatch(topic, partition, bytes(records), rules.without_haste(), version, now_ms, placeholder))
        if isinstance(batch, Rejection):
            return _rejected(index, partition, batch)
        if batch.attributes & TRANSACTIONAL_BIT:
            return _failed(index, ErrorCode.INVALID_TXN_STATE)
        appended = self._replicas.append(partition, batch, now_ms)
        log = partition.log
        if isinstance(appended, ErrorCode):
            found_in_log = appended != ErrorCode.KAFKA_STORAGE_ERROR
            return _failed(index, appended, log_start_offset=log.log_start_offset if found_in_log else UNKNOWN_OFFSET)
        response = PartitionProduceResponse(
            index=index,
            error_code=ErrorCode.NONE,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=log.log_start_offset,
        )
        if log.flush_is_due:
            self._replicas.flush(partition)
            self._waits.append(FlushWait(partition, appended.last_offset + 1, response))
        return response


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    return HandlerSpec(key=ApiKey.PRODUCE, handle=ProduceHandler(broker).handle, advertised_minimum=0)


def _once_each(topics: list[TopicProduceData]) -> list[TopicProduceData]:
    """Each topic once, and each of its partitions: of one that is named again the last batch counts, as in Kafka."""
    found: dict[tuple[str, TopicId], tuple[TopicProduceData, dict[int, PartitionProduceData]]] = {}
    for topic in topics:
        _, rows = found.setdefault((topic.name, topic.topic_id), (topic, {}))
        rows.update((row.index, row) for row in topic.partition_data)
    for topic, rows in found.values():
        topic.partition_data = list(rows.values())
    return [topic for topic, _ in found.values()]


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
        BatchIndexAndErrorMessage(batch_index=batch_index, batch_index_error_message=message)
        for batch_index, message in rejection.record_errors
    ]
    return response
