"""Loads a shard: reads its partition's log into its state.

The worker reads the log piece by piece; the event loop applies the records in slices.

Guards: a state is used only if it is complete up to the end that the log had when this broker became the leader. A
damaged or unknown record is skipped and logged.

Does not: decide when a partition is loaded, or use the state (`coordinator_runtime`).

Source: Kafka's `CoordinatorLoaderImpl`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.runtime.shard import Decode, S, Shard
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.turns import run_in_slices
from lowtide.protocol.control_records import ControlRecordType, read_control_record
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import BatchHeader, Record, iterate_records, sound_batches
from lowtide.protocol.types import Offset, ProducerId
from lowtide.runtime.clock import Clock
from lowtide.runtime.worker import Worker
from lowtide.storage.errors import StorageError
from lowtide.storage.log.segments.segment_file import FileSlice
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES

LOAD_BYTES_MAX: Final = 1 << 20
"""The most bytes of one read, whatever `offsets.load.buffer.size` is. A larger batch is read whole."""

MANY_RECORDS: Final = 10_000
"""A load of this many records is logged."""

NAMED_RECORDS_MAX: Final = 10
"""How many skipped records of a partition are logged one by one. The others are counted."""

RECORDS_A_STEP: Final = 32
"""Records applied between two looks at the clock: some tenths of a millisecond."""

AnyShard: TypeAlias = Shard[Any]


class _Load(NamedTuple):
    """A load under way, up to `end_offset` (exclusive).

    One of the two callbacks is called, unless the shard is unloaded first.
    """

    shard: AnyShard
    end_offset: Offset
    on_loaded: Callable[[AnyShard], None]
    on_failed: Callable[[AnyShard], None]


class ShardLoader:
    """Loads the shards of one topic."""

    def __init__(
        self,
        decode: Decode,
        *,
        replicas: ReplicaManager,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        worker: Worker,
        log: Any,
    ) -> None:
        self._decode = decode
        self._replicas = replicas
        self._clock = clock
        self._loop = loop
        self._worker = worker
        self._log = log

    def load(
        self, shard: Shard[S], *, on_loaded: Callable[[Shard[S]], None], on_failed: Callable[[Shard[S]], None]
    ) -> None:
        """Applies the whole log of a partition to its state, within this call if the log is empty.

        `on_failed` is also called if this broker no longer leads the partition, or leads it in another epoch. Neither
        is called for a shard that was unloaded meanwhile.
        """
        log = shard.partition.log
        self._read_on(_Load(shard, log.log_end_offset, on_loaded, on_failed), log.log_start_offset)

    def _read_on(self, load: _Load, offset: Offset) -> None:
        """Reads the next piece, from `offset`."""
        shard = load.shard
        if shard.unloaded:
            return
        if not shard.leads:
            load.on_failed(shard)
            return
        if offset >= load.end_offset:
            self._finish(load)
            return
        max_bytes = min(LOAD_BYTES_MAX, shard.state.settings.load_buffer_bytes)
        try:
            read = shard.partition.log.read(offset, max_bytes, end_offset=load.end_offset)
        except StorageError as error:
            self._replicas.on_read_failed(shard.partition, error)
            load.on_failed(shard)
            return
        if read.slice is None:
            self._finish(load)
            return
        self._worker.submit(partial(_read_slice, read.slice), partial(self._on_read, load, read.slice, offset))

    def _on_read(self, load: _Load, read: FileSlice, offset: Offset, content: bytes | BaseException) -> None:
        shard = load.shard
        if isinstance(content, BaseException) or not read.token.valid:
            if not shard.unloaded:
                self._log.error(
                    "a coordinator's log could not be read",
                    partition=str(shard.partition.topic_partition),
                    error=str(content),
                )
                load.on_failed(shard)
            return
        reached = [offset]

        def on_done() -> None:
            if shard.unloaded:
                return
            if reached[0] <= offset:
                self._log.error(
                    "a coordinator's log could not be read",
                    partition=str(shard.partition.topic_partition),
                    offset=offset,
                )
                load.on_failed(shard)
                return
            self._read_on(load, reached[0])

        run_in_slices(self._loop, self._clock, self._apply(load, content, reached), on_done)

    def _apply(self, load: _Load, content: bytes, reached: list[Offset]) -> Iterator[None]:
        """Applies the batches of `content` from `reached[0]` on, and moves `reached[0]` to their end."""
        shard, applied = load.shard, 0
        try:
            for position, header in sound_batches(content, reached[0], load.end_offset):
                if shard.unloaded:
                    return
                batch = memoryview(content)[position : position + header.size_bytes]
                if header.is_control:
                    _apply_marker(shard, header, batch)
                else:
                    producer_id = header.producer_id if header.is_transactional else None
                    for record in iterate_records(batch, max_bytes=MAXIMUM_DECOMPRESSED_BYTES):
                        if record.offset >= reached[0]:
                            self._apply_record(shard, record, producer_id)
                            applied += 1
                            if not applied % RECORDS_A_STEP:
                                yield
                reached[0] = max(reached[0], header.next_offset)
        except ProtocolError as error:
            self._log.error(
                "a coordinator's log is damaged", partition=str(shard.partition.topic_partition), error=str(error)
            )
        shard.records_loaded += applied

    def _apply_record(self, shard: AnyShard, record: Record, producer_id: ProducerId | None) -> None:
        try:
            change = self._decode(record.key, record.value)
            if change is not None:
                shard.state.apply(change if producer_id is None else InTransaction(producer_id, change), record.offset)
                return
            reason = "its type is unknown"
        except ProtocolError as error:
            reason = str(error)
        shard.records_left_aside += 1
        if shard.records_left_aside <= NAMED_RECORDS_MAX:
            self._log.warning(
                "record of a coordinator is left aside",
                partition=str(shard.partition.topic_partition),
                offset=record.offset,
                reason=reason,
            )

    def _finish(self, load: _Load) -> None:
        shard = load.shard
        partition = str(shard.partition.topic_partition)
        if shard.records_left_aside > NAMED_RECORDS_MAX:
            self._log.warning(
                "records of a coordinator were left aside", partition=partition, records=shard.records_left_aside
            )
        if shard.records_loaded >= MANY_RECORDS:
            self._log.info(
                "coordinator loaded", partition=partition, entries=shard.state.count, records=shard.records_loaded
            )
        load.on_loaded(shard)


def _apply_marker(shard: AnyShard, header: BatchHeader, batch: memoryview) -> None:
    marker = read_control_record(batch, max_bytes=MAXIMUM_DECOMPRESSED_BYTES)
    if marker is not None:
        is_commit = marker.type is ControlRecordType.COMMIT
        shard.state.apply(EndMarker(header.producer_id, is_commit), header.base_offset)


def _read_slice(read: FileSlice) -> bytes:
    return read.file.pread(read.size, read.position)
