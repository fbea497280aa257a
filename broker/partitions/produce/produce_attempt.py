"""One Produce request at work: what it has appended, what it must wait for, and what is left to be done more slowly.

Everything about a request is kept here and nowhere else, so however its work is spread over time, nothing of it can be
taken for a part of another one. `slow_produce` continues with the same attempt.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.network.endpoints import endpoints_for
from lowtide.broker.partitions.produce.delayed_produce import DelayedProduce, ProduceWait
from lowtide.broker.partitions.produce.produce_rows import failed, header_of, not_appended, refused_for_now, rejected
from lowtide.broker.partitions.produce.slow_batches import (
    LARGE_BYTES,
    NO_ROOM,
    KeptBytes,
    Rest,
    SlowBatch,
    is_compressed,
)
from lowtide.broker.partitions.produce.transaction_question import (
    AskedTransaction,
    Question,
    Verifier,
    needs_no_question,
    told_to_producer,
)
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
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
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId
from lowtide.replication.partition import Partition
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.log.producers.verifications import Verification
from lowtide.storage.log.validation.rejections import Rejection
from lowtide.storage.log.validation.validation_rules import QUICK_BYTES, ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

if TYPE_CHECKING:
    from lowtide.broker.partitions.batch_lane import BatchLane
    from lowtide.broker.pending import Pending
    from lowtide.broker.request_context import RequestContext
    from lowtide.runtime.clock import Clock

_ZSTD_SINCE = 7
CURRENT_LEADER_SINCE: Final = 10
_ABORTABLE_SINCE = 11
ADDS_SINCE: Final = 12
_ACKS_ALL = -1

QUICK_REQUEST_BYTES: Final = 4 << 20
"""What the batches of one request may decompress to in the loop; the worker checks those that follow."""

_EXPECTED_ERRORS: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""What Kafka doesn't count as a failed request: a client's own fault, or one that is counted elsewhere."""


def count_refused(
    replicas: ReplicaManager, partition: Partition, row: PartitionProduceResponse
) -> PartitionProduceResponse:
    """Count the row of a batch that was not written. Source: the errors that `ReplicaManager` of Kafka counts."""
    partition.traffic.failed_produce_requests += row.error_code not in _EXPECTED_ERRORS
    replicas.traffic.errors["Produce", row.error_code] += 1
    return row


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
        leaders: set[BrokerId] = set()
        for topic in response.responses:
            name = topic.name if topic.topic_id == ZERO_TOPIC_ID else image.topic_names.get(topic.topic_id, "")
            for row in topic.partition_responses:
                leader = (
                    self._replicas.leader_elsewhere(name, row.index)
                    if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                    else None
                )
                if leader is not None:
                    row.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
                    leaders.add(leader[0])
        if leaders:
            response.node_endpoints = [
                NodeEndpoint(
                    node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
                )
                for broker_id, endpoint in endpoints_for(image, listener_name).items()
                if broker_id in leaders
            ]


class ProduceParts(msgspec.Struct, frozen=True):
    """What all attempts of one broker share."""

    replicas: ReplicaManager
    clock: Clock
    verifier: Verifier
    leaders: CurrentLeaders
    lane: BatchLane
    decompressed_bytes_max: int
    kept: KeptBytes
    log: Any


def answer_later(
    parts: ProduceParts, response: ProduceResponse, waits: list[ProduceWait], timeout_ms: int, listener_name: str | None
) -> ProduceResponse | Pending[ProduceResponse]:
    """A promise of the answer for when nothing is waited for any more, or the answer if that is so now.

    `listener_name`: the listener of the client, for the address of a new leader; None for versions without one.
    """
    return delayed_produce(parts, response, waits, timeout_ms, listener_name).start()


def delayed_produce(
    parts: ProduceParts, response: ProduceResponse, waits: list[ProduceWait], timeout_ms: int, listener_name: str | None
) -> DelayedProduce:
    """As `answer_later`, not begun yet."""
    delayed = DelayedProduce(parts.replicas, parts.clock, response, waits, timeout_ms)
    delayed.on_misdirected = None if listener_name is None else partial(parts.leaders.tell, listener_name)
    return delayed


class ProduceAttempt(msgspec.Struct):
    """One request. `now_ms` is wall-clock time. Made for each: what is not always needed has a default."""

    parts: ProduceParts
    replicas: ReplicaManager
    request: ProduceRequest
    context: RequestContext
    acks: int
    version: int
    now_ms: int
    ends_ms: int = 0
    """When it has taken long, on the monotonic clock; 0 for a request that has a single batch."""
    quick_bytes: int = QUICK_REQUEST_BYTES
    """What its batches may still decompress to in the loop."""
    misdirected: bool = False
    """Whether a row was for another broker."""
    waits: list[ProduceWait] = []
    """What the answer must wait for."""
    slow: list[SlowBatch] = []
    """What the worker has to check."""
    rest: list[Rest] = []
    """What is to be done in slices."""

    def append_topic(self, topic: TopicProduceData) -> TopicProduceResponse:
        """Append the rows of one topic; those that are left when the request has taken long are in `rest`."""
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
        """Append one batch, which was `checked` before if that took long; `guard`: its transaction's coordinator was asked before."""
        partition = self.replicas.find(topic, index)
        if isinstance(partition, ErrorCode):
            return self.misdirect(topic, index, partition, records)
        partition.traffic.produce_requests += 1 if checked is None else 0  # Otherwise it was here before.
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
        appended = self.replicas.append(partition, batch, self.now_ms)
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
        """The answer, or a promise where something must be waited for; None with acks=0, where an error closes the connection."""
        if self.acks == 0:
            self._close_on_error(responses)
            return None
        response = ProduceResponse(responses=responses)
        listener_name, tells_leader = self.context.connection.listener_name, self.version >= CURRENT_LEADER_SINCE
        if not self.waits:
            if self.misdirected and tells_leader:
                self.parts.leaders.tell(listener_name, response)
            return response
        return answer_later(
            self.parts, response, self.waits, self.request.timeout_ms, listener_name if tells_leader else None
        )

    def _count(self, partition: Partition, row: PartitionProduceResponse) -> PartitionProduceResponse:
        return count_refused(self.replicas, partition, row)

    def give_back(self) -> None:
        """The request has failed inside: what is kept for its batches is free."""
        self.parts.kept.count -= sum(batch.release() for batch in self.slow)
        self.slow = []

    def misdirect(self, topic: str, index: int, error: ErrorCode, records: Any) -> PartitionProduceResponse:
        """The row of a partition that isn't led here."""
        self.misdirected = True
        self.replicas.traffic.errors["Produce", error] += 1
        return self.refuse_for_now(topic, index, error, records)

    def refuse_for_now(
        self, topic: str | TopicId, index: int, error: ErrorCode, records: Any, message: str | None = None
    ) -> PartitionProduceResponse:
        """As `refused_for_now`, of a partition that may not be here."""
        header = header_of(records)
        if header is not None:
            partition = self.replicas.partitions.get((topic, index)) if isinstance(topic, str) else None
            if partition is not None:
                partition.log.producer_state.note_refused(header, self.now_ms)
            else:
                self.replicas.early_refusals.note_header((topic, index), header, self.now_ms)
        return failed(index, error, message=message)

    def refuse_transaction(self, batch: SlowBatch, error: ErrorCode) -> PartitionProduceResponse:
        """The row of a batch whose transaction's coordinator answered with an error."""
        assert batch.question is not None
        adds = batch.question.transaction.adds
        return failed(
            batch.placeholder.index,
            told_to_producer(error, knows_abortable=self.version >= _ABORTABLE_SINCE, adds=adds),
        )

    def _close_on_error(self, responses: list[TopicProduceResponse]) -> None:
        for response in responses:
            for row in response.partition_responses:
                if row.error_code != ErrorCode.NONE:
                    self.context.close_connection(f"Produce with acks=0 failed with {ErrorCode(row.error_code).name}")

    def _put_off(self, batch: SlowBatch) -> PartitionProduceResponse:
        """Leave a batch to the worker; where that has enough to do it is refused, and its client sends it again."""
        kept = self.parts.kept
        if kept.count > kept.limit:
            index, error = batch.placeholder.index, ErrorCode.NOT_ENOUGH_REPLICAS
            return refused_for_now(index, error, batch.partition, batch.records, batch.now_ms, NO_ROOM)
        kept.count += batch.keep(self.slow)
        self.slow.append(batch)
        return batch.placeholder

    def _validate_one_of_many(self, records: Any, rules: ValidationRules) -> ValidatedBatch | Rejection | None:
        """Check a batch of a request that has several: None also where those before it have decompressed to much."""
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
        """None if a batch may be appended, as far as its transaction goes, or else what to answer for now."""
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
            error = told_to_producer(answer, knows_abortable=self.version >= _ABORTABLE_SINCE, adds=adds)
            return None if error == ErrorCode.NONE else failed(key.partition, error)
        rules = (partition.rules if self.version >= _ZSTD_SINCE else partition.rules_without_zstd).without_haste()
        placeholder = failed(key.partition, ErrorCode.NONE)
        return self._put_off(SlowBatch(key.topic, partition, records, rules, self.now_ms, placeholder, question, guard))
