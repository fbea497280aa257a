"""Compaction of a log, decided batch by batch: the last record of each key stays, older ones are removed.

No files, no clock. First the dirty part of the log is read into an `OffsetMap`, which knows the last offset of each
key; then `compact_batch` rewrites all batches that the map covers. Guards:

- offsets never shift: a batch keeps its first and last offset, and each remaining record its own;
- a record goes only if the map has a later one of its key, it is an expired tombstone, or its transaction was aborted;
- records of aborted transactions aren't put into the map, because they must not replace committed ones;
- a producer's last batch stays, at least empty, so that a start knows its sequence; without one, its last marker;
- the last batch of each new segment stays, at least empty: it shows how far the offsets go;
- epoch, producer, sequence, timestamp type, codec and flags of a batch are kept; unchanged batches are copied.

A tombstone, a record without value, stays for `delete.retention.ms` after the first compaction that meets it. The batch
stores that time: if bit 6 of the attributes is set, its tombstones expire at the base timestamp (KIP-534). The marker
of a transaction without batches (`CleanedTransactions`) expires the same way. Records without a key are removed.

Source: Kafka's Cleaner and MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from lowtide.protocol.batch_building import VARINTS, assemble_batch
from lowtide.protocol.batch_rewriting import copied_records, empty_batch, records_of, with_records, without_records
from lowtide.protocol.compression import Buffer
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.record_keys import RecordKeys, after_timestamp, attributes_of, find_keys, timestamp_delta
from lowtide.protocol.records import (
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    check_crc,
    read_batch_header,
)
from lowtide.protocol.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from lowtide.storage.compaction.offset_map import OffsetMap, RetainedRecords
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES


class LastRecord(NamedTuple):
    """The last record of a producer that isn't expired."""

    last_offset: Offset
    """Of its newest batch with records; -1 if only markers of it are known."""
    producer_epoch: ProducerEpoch


class CompactionRules(NamedTuple):
    """The parameters of one compaction."""

    now_ms: int
    """Wall-clock time."""
    delete_retention_ms: int
    """`delete.retention.ms`"""
    last_records: Mapping[ProducerId, LastRecord]
    decompressed_bytes_max: int


def note_batch(
    offsets: OffsetMap,
    header: BatchHeader,
    batch: Buffer,
    first_dirty_offset: Offset,
    *,
    aborted: bool,
    decompressed_bytes_max: int,
) -> bool:
    """Reads a batch of the dirty part into the map. Returns False when the map is full.

    The dirty part then ends with the last record in the map. `aborted`: the batch's transaction was aborted. Errors:
    ProtocolError.
    """
    if not header.is_control and not aborted and header.record_count:
        records = records_of(header, batch, decompressed_bytes_max)
        if not offsets.note_records(records, header.record_count, header.base_offset, first_dirty_offset):
            return False
    if header.last_offset >= first_dirty_offset:
        offsets.latest_offset = header.last_offset
    return True


def compact_batch(
    offsets: OffsetMap,
    header: BatchHeader,
    batch: Buffer,
    rules: CompactionRules,
    *,
    discarded: bool,
    is_last: bool = False,
) -> Buffer | None:
    """Returns a batch after compaction: itself, one with fewer records, an empty one, or None. Errors: ProtocolError.

    `discarded`: the batch's transaction was aborted, or it is a superfluous marker. `is_last`: it stays in any case, as
    the last batch of the result.
    """
    stays = is_last or _is_last_of_producer(header, rules)
    if header.is_control:
        return _compact_marker(header, batch, rules, unneeded=discarded, stays=stays)
    if discarded or not header.record_count:
        return empty_batch(header) if stays else None
    horizon_ms = _horizon_ms(header)
    drops_tombstones = horizon_ms is not None and rules.now_ms >= horizon_ms
    new_horizon_ms = rules.now_ms + rules.delete_retention_ms if horizon_ms is None else None
    records = records_of(header, batch, rules.decompressed_bytes_max)
    retained = offsets.retain(
        records,
        header.record_count,
        header.base_offset,
        drops_tombstones=drops_tombstones,
        timestamp_shift=None if new_horizon_ms is None else header.base_timestamp - new_horizon_ms,
    ) or _retained(offsets, header, bytes(records), drops_tombstones=drops_tombstones, new_horizon_ms=new_horizon_ms)
    if not retained.record_count:
        return empty_batch(header) if stays else None
    if retained.records is None:
        return batch
    return with_records(
        header,
        retained.records,
        retained.record_count,
        retained.max_timestamp_delta,
        new_horizon_ms if retained.has_tombstones else None,
    )


def _retained(
    offsets: OffsetMap, header: BatchHeader, records: bytes, *, drops_tombstones: bool, new_horizon_ms: int | None
) -> RetainedRecords:
    """Does the work of `OffsetMap.retain` in Python."""
    found = find_keys(records, 0, len(records), header.record_count)
    kept = _kept(offsets, header, found, drops_tombstones=drops_tombstones)
    if not kept:
        return RetainedRecords(0, has_tombstones=False, max_timestamp_delta=0, records=b"")
    has_tombstones = bool(found.tombstones) and not set(found.tombstones).isdisjoint(kept)
    starts = [0, *found.ends]
    newest = max(timestamp_delta(records, starts[number]) for number in kept)
    if has_tombstones and new_horizon_ms is not None:
        return RetainedRecords(
            len(kept), has_tombstones, newest, _shifted(records, found, kept, header.base_timestamp - new_horizon_ms)
        )
    whole = len(kept) == header.record_count
    return RetainedRecords(len(kept), has_tombstones, newest, None if whole else copied_records(records, found, kept))


def _is_last_of_producer(header: BatchHeader, rules: CompactionRules) -> bool:
    last = rules.last_records.get(header.producer_id) if header.producer_id >= 0 else None
    if last is None:
        return False
    if last.last_offset >= 0:
        return header.last_offset == last.last_offset
    return header.is_control and header.producer_epoch == last.producer_epoch


def _horizon_ms(header: BatchHeader) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def _kept(offsets: OffsetMap, header: BatchHeader, found: RecordKeys, *, drops_tombstones: bool) -> list[int] | range:
    gone = set(offsets.superseded(found, header.base_offset)).difference(found.keyless)
    others = [*found.keyless, *(found.tombstones if drops_tombstones else ())]
    gone.update(number for number in others if header.base_offset + found.deltas[number] <= offsets.latest_offset)
    numbers = range(len(found.keys))
    return [number for number in numbers if number not in gone] if gone else numbers


def _compact_marker(
    header: BatchHeader, batch: Buffer, rules: CompactionRules, *, unneeded: bool, stays: bool
) -> Buffer | None:
    horizon_ms = _horizon_ms(header)
    if not header.record_count or (unneeded and horizon_ms is not None and horizon_ms <= rules.now_ms):
        return empty_batch(header) if stays else None
    if not unneeded or horizon_ms is not None:
        return batch
    records = bytes(records_of(header, batch, rules.decompressed_bytes_max))
    found = find_keys(records, 0, len(records), header.record_count)
    new_horizon_ms = rules.now_ms + rules.delete_retention_ms
    every = range(header.record_count)
    newest = max(timestamp_delta(records, start) for start in [0, *found.ends[:-1]])
    shifted = _shifted(records, found, every, header.base_timestamp - new_horizon_ms)
    return with_records(header, shifted, len(every), newest, new_horizon_ms)


def without_deleted_beginning(records: memoryview, log_start_offset: Offset) -> memoryview:
    """Returns batches of a leader; of a first one that straddles the log start, only the records from there on.

    An empty replica that has reported its deleted records as erased must not store them again. A first batch that is
    incomplete or damaged stays as it is: the log refuses it.
    """
    try:
        header = read_batch_header(records)
        if not header.base_offset < log_start_offset <= header.last_offset or not check_crc(records, 0, header):
            return records
        first = records[: header.size_bytes]
        deleted = OffsetRanges([(header.base_offset, log_start_offset - 1)])
        left = without_records(header, first, deleted, decompressed_bytes_max=MAXIMUM_DECOMPRESSED_BYTES)
    except ProtocolError:
        return records
    return records if left is first else memoryview(b"".join((left, records[header.size_bytes :])))


def place_of(header: BatchHeader) -> bytes:
    """Returns a batch that keeps only its offsets.

    It has no producer, because nothing else of its transaction may be left, not even a marker.
    """
    return assemble_batch(
        msgspec.structs.replace(
            header,
            attributes=header.attributes & TIMESTAMP_TYPE_BIT,
            base_timestamp=NO_TIMESTAMP,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        ),
        b"",
    )


def _shifted(records: bytes, found: RecordKeys, kept: list[int] | range, shift: int) -> bytes:
    starts = [0, *found.ends]
    out = bytearray()
    for number in kept:
        fields = bytearray([attributes_of(records, starts[number])])
        fields += VARINTS[timestamp_delta(records, starts[number]) + shift]
        fields += records[after_timestamp(records, starts[number]) : found.ends[number]]
        out += VARINTS[len(fields)]
        out += fields
    return bytes(out)
