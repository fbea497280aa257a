"""The quick path of Produce: one small batch for one partition.

Most requests of most producers are that. The compiled module reads the request, checks its batch, and writes the answer; what is decided
is decided here, in the order of `ProduceAttempt.append`, which is the definition. Whatever isn't usual is left to it before anything is
changed: a partition that isn't led here or online, acks=all with too few in sync, rules that want more than a look at size and times, a
flush that may be due, a wrong checksum.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from lowtide.broker.network.routes import QuickPath, RunPath
from lowtide.broker.partitions.delayed.produce import DelayedProduce, ProduceWait
from lowtide.broker.partitions.delayed.small_produce import DelayedSmallProduce
from lowtide.broker.partitions.produce.produce_attempt import CURRENT_LEADER_SINCE, ProduceParts, count_refused, delayed_produce
from lowtide.broker.partitions.produce.produce_rows import not_appended
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from lowtide.protocol.records import ATTRIBUTES_POSITION, MAGIC_POSITION
from lowtide.protocol.types import NO_TIMESTAMP, ZERO_TOPIC_ID
from lowtide.replication.partition import Partition
from lowtide.storage.log.log import AppendedBatch
from lowtide.storage.log.validator import ValidatedBatch

if TYPE_CHECKING:
    from lowtide.broker.pending import Pending
    from lowtide.broker.request_context import Client
    from lowtide.protocol.native import CompiledWalk
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
        version, correlation_id, acks, timeout_ms, topic, index, start, crc, earliest, fields = asked
        replicas, image, now_ms = self._replicas, self._replicas.image, self._wall_ms()
        if image is None:
            return None
        name = topic if isinstance(topic, str) else image.topic_names.get(topic, "")
        partition, stop = replicas.find(name, index), start + fields[0]
        if not isinstance(partition, Partition) or not partition.is_leader or fields[0] > partition.small_batch_bytes:
            return None
        rules, log = partition.rules, partition.log
        if (
            earliest < now_ms - rules.timestamp_before_max_ms
            or fields[3] > now_ms + rules.timestamp_after_max_ms
            or crc32c(buffer[start + ATTRIBUTES_POSITION : stop]) != crc
            or (acks != 1 and not partition.has_enough_in_sync)
        ):
            return None
        partition.traffic.produce_requests += 1
        batch = ValidatedBatch(*fields)
        batch.tail = (buffer[start + MAGIC_POSITION : stop],)
        appended = replicas.append(partition, batch, now_ms)
        if not isinstance(appended, AppendedBatch):
            row = not_appended(index, appended, partition, buffer[start:stop], now_ms)
            return _response(asked, count_refused(replicas, partition, row))
        start_offset = log.log_start_offset
        answer = self._write(version, correlation_id, topic, index, appended.base_offset, appended.log_append_time_ms, start_offset)
        if acks == 1 or log.high_watermark > appended.last_offset or answer is None:
            return answer
        plainly = partial(self._wait, asked, partition, partition.leader_epoch, appended, start_offset, client.listener_name)
        deadline_ms = self._monotonic_ms() + max(timeout_ms, 0)
        delayed = DelayedSmallProduce(replicas, partition, appended.last_offset + 1, answer, deadline_ms, plainly)
        return delayed.pending if replicas.waiting.commits.watch(delayed) else plainly().start()

    def handle_run(self, asked: Run, buffer: memoryview, _client: Client) -> tuple[bytes, int, int] | None:
        """Append the batches of a run with one write, and answer; None, without having changed anything, if one of them is unusual."""
        version, correlation_ids, acks, stop, topic, index, earliest, latest, largest, size, rows = asked
        replicas, image, now_ms = self._replicas, self._replicas.image, self._wall_ms()
        if image is None:
            return None
        name = topic if isinstance(topic, str) else image.topic_names.get(topic, "")
        partition = replicas.find(name, index)
        if not isinstance(partition, Partition) or not partition.is_leader or largest > partition.small_batch_bytes:
            return None
        rules = partition.rules
        if (
            earliest < now_ms - rules.timestamp_before_max_ms
            or latest > now_ms + rules.timestamp_after_max_ms
            or (acks != 1 and partition.leadership is not None)
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
        base_offsets = replicas.append_run(partition, batches, size, now_ms)
        if base_offsets is None:
            return None
        partition.traffic.produce_requests += len(batches)
        answers = self._write_run(version, correlation_ids, topic, index, base_offsets, NO_TIMESTAMP, partition.log.log_start_offset)
        assert answers is not None, asked
        return answers, stop, len(batches)

    def _wait(
        self,
        asked: Asked,
        partition: Partition,
        leader_epoch: LeaderEpoch,
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
        wait = ProduceWait(partition, leader_epoch, appended.last_offset + 1, row, flushes=False, commits=True)
        listener = listener_name if version >= CURRENT_LEADER_SINCE else None
        return delayed_produce(self._parts, _response(asked, row), [wait], timeout_ms, listener)


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
    return QuickPath(compiled.read_produce, small.handle, RunPath(compiled.read_run, small.handle_run))
