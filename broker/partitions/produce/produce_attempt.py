"""The form that defines Produce: a handler, and the work on one request.

All state of a request is in its `ProduceAttempt`, however the work is spread over time. `slow_produce` continues the
same attempt if it takes long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from lowtide.broker.partitions.produce.delayed_produce import ProduceParts, ProduceWait, delayed_produce
from lowtide.broker.partitions.produce.produce_rows import (
    failed,
    has_transactional,
    header_of,
    not_appended,
    once_each,
    refused_for_now,
    refused_throughout,
    rejected,
)
from lowtide.broker.partitions.produce.slow_batches import (
    LARGE_BYTES,
    NO_ROOM,
    Rest,
    SlowBatch,
    is_compressed,
)
from lowtide.broker.partitions.produce.transaction_question import (
    AskedTransaction,
    Question,
    error_for_producer,
    needs_no_question,
)
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from lowtide.protocol.records import TRANSACTIONAL_BIT
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId
from lowtide.replication.partition import Partition
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.log.producers.verifications import Verification
from lowtide.storage.log.validation.rejections import Rejection
from lowtide.storage.log.validation.validation_rules import QUICK_BYTES, ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.pending import Pending
    from lowtide.broker.request_context import RequestContext

_ZSTD_SINCE = 7
CURRENT_LEADER_SINCE: Final = 10
_ABORTABLE_SINCE = 11
ADDS_SINCE: Final = 12
_ACKS_ALL = -1

REQUEST_MS: Final = 5
"""How long one request is worked on at a time; the rest continues in slices."""

QUICK_REQUEST_BYTES: Final = 4 << 20
"""The limit of decompressed bytes of one request in the event loop; the worker validates the following batches."""

_EXPECTED_ERRORS: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""Errors that Kafka does not count as failed requests: the client's fault, or counted elsewhere."""


class ProduceAttempt(msgspec.Struct):
    """The work on one request. `now_ms` is wall-clock time."""

    parts: ProduceParts
    replicas: ReplicaManager
    request: ProduceRequest
    context: RequestContext
    acks: int
    version: int
    now_ms: int
    ends_ms: int = 0
    """When the rest continues in slices, on the monotonic clock; 0 for a request with a single batch."""
    quick_bytes: int = QUICK_REQUEST_BYTES
    """The decompressed bytes that are left for the event loop."""
    misdirected: bool = False
    """Whether another broker leads one of the partitions."""
    waits: list[ProduceWait] = []
    """The appended batches that the response waits for."""
    slow: list[SlowBatch] = []
    """Batches for the worker to validate."""
    rest: list[Rest] = []
    """Rows that continue in slices."""

    def append_topic(self, topic: TopicProduceData) -> TopicProduceResponse:
        """Appends the rows of one topic. Rows that are left when the time is up go to `rest`."""
        rows = topic.partition_data
        name: str | None = topic.name
        if self.version >= TOPIC_IDS_SINCE:
            image = self.replicas.image
            name = (
                image.topic_names.get(topic.topic_id) if image is not None and topic.topic_id != ZERO_TOPIC_ID else None
            )
        if not -1 <= self.acks <= 1:
            results = [failed(row.index, ErrorCode.INVALID_REQUIRED_ACKS) for row in rows]
        elif name is None:
            results = [
                self.refuse_for_now(topic.topic_id, row.index, ErrorCode.UNKNOWN_TOPIC_ID, row.records) for row in rows
            ]
        else:
            results = []
            for position, row in enumerate(rows):
                if self.ends_ms and (self.rest or self.parts.clock.monotonic_ms() >= self.ends_ms):
                    self.rest.append(Rest(name, rows[position:], results))
                    break
                results.append(self.append(name, row.index, row.records))
        return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results)

    def append(  # noqa: PLR0911 - one return per fault
        self,
        topic: str,
        index: int,
        records: Any,
        checked: ValidatedBatch | Rejection | None = None,
        guard: Verification | None = None,
    ) -> PartitionProduceResponse:
        """Appends one batch. `checked` is its validation by the worker, `guard` its verified transaction, or None."""
        partition = self.replicas.find(topic, index)
        if isinstance(partition, ErrorCode):
            return self.misdirect(topic, index, partition, records)
        partition.traffic.produce_requests += 1 if checked is None else 0  # Otherwise it was counted before.
        if not partition.is_leader:
            self.misdirected = True
            self.replicas.traffic.errors["Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER] += 1
            return refused_for_now(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, partition, records, self.now_ms)
        if partition.topic_partition.topic in INTERNAL_TOPICS:
            return self._count(partition, failed(index, ErrorCode.INVALID_TOPIC_EXCEPTION))
        if partition.leadership is not None and self.acks == _ACKS_ALL and not partition.has_enough_in_sync:
            return self._count(
                partition, refused_for_now(index, ErrorCode.NOT_ENOUGH_REPLICAS, partition, records, self.now_ms)
            )
        rules = partition.rules if self.version >= _ZSTD_SINCE else partition.rules_without_zstd
        batch = checked
        if batch is None and (records is None or not LARGE_BYTES < len(records) <= rules.max_message_bytes):
            batch = (
                self._validate_one_of_many(records, rules)
                if self.ends_ms
                else validate_produce(records, rules, self.now_ms)
            )
        if batch is None:
            return self._put_off(
                SlowBatch(topic, partition, records, rules.without_haste(), self.now_ms, failed(index, ErrorCode.NONE))
            )
        if isinstance(batch, Rejection):
            return self._count(partition, rejected(index, partition, batch))
        if batch.attributes & TRANSACTIONAL_BIT and (batch.producer_id >= 0 or self.request.transactional_id is None):
            unfit = self._verify_transaction(partition, batch, records, guard)
            if unfit is not None:
                return unfit if self.slow and self.slow[-1].placeholder is unfit else self._count(partition, unfit)
        appended = self.replicas.append(partition, batch, self.now_ms, is_awaited=self.acks == _ACKS_ALL)
        if isinstance(appended, ErrorCode):
            return self._count(partition, not_appended(index, appended, partition, records, self.now_ms))
        log = partition.log
        response = PartitionProduceResponse(
            index=index,
            error_code=ErrorCode.NONE,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=log.log_start_offset,
        )
        end_offset = appended.last_offset + 1
        flush_is_due, commits = log.flush_is_due, self.acks == _ACKS_ALL and log.high_watermark < end_offset
        if flush_is_due:
            self.replicas.flush(partition)
        if flush_is_due or commits:
            self.waits.append(ProduceWait(partition, partition.led_since, end_offset, response, flush_is_due, commits))
        return response

    def answer(self, responses: list[TopicProduceResponse]) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Returns the response, or a promise of it; None with acks=0, after which an error closes the connection."""
        if self.acks == 0:
            self._close_on_error(responses)
            return None
        response = ProduceResponse(responses=responses)
        listener_name, tells_leader = self.context.connection.listener_name, self.version >= CURRENT_LEADER_SINCE
        if not self.waits:
            if self.misdirected and tells_leader:
                self.parts.leaders.tell(listener_name, response)
            return response
        listener = listener_name if tells_leader else None
        return delayed_produce(self.parts, response, self.waits, self.request.timeout_ms, listener).start()

    def _count(self, partition: Partition, row: PartitionProduceResponse) -> PartitionProduceResponse:
        """Counts a row that was not written. Source: Kafka's `ReplicaManager`."""
        partition.traffic.failed_produce_requests += row.error_code not in _EXPECTED_ERRORS
        self.replicas.traffic.errors["Produce", row.error_code] += 1
        return row

    def give_back(self) -> None:
        """Frees the memory of kept batches after a bug."""
        self.parts.kept.count -= sum(batch.release() for batch in self.slow)
        self.slow = []

    def misdirect(self, topic: str, index: int, error: ErrorCode, records: Any) -> PartitionProduceResponse:
        """Returns the row of a partition that this broker does not lead."""
        self.misdirected = True
        self.replicas.traffic.errors["Produce", error] += 1
        return self.refuse_for_now(topic, index, error, records)

    def refuse_for_now(
        self, topic: str | TopicId, index: int, error: ErrorCode, records: Any, message: str | None = None
    ) -> PartitionProduceResponse:
        """Like `refused_for_now`, for a partition that this broker may not have."""
        header = header_of(records)
        if header is not None:
            partition = self.replicas.partitions.get((topic, index)) if isinstance(topic, str) else None
            if partition is not None:
                partition.log.producer_state.note_refused(header, self.now_ms)
            else:
                self.replicas.early_refusals.note_header((topic, index), header, self.now_ms)
        return failed(index, error, message=message)

    def refuse_transaction(self, batch: SlowBatch, error: ErrorCode) -> PartitionProduceResponse:
        """Returns the row of a batch whose transaction coordinator answered an error."""
        assert batch.question is not None
        adds = batch.question.transaction.adds
        return failed(
            batch.placeholder.index,
            error_for_producer(error, knows_abortable=self.version >= _ABORTABLE_SINCE, adds=adds),
        )

    def _close_on_error(self, responses: list[TopicProduceResponse]) -> None:
        for response in responses:
            for row in response.partition_responses:
                if row.error_code != ErrorCode.NONE:
                    self.context.close_connection(f"Produce with acks=0 failed with {ErrorCode(row.error_code).name}")

    def _put_off(self, batch: SlowBatch) -> PartitionProduceResponse:
        """Leaves a batch to the worker. Refuses it if too many wait; the client then sends it again."""
        kept = self.parts.kept
        if kept.count > kept.limit:
            index, error = batch.placeholder.index, ErrorCode.NOT_ENOUGH_REPLICAS
            return refused_for_now(index, error, batch.partition, batch.records, batch.now_ms, NO_ROOM)
        kept.count += batch.keep(self.slow)
        self.slow.append(batch)
        return batch.placeholder

    def _validate_one_of_many(self, records: Any, rules: ValidationRules) -> ValidatedBatch | Rejection | None:
        """Validates one of several batches. Returns None if the worker must, because earlier ones were large."""
        if not is_compressed(records):
            return validate_produce(records, rules, self.now_ms)
        if self.quick_bytes <= 0:
            return None
        batch = validate_produce(records, rules, self.now_ms)
        self.quick_bytes -= batch.decompressed_bytes if isinstance(batch, ValidatedBatch) else QUICK_BYTES
        return batch

    def _verify_transaction(
        self, partition: Partition, batch: ValidatedBatch, records: Any, guard: Verification | None
    ) -> PartitionProduceResponse | None:
        """Returns None if the transaction allows the append; otherwise the row to answer, or a placeholder of it."""
        key, state, verifier = partition.topic_partition, partition.log.producer_state, self.parts.verifier
        transactional_id = self.request.transactional_id
        if transactional_id is None:
            return failed(key.partition, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        adds = self.version >= ADDS_SINCE
        if needs_no_question(state, verifier, (batch.producer_id, batch.producer_epoch), adds=adds):
            return None
        if state.is_fenced(batch.producer_id, batch.producer_epoch):
            return failed(key.partition, ErrorCode.INVALID_PRODUCER_EPOCH)
        if guard is not None:
            # A marker that came while the coordinator was asked has taken it away: the transaction that it knew is
            # over.
            holds = state.verifications.find(batch.producer_id) is guard
            return None if holds else failed(key.partition, ErrorCode.INVALID_TXN_STATE)
        guard = state.verifications.begin(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, adds_itself=adds, now_ms=self.now_ms
        )
        question = Question(AskedTransaction(transactional_id, batch.producer_id, batch.producer_epoch, adds), key)
        answer = verifier.answer_now(question)
        if answer is not None:
            error = error_for_producer(answer, knows_abortable=self.version >= _ABORTABLE_SINCE, adds=adds)
            return None if error == ErrorCode.NONE else failed(key.partition, error)
        rules = (partition.rules if self.version >= _ZSTD_SINCE else partition.rules_without_zstd).without_haste()
        placeholder = failed(key.partition, ErrorCode.NONE)
        return self._put_off(SlowBatch(key.topic, partition, records, rules, self.now_ms, placeholder, question, guard))


Continue: TypeAlias = "Callable[[ProduceAttempt, list[TopicProduceResponse]], Pending[ProduceResponse]]"
"""Continues an attempt. Gets the rows so far, and returns the promise of the response."""


class ProduceHandler:
    """Handles Produce requests. One for each broker; keeps no state of a request."""

    def __init__(self, parts: ProduceParts, continue_slowly: Continue) -> None:
        """`continue_slowly` is called if a request takes long, or the worker or a coordinator must do a part."""
        self.parts = parts
        self._continue_slowly = continue_slowly

    def handle(
        self, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Appends every batch of the request. Returns the response, a promise of it, or None with acks=0."""
        topics, parts = request.topic_data, self.parts
        now_ms = parts.clock.wall_ns() // 1_000_000
        attempt = ProduceAttempt(parts, parts.replicas, request, context, request.acks, context.api_version, now_ms)
        if len(topics) != 1 or len(topics[0].partition_data) != 1:
            topics = once_each(topics)
            if request.transactional_id is None and has_transactional(topics):
                return attempt.answer(refused_throughout(topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            attempt.ends_ms = parts.clock.monotonic_ms() + REQUEST_MS
        responses: list[TopicProduceResponse] = []
        try:
            for topic in topics:  # A loop, for a comprehension costs a call.
                responses.append(attempt.append_topic(topic))  # noqa: PERF401
        except BaseException:
            attempt.give_back()
            raise
        if attempt.rest or attempt.slow:
            return self._continue_slowly(attempt, responses)
        return attempt.answer(responses)
