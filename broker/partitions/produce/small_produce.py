"""The quick path of Produce: one small batch for one partition.

Most requests of most producers are that. The compiled module reads the request, checks its batch, and writes the
answer; what is decided is decided here, in the order of `ProduceAttempt.append`, which is the definition. Whatever
isn't usual is left to it before anything is changed: a partition that isn't led here or online, acks=all with too few
in sync, rules that want more than a look at size and times, a flush that may be due, a wrong checksum, a transaction
that isn't known at once to have the partition.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from lowtide.broker.network.routes import GroupPath, QuickPath, RunPath
from lowtide.broker.partitions.delayed.produce import DelayedProduce, ProduceWait
from lowtide.broker.partitions.delayed.small_produce import DelayedSmallProduce
from lowtide.broker.partitions.produce.produce_attempt import (
    ADDS_SINCE,
    CURRENT_LEADER_SINCE,
    ProduceParts,
    count_refused,
    delayed_produce,
)
from lowtide.broker.partitions.produce.produce_rows import not_appended
from lowtide.broker.partitions.produce.transaction_question import AskedTransaction, Question, needs_no_question
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from lowtide.protocol.records import ATTRIBUTES_POSITION, MAGIC_POSITION
from lowtide.protocol.types import NO_TIMESTAMP, ZERO_TOPIC_ID
from lowtide.replication.partition import Partition
from lowtide.storage.log.log import AppendedBatch
from lowtide.storage.log.validation.validator import ValidatedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.pending import Pending
    from lowtide.broker.request_context import Client
    from lowtide.protocol.native import CompiledWalk
    from lowtide.protocol.native import ProduceGroup as Group
    from lowtide.protocol.native import ProduceRun as Run
    from lowtide.protocol.native import SmallProduce as Asked
    from lowtide.protocol.types import LeaderEpoch, Offset


class SmallProduce:
    """Small Produce requests over a broker's partitions. One for each broker; it keeps nothing of a request."""

    def __init__(self, parts: ProduceParts, compiled: CompiledWalk) -> None:
        self._parts = parts
        self._replicas = parts.replicas
        self._wall_ms = parts.clock.wall_ms
        self._monotonic_ms = parts.clock.monotonic_ms
        self._write = compiled.produce_answer
        self._write_run = compiled.run_answer

    def handle(self, asked: Asked, buffer: memoryview, client: Client) -> bytes | ProduceResponse | Pending[Any] | None:
        """Append the batch, and answer or promise to; None, without having changed anything, if the request isn't usual after all."""
        version, correlation_id, acks, timeout_ms, topic, index, start, crc, earliest, fields, transactional_id = asked
        replicas, image, now_ms = self._replicas, self._replicas.image, self._wall_ms()
        name = topic if isinstance(topic, str) else "" if image is None else image.topic_names.get(topic, "")
        partition, stop = replicas.find(name, index), start + fields[0]
        if not isinstance(partition, Partition) or not partition.is_leader or fields[0] > partition.small_batch_bytes:
            return None
        rules, log = partition.rules, partition.log
        if (
            earliest < now_ms - rules.timestamp_before_max_ms
            or fields[3] > now_ms + rules.timestamp_after_max_ms
            or crc32c(buffer[start + ATTRIBUTES_POSITION : stop]) != crc
            or (acks != 1 and not partition.has_enough_in_sync)
            or (transactional_id is not None and not self._may_join(transactional_id, partition, asked, now_ms))
        ):
            return None
        partition.traffic.produce_requests += 1
        batch = ValidatedBatch(*fields)
        batch.tail = (buffer[start + MAGIC_POSITION : stop],)
        committed = replicas.append_committed(partition, batch, now_ms)
        if committed is not None:
            return self._write(version, correlation_id, topic, index, committed, NO_TIMESTAMP, log.log_start_offset)
        appended = replicas.append(partition, batch, now_ms)
        if not isinstance(appended, AppendedBatch):
            row = not_appended(index, appended, partition, buffer[start:stop], now_ms)
            return _response(asked, count_refused(replicas, partition, row))
        start_offset = log.log_start_offset
        answer = self._write(
            version, correlation_id, topic, index, appended.base_offset, appended.log_append_time_ms, start_offset
        )
        if acks == 1 or log.high_watermark > appended.last_offset or answer is None:
            return answer
        plainly = partial(
            self._wait, asked, partition, partition.led_since, appended, start_offset, client.listener_name
        )
        return self._when_committed(partition, appended, answer, timeout_ms, plainly)

    def handle_run(self, asked: Run, buffer: memoryview, client: Client) -> tuple[bytes | list[Any], int, int] | None:
        """Append the batches of a run with one write, and answer or promise to; None, and nothing was changed, if one is unusual."""
        # The sequences of a run follow each other: that of the first decides.
        appended = self._append_together(asked, buffer, is_run=True)
        if appended is None:
            return None
        answers, base_offsets, partition = appended
        count = len(base_offsets)
        if asked[2] == 1 or partition.leadership is None:
            return answers, asked[3], count
        return self._promises(asked, partition, base_offsets, answers, [client] * count), asked[3], count

    def handle_group(self, asked: Group, buffer: memoryview, clients: list[Client]) -> list[Any] | None:
        """The same for requests of several connections: an answer for each, as of `handle`."""
        appended = self._append_together(asked, buffer, is_run=False)
        if appended is None:
            return None
        answers, base_offsets, partition = appended
        if asked[2] == 1 or partition.leadership is None:
            return _single(answers, len(clients))
        return self._promises(asked, partition, base_offsets, answers, clients)

    def _promises(
        self,
        asked: Run | Group,
        partition: Partition,
        base_offsets: tuple[Offset, ...],
        answers: bytes,
        clients: list[Client],
    ) -> list[Any]:
        """The answers to requests whose batches were appended together, when all replicas in sync have them."""
        promised: list[Any] = []
        version, _, acks, _, topic, index, *_, timeout_ms = asked
        led_since, log_start = partition.led_since, partition.log.log_start_offset
        for answer, offset, (start, crc, fields), client in zip(
            _single(answers, len(clients)), base_offsets, asked[10], clients, strict=True
        ):
            appended = AppendedBatch(offset, offset + fields[1], NO_TIMESTAMP)
            single: Asked = (version, 0, acks, timeout_ms, topic, index, start, crc, 0, fields, None)
            plainly = partial(self._wait, single, partition, led_since, appended, log_start, client.listener_name)
            promised.append(self._when_committed(partition, appended, answer, timeout_ms, plainly))
        return promised

    def _when_committed(
        self,
        partition: Partition,
        appended: AppendedBatch,
        answer: bytes,
        timeout_ms: int,
        plainly: Callable[[], DelayedProduce],
    ) -> ProduceResponse | Pending[Any]:
        replicas, deadline_ms = self._replicas, self._monotonic_ms() + max(timeout_ms, 0)
        delayed = DelayedSmallProduce(replicas, partition, appended.last_offset + 1, answer, deadline_ms, plainly)
        return delayed.pending if replicas.waiting.commits.watch(delayed) else plainly().start()

    def _append_together(
        self, asked: Run | Group, buffer: memoryview, *, is_run: bool
    ) -> tuple[bytes, tuple[Offset, ...], Partition] | None:
        """Append the batches of several requests.

        Returns the answers behind each other, the base offsets, and the partition.
        """
        version, correlation_ids, acks, _, topic, index, earliest, latest, largest, size, rows, _ = asked
        replicas, image, now_ms = self._replicas, self._replicas.image, self._wall_ms()
        name = topic if isinstance(topic, str) else "" if image is None else image.topic_names.get(topic, "")
        partition = replicas.find(name, index)
        if not isinstance(partition, Partition) or not partition.is_leader or largest > partition.small_batch_bytes:
            return None
        rules = partition.rules
        if (
            earliest < now_ms - rules.timestamp_before_max_ms
            or latest > now_ms + rules.timestamp_after_max_ms
            or (acks != 1 and not partition.has_enough_in_sync)
        ):
            return None
        batches = []
        for start, crc, fields in rows:
            end = start + fields[0]
            if crc32c(buffer[start + ATTRIBUTES_POSITION : end]) != crc:
                return None
            batch = ValidatedBatch(*fields)
            batch.tail = (buffer[start + MAGIC_POSITION : end],)
            batches.append(batch)
        base_offsets = replicas.append_together(partition, batches, size, batches[:1] if is_run else batches, now_ms)
        if base_offsets is None:
            return None
        partition.traffic.produce_requests += len(batches)
        answers = self._write_run(
            version, correlation_ids, topic, index, base_offsets, NO_TIMESTAMP, partition.log.log_start_offset
        )
        assert answers is not None, asked
        return answers, base_offsets, partition

    def _may_join(self, transactional_id: str, partition: Partition, asked: Asked, now_ms: int) -> bool:
        """Whether the batch may be appended as far as its transaction goes, as `ProduceAttempt` decides it.

        False where that takes longer, or it may not: the same is decided again then. The verification begins here, as
        there, for what the log has to say of a producer that it doesn't know.
        """
        state, verifier, adds = partition.log.producer_state, self._parts.verifier, asked[0] >= ADDS_SINCE
        producer_id, producer_epoch, base_sequence = asked[9][6:9]
        if needs_no_question(state, verifier, (producer_id, producer_epoch), adds=adds):
            return True
        if adds or state.is_fenced(producer_id, producer_epoch):
            return False
        question = Question(
            AskedTransaction(transactional_id, producer_id, producer_epoch, adds), partition.topic_partition
        )
        if verifier.answer_now(question) != ErrorCode.NONE:
            return False
        state.verifications.begin(producer_id, producer_epoch, base_sequence, adds_itself=adds, now_ms=now_ms)
        return True

    def _wait(
        self,
        asked: Asked,
        partition: Partition,
        led_since: LeaderEpoch,
        appended: AppendedBatch,
        log_start_offset: Offset,
        listener_name: str,
    ) -> DelayedProduce:
        """The same wait for all replicas in sync, of a request that isn't usual any more."""
        version, timeout_ms = asked[0], asked[3]
        row = PartitionProduceResponse(
            index=asked[5],
            error_code=ErrorCode.NONE,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time_ms,
            log_start_offset=log_start_offset,
        )
        wait = ProduceWait(partition, led_since, appended.last_offset + 1, row, flushes=False, commits=True)
        listener = listener_name if version >= CURRENT_LEADER_SINCE else None
        return delayed_produce(self._parts, _response(asked, row), [wait], timeout_ms, listener)


def _single(answers: bytes, count: int) -> list[bytes]:
    """So many answers of the same size, each by itself."""
    size = len(answers) // count
    return [answers[start : start + size] for start in range(0, len(answers), size)]


def _response(asked: Asked, row: PartitionProduceResponse) -> ProduceResponse:
    topic = asked[4]
    name, topic_id = (topic, ZERO_TOPIC_ID) if isinstance(topic, str) else ("", topic)
    return ProduceResponse(responses=[TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[row])])


def small_produce(parts: ProduceParts) -> QuickPath | None:
    """The quick path over a broker's partitions; None without the compiled module."""
    compiled = native.compiled
    if compiled is None:
        return None
    small = SmallProduce(parts, compiled)
    run, group = RunPath(compiled.read_run, small.handle_run), GroupPath(compiled.read_round, small.handle_group)
    return QuickPath(compiled.read_produce, small.handle, run, group)
