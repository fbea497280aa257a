"""Produce: v3-v13, advertised from v0.

Behaviour: validates the one batch of each partition, appends it and answers its base offset. With acks=0 nothing is answered; an
error then closes the connection. A batch that takes long to check (large, many records, much behind its compression) is checked by the
worker, and what is left of a request of many batches that takes long together is appended in slices; the connection waits meanwhile, and
others are served. Of a partition named twice the last batch counts; a topic without partitions is not answered. acks=1 is answered when
the batch is in the log, acks=all when all in-sync replicas have it, both when it is flushed if that is due (`flush.messages`); the only
replica of a partition is all of them.

Version notes: v0-v2 are advertised because old librdkafka looks for them before it compresses (KAFKA-18659), and are refused. zstd
needs v7. v8 names records that were refused. v9 is flexible. v10 tells the current leader (KIP-951). v11 knows TRANSACTION_ABORTABLE. v12
adds partitions to a transaction by itself (KIP-890). v13 has topic ids (KIP-516).

Errors: those of the validator and of the producer state; UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER,
INVALID_REQUIRED_ACKS, KAFKA_STORAGE_ERROR; with acks=all NOT_ENOUGH_REPLICAS before the append, and after it
NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT, for records that may stay or not; INVALID_TOPIC_EXCEPTION for the topics of
coordinators. Of transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a whole request without a transactional id, those of
`told_to_producer`, and INVALID_TXN_STATE when a transaction ended meanwhile.

KIPs: 98, 467, 516, 890, 951.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.transaction_service import TransactionCoordinator
from lowtide.broker.coordinator.verification import AskedTransaction, Question, TransactionVerifier, told_to_producer
from lowtide.broker.delayed.produce import DelayedProduce, ProduceWait
from lowtide.broker.delayed.slow_batches import LARGE_BYTES, Rest, SlowBatch, is_compressed, keep
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.endpoints import endpoints_for
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.produce_rows import failed, has_transactional, once_each, rejected
from lowtide.broker.replica_manager import ReplicaManager
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE, ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from lowtide.protocol.records import TRANSACTIONAL_BIT
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, BrokerId
from lowtide.replication.partition import QUICK_BYTES, Partition
from lowtide.storage.validator import Rejection, ValidatedBatch, ValidationRules, validate_produce
from lowtide.storage.verifications import Verification

_ZSTD_SINCE = 7
_CURRENT_LEADER_SINCE = 10
_ABORTABLE_SINCE = 11
_ADDS_SINCE = 12
_ACKS_ALL = -1

_QUICK_BYTES = 64 << 10
"""A batch of a transaction that waited for its coordinator is checked in the loop if it isn't larger."""

_QUICK_REQUEST_BYTES = 4 << 20
"""What the batches of one request may decompress to in the loop; the worker checks those that follow."""

_NO_ROOM = "too many requests wait to be checked"

REQUEST_MS = 5
"""How long one request is worked on at a time; what is left then is done in slices."""


class CurrentLeaders:
    """Tells clients who leads what they sent to the wrong broker (KIP-951)."""

    __slots__ = ("_replicas",)

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def tell(self, listener_name: str, response: ProduceResponse) -> None:
        """Add the leaders of the rows that were refused for that reason, and where clients of that listener reach them."""
        image = self._replicas.image
        if image is None:
            return
        told: set[BrokerId] = set()
        for topic in response.responses:
            name = topic.name if topic.topic_id == ZERO_TOPIC_ID else image.topic_names.get(topic.topic_id, "")
            for row in topic.partition_responses:
                leader = self._replicas.leader_elsewhere(name, row.index) if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER else None
                if leader is not None:
                    row.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
                    told.add(leader[0])
        if told:
            response.node_endpoints = [
                NodeEndpoint(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack)
                for broker_id, endpoint in endpoints_for(image, listener_name).items()
                if broker_id in told
            ]


class ProduceHandler:
    """Produce over a broker's state. One for each broker; requests are handled one after the other."""

    def __init__(self, broker: BrokerContext, verifier: TransactionVerifier) -> None:
        self._replicas = broker.replicas
        self._verifier = verifier
        self._transactional_id: str | None = None
        """Of the request at hand."""
        self._clock = broker.clock
        self._waits: list[ProduceWait] = []
        """What the request at hand must wait for; empty between requests."""
        self._acks = 1
        """Those of the request at hand."""
        self._misdirected = False
        """Whether a row of the request at hand was for another broker."""
        self._leaders = CurrentLeaders(broker.replicas)
        self._log = broker.log
        self._slow: list[SlowBatch] = []
        """What of the request at hand the worker has to check; empty between requests."""
        self._slow_bytes = 0
        """What is kept of all requests that wait for the worker, or are worked on in slices."""
        self._slow_bytes_max = broker.config.queued_max_request_bytes
        """Beyond that what would be kept is refused: memory must not grow, and the loop not be held."""
        self._quick_bytes = 0
        """What the batches of the request at hand may still decompress to in the loop."""
        self._lane = broker.batch_lane
        self._decompressed_bytes_max = broker.config.request_decompressed_max_bytes
        self._rest: list[Rest] = []
        """What of the request at hand is to be done in slices; empty between requests."""
        self._ends_ms = 0
        """When the request at hand has taken long, on the monotonic clock; 0 for one that has a single batch."""

    def handle(self, request: ProduceRequest, context: RequestContext) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Append every batch of the request; answer, or promise to when a flush is due."""
        now_ms, topics = self._clock.wall_ms(), request.topic_data
        self._ends_ms, self._quick_bytes = 0, _QUICK_REQUEST_BYTES
        self._acks, self._misdirected, self._transactional_id = request.acks, False, request.transactional_id
        if len(topics) != 1 or len(topics[0].partition_data) != 1:
            topics = once_each(topics)
            if request.transactional_id is None and has_transactional(topics):
                return self._refuse(request, topics, context)
            self._ends_ms = self._clock.monotonic_ms() + REQUEST_MS
        responses: list[TopicProduceResponse] = []
        try:
            for topic in topics:  # Loops here and below, for a comprehension costs a call.
                responses.append(self._append_topic(topic, request.acks, context.api_version, now_ms))  # noqa: PERF401
        except BaseException:
            self._forget_request()
            raise
        if self._rest:
            return self._handle_in_slices(request, responses, context, now_ms)
        if self._slow:
            return self._handle_slowly(request, responses, context)
        if request.acks != 0:
            return self._answer(ProduceResponse(responses=responses), request.timeout_ms, context)
        self._answer_nothing(responses, context)
        return None

    def _refuse(self, request: ProduceRequest, topics: list[TopicProduceData], context: RequestContext) -> ProduceResponse | None:
        """Nothing is written of a request that has a transactional batch, and no transactional id. Source: `KafkaApis`."""
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        responses = [
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[failed(row.index, error) for row in topic.partition_data],
            )
            for topic in topics
        ]
        if request.acks != 0:
            return ProduceResponse(responses=responses)
        self._answer_nothing(responses, context)
        return None

    def _forget_request(self) -> None:
        """It has failed inside: nothing of it may be taken for a part of the next one."""
        self._waits, self._rest = [], []
        self._slow_bytes -= sum(batch.release() for batch in self._slow)
        self._slow = []

    def _handle_in_slices(
        self, request: ProduceRequest, responses: list[TopicProduceResponse], context: RequestContext, now_ms: int
    ) -> Pending[ProduceResponse]:
        """Append what is left, others between two slices, and answer. Its client need not be there any more: it was received whole."""
        rest, self._rest = self._rest, []
        slow, self._slow = self._slow, []
        waits, self._waits = self._waits, []
        misdirected, quick_bytes = self._misdirected, self._quick_bytes
        if self._slow_bytes > self._slow_bytes_max:
            for left in rest:
                left.results.extend(failed(row.index, ErrorCode.NOT_ENOUGH_REPLICAS, message=_NO_ROOM) for row in left.rows)
                left.rows = []
        kept_bytes = keep(rest)
        self._slow_bytes += kept_bytes
        pending: Pending[ProduceResponse] = Pending(holds_connection=True)

        def steps() -> Iterator[None]:
            nonlocal misdirected, kept_bytes, quick_bytes
            for left in rest:
                for row in left.rows:
                    self._acks, self._misdirected, self._transactional_id = request.acks, misdirected, request.transactional_id
                    self._quick_bytes = quick_bytes
                    left.results.append(self._append(left.topic, row.index, row.records, context.api_version, now_ms))
                    row.records = None
                    misdirected, quick_bytes = self._misdirected, self._quick_bytes
                    if self._waits or self._slow:
                        waits.extend(self._waits)
                        slow.extend(self._slow)
                        self._waits, self._slow = [], []
                    yield
            self._slow_bytes, kept_bytes = self._slow_bytes - kept_bytes, 0
            self._waits, self._slow, self._misdirected = waits, slow, misdirected
            if slow:
                answer: Any = self._handle_slowly(request, responses, context)
            elif request.acks != 0:
                answer = self._answer(ProduceResponse(responses=responses), request.timeout_ms, context)
            else:
                self._answer_nothing(responses, context)
                answer = NO_ANSWER
            yield
            _pass_on(answer, pending)

        def fail() -> None:
            self._slow_bytes -= kept_bytes
            self._slow = self._slow or slow
            self._forget_request()
            pending.fail()

        self._replicas.slices.run(steps(), lambda: True, fail)
        return pending

    def _answer_nothing(self, responses: list[TopicProduceResponse], context: RequestContext) -> None:
        self._waits.clear()
        for response in responses:
            for row in response.partition_responses:
                if row.error_code != ErrorCode.NONE:
                    context.close_connection(f"Produce with acks=0 failed with {ErrorCode(row.error_code).name}")

    def _answer(self, response: ProduceResponse, timeout_ms: int, context: RequestContext) -> ProduceResponse | Pending[ProduceResponse]:
        tells_leader = context.api_version >= _CURRENT_LEADER_SINCE
        if not self._waits:
            if self._misdirected and tells_leader:
                self._leaders.tell(context.connection.listener_name, response)
            return response
        waits, self._waits = self._waits, []
        delayed = DelayedProduce(self._replicas, self._clock, response, waits, timeout_ms)
        delayed.on_misdirected = partial(self._leaders.tell, context.connection.listener_name) if tells_leader else None
        return delayed.start()

    def _handle_slowly(
        self, request: ProduceRequest, responses: list[TopicProduceResponse], context: RequestContext
    ) -> Pending[ProduceResponse]:
        """Have the worker check what takes long, then append that too, and answer."""
        slow, self._slow = self._slow, []
        waits, self._waits = self._waits, []
        pending: Pending[ProduceResponse] = Pending(holds_connection=True)
        rows: dict[int, PartitionProduceResponse] = {}
        lane = self._lane.begin(self._decompressed_bytes_max)

        def finish() -> None:
            for topic in responses:
                topic.partition_responses = [rows.get(id(row), row) for row in topic.partition_responses]
            self._waits = waits
            answer = NO_ANSWER
            if request.acks == 0:
                self._answer_nothing(responses, context)
            else:
                answer = self._answer(ProduceResponse(responses=responses), request.timeout_ms, context)
            _pass_on(answer, pending)

        def on_checked(batch: SlowBatch, outcome: Any) -> None:
            self._slow_bytes -= batch.release()
            if pending.done:
                return
            try:
                row = self._append_slow(batch, outcome)
                if self._slow:  # Checked, and found to be of a transaction whose coordinator has to be asked.
                    asked = self._slow.pop()
                    asked.placeholder = batch.placeholder
                    assert asked.question is not None
                    self._verifier.ask(asked.question, asked.renew, partial(on_verified, asked))
                    return
                rows[id(batch.placeholder)] = row
                waits.extend(self._waits)
                self._waits = []
                if len(rows) == len(slow):
                    finish()
            except Exception as error:  # noqa: BLE001  a bug of ours costs one connection, and is logged with its traceback
                self._waits = []
                self._log.error("request failed", request="Produce", exc_info=error)
                pending.fail()

        def on_verified(batch: SlowBatch, error: ErrorCode) -> None:
            if error != ErrorCode.NONE:
                on_checked(batch, error)
            elif len(batch.records) <= _QUICK_BYTES:
                on_checked(batch, batch.check())
            else:
                lane.submit(batch.check, partial(on_checked, batch))

        for batch in slow:
            if batch.question is not None:
                self._verifier.ask(batch.question, batch.renew, partial(on_verified, batch))
            else:
                lane.submit(batch.check, partial(on_checked, batch))
        return pending

    def _append_slow(
        self, batch: SlowBatch, outcome: ValidatedBatch | Rejection | ErrorCode | BaseException | None
    ) -> PartitionProduceResponse:
        """Append what the worker has checked, if that partition is still here; the client need not be."""
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, ErrorCode):
            return self._refuse_transaction(batch, outcome)
        assert outcome is not None, "rules without haste always come to a result"
        index = batch.placeholder.index
        self._acks, self._transactional_id = batch.acks, batch.transactional_id
        found = self._replicas.find(batch.topic, index)
        if found is not batch.partition:
            return self._misdirect(index, found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._append(batch.topic, index, batch.records, batch.version, batch.now_ms, checked=outcome, guard=batch.guard)

    def _refuse_transaction(self, batch: SlowBatch, error: ErrorCode) -> PartitionProduceResponse:
        assert batch.question is not None
        adds = batch.question.transaction.adds
        return failed(batch.placeholder.index, told_to_producer(error, knows_abortable=batch.version >= _ABORTABLE_SINCE, adds=adds))

    def _put_off(self, batch: SlowBatch) -> PartitionProduceResponse:
        """Leave a batch to the worker; where that has enough to do it is refused, and its client sends it again."""
        if self._slow_bytes > self._slow_bytes_max:
            return failed(batch.placeholder.index, ErrorCode.NOT_ENOUGH_REPLICAS, message=_NO_ROOM)
        self._slow_bytes += batch.keep(self._slow)
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
            results = [failed(row.index, ErrorCode.INVALID_REQUIRED_ACKS) for row in rows]
        elif name is None:
            results = [failed(row.index, ErrorCode.UNKNOWN_TOPIC_ID) for row in rows]
        else:
            results = []
            for position, row in enumerate(rows):
                if self._ends_ms and (self._rest or self._clock.monotonic_ms() >= self._ends_ms):
                    self._rest.append(Rest(name, rows[position:], results))
                    break
                results.append(self._append(name, row.index, row.records, version, now_ms))
        return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results)

    def _append(  # noqa: PLR0911 - one return per fault
        self,
        topic: str,
        index: int,
        records: Any,
        version: int,
        now_ms: int,
        checked: ValidatedBatch | Rejection | None = None,
        guard: Verification | None = None,
    ) -> PartitionProduceResponse:
        """Append one batch, which was `checked` before if that took long; `guard`: its transaction's coordinator was asked before."""
        partition = self._replicas.find(topic, index)
        if isinstance(partition, ErrorCode):
            return self._misdirect(index, partition)
        if not partition.is_leader:
            return self._misdirect(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.is_internal:
            return failed(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if partition.leadership is not None and self._acks == _ACKS_ALL and not partition.has_enough_in_sync:
            return failed(index, ErrorCode.NOT_ENOUGH_REPLICAS)
        rules = partition.rules if version >= _ZSTD_SINCE else partition.rules_without_zstd
        batch = checked
        if batch is None and (records is None or not LARGE_BYTES < len(records) <= rules.max_message_bytes):
            batch = validate_produce(records, rules, now_ms) if not self._ends_ms else self._check_one_of_many(records, rules, now_ms)
        if batch is None:
            placeholder = failed(index, ErrorCode.NONE)
            return self._put_off(
                SlowBatch(
                    topic, partition, records, rules.without_haste(), version, now_ms, self._acks, self._transactional_id, placeholder
                )
            )
        if isinstance(batch, Rejection):
            return rejected(index, partition, batch)
        if batch.attributes & TRANSACTIONAL_BIT and (batch.producer_id >= 0 or self._transactional_id is None):
            unfit = self._check_transaction(partition, batch, records, version, now_ms, guard)
            if unfit is not None:
                return unfit
        appended = self._replicas.append(partition, batch, now_ms)
        log = partition.log
        if isinstance(appended, ErrorCode):
            found_in_log = appended != ErrorCode.KAFKA_STORAGE_ERROR
            return failed(index, appended, log_start_offset=log.log_start_offset if found_in_log else UNKNOWN_OFFSET)
        response = PartitionProduceResponse(
            index=index,
            error_code=ErrorCode.NONE,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=log.log_start_offset,
        )
        end_offset = appended.last_offset + 1
        flush_is_due, commits = log.flush_is_due, self._acks == _ACKS_ALL and log.high_watermark < end_offset
        if flush_is_due:
            self._replicas.flush(partition)
        if flush_is_due or commits:
            self._waits.append(ProduceWait(partition, partition.leader_epoch, end_offset, response, flush_is_due, commits))
        return response

    def _check_one_of_many(self, records: Any, rules: ValidationRules, now_ms: int) -> ValidatedBatch | Rejection | None:
        """Check a batch of a request that has several: None also where those before it have decompressed to much."""
        if not is_compressed(records):
            return validate_produce(records, rules, now_ms)
        if self._quick_bytes <= 0:
            return None
        batch = validate_produce(records, rules, now_ms)
        self._quick_bytes -= batch.decompressed_bytes if isinstance(batch, ValidatedBatch) else QUICK_BYTES
        return batch

    def _check_transaction(
        self, partition: Partition, batch: ValidatedBatch, records: Any, version: int, now_ms: int, guard: Verification | None
    ) -> PartitionProduceResponse | None:
        """None if a batch may be appended, as far as its transaction goes, or else what to answer for now."""
        key, state = partition.topic_partition, partition.log.producer_state
        if self._transactional_id is None:
            return failed(key.partition, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        adds = version >= _ADDS_SINCE
        if state.is_in_transaction(batch.producer_id, batch.producer_epoch) or not (adds or self._verifier.is_wanted):
            return None
        if state.is_fenced(batch.producer_id, batch.producer_epoch):
            return failed(key.partition, ErrorCode.INVALID_PRODUCER_EPOCH)
        if guard is not None:
            # A marker that came while the coordinator was asked has taken it away: the transaction that it knew is over.
            holds = state.verifications.find(batch.producer_id) is guard
            return None if holds else failed(key.partition, ErrorCode.INVALID_TXN_STATE)
        guard = state.verifications.begin(batch.producer_id, batch.producer_epoch, batch.base_sequence, adds_itself=adds, now_ms=now_ms)
        transaction = AskedTransaction(self._transactional_id, batch.producer_id, batch.producer_epoch, adds)
        question = Question(transaction, key)
        answer = self._verifier.answer_now(question)
        if answer is not None:
            error = told_to_producer(answer, knows_abortable=version >= _ABORTABLE_SINCE, adds=adds)
            return None if error == ErrorCode.NONE else failed(key.partition, error)
        waits = SlowBatch(
            key.topic,
            partition,
            records,
            (partition.rules if version >= _ZSTD_SINCE else partition.rules_without_zstd).without_haste(),
            version,
            now_ms,
            self._acks,
            self._transactional_id,
            failed(key.partition, ErrorCode.NONE),
            question,
            guard,
        )
        return self._put_off(waits)

    def _misdirect(self, index: int, error: ErrorCode) -> PartitionProduceResponse:
        """The partition isn't led here."""
        self._misdirected = True
        return failed(index, error)


def handler(broker: BrokerContext, transactions: TransactionCoordinator) -> HandlerSpec:
    """The handler over a broker's state."""
    verifier = TransactionVerifier(transactions, transactions.peers, transactions.loop)
    return HandlerSpec(key=ApiKey.PRODUCE, handle=ProduceHandler(broker, verifier).handle, advertised_minimum=0)


def _pass_on(answer: ProduceResponse | Pending[ProduceResponse], pending: Pending[ProduceResponse]) -> None:
    """Have `pending` answered with what another promise gives, or with an answer that is there."""
    if isinstance(answer, Pending):
        pending.on_abandoned = answer.abandon
        answer.listen(pending.complete)
    else:
        pending.complete(answer)
