"""Reads the small files of a log and of a log directory into rows with their faults.

Nothing is repaired or guessed: an unreadable file is reported as damaged, with the reason that a broker would log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from lowtide.protocol.types import Offset, topic_id_text
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_BEGIN_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    CheckpointError,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
)
from lowtide.storage.directory.directory_cleanings import CLEANER_CHECKPOINT
from lowtide.storage.log.producers.producer_snapshot import CorruptSnapshotError, decode_snapshot
from lowtide.storage.log.producers.transaction_index import decode_aborted
from lowtide.storage.log.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from lowtide.storage.log.segments.segment_names import (
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from lowtide.storage.log_start.journal_image import JOURNAL_NAME
from lowtide.storage.log_start.journal_reading import JournalDamageError, decode_journal


class Row(NamedTuple):
    """An entry of a file, perhaps with a fault."""

    kind: str
    values: dict[str, Any]
    fault: str | None = None


Dumper = Callable[[bytes, str], Iterator[Row]]

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


def base_offset_of(name: str) -> Offset:
    """Returns the base offset in the name of a segment's file. Errors: ValueError for another name."""
    stem = name.partition(".")[0]
    if not stem.isascii() or not stem.isdigit():
        raise ValueError(f"{name} is not named after an offset")
    return int(stem)


def dumper_of(name: str) -> Dumper | None:
    """Returns the reader of a file; None for segments and unknown files."""
    stem = name.removesuffix(".deleted")
    dumper = _BY_NAME.get(name) or next((each for end, each in _BY_SUFFIX.items() if stem.endswith(end)), None)
    return None if dumper is None else _with_damage(dumper)


def _offset_index(content: bytes, name: str) -> Iterator[Row]:
    base, last = base_offset_of(name), (-1, -1)
    for number, (relative, position) in enumerate(_entries(content, _OFFSET_ENTRY)):
        values = {"offset": base + relative, "position": position}
        yield Row("offset-index", values, _order_fault(number, relative > last[0] and position > last[1]))
        last = (relative, position)
    yield from _tail(content, OFFSET_ENTRY_BYTES)


def _time_index(content: bytes, name: str) -> Iterator[Row]:
    base, last = base_offset_of(name), (-1, -1)
    for number, (timestamp, relative) in enumerate(_entries(content, _TIME_ENTRY)):
        values = {"timestamp": timestamp, "offset": base + relative}
        yield Row("time-index", values, _order_fault(number, timestamp > last[0] and relative >= last[1]))
        last = (timestamp, relative)
    yield from _tail(content, TIME_ENTRY_BYTES)


def _order_fault(number: int, rises: bool) -> str | None:  # noqa: FBT001 named by its callers
    return None if rises else f"entry {number} is not above the one before"


def _used(content: bytes, entry_bytes: int) -> tuple[int, int]:
    """Returns the number of entries and of zeros after them: Kafka preallocates these files."""
    used = -(-len(content.rstrip(b"\0")) // entry_bytes)
    return min(used, len(content) // entry_bytes), len(content) - used * entry_bytes


def _entries(content: bytes, layout: struct.Struct) -> Iterator[tuple[int, int]]:
    whole, _ = _used(content, layout.size)
    return layout.iter_unpack(content[: whole * layout.size])


def _tail(content: bytes, entry_bytes: int) -> Iterator[Row]:
    whole, zeros = _used(content, entry_bytes)
    if zeros > 0:
        yield Row("unwritten", {"position": whole * entry_bytes, "bytes": zeros})
    if len(content) % entry_bytes and zeros <= 0:
        position = whole * entry_bytes
        fault = f"byte {position}: an entry is cut: {len(content) - position} of {entry_bytes} bytes exist"
        yield Row("damage", {"position": position}, fault)


def _transaction_index(content: bytes, name: str) -> Iterator[Row]:
    entries = decode_aborted(content, base_offset_of(name))
    if entries is None:
        yield Row("damage", {"position": 0}, "it is not an index of aborted transactions")
        return
    for each in entries:
        values = {"producer_id": each.producer_id, "first_offset": each.first_offset, "last_offset": each.last_offset}
        yield Row("aborted-transaction", {**values, "last_stable_offset": each.last_stable_offset})


def _snapshot(content: bytes, _name: str) -> Iterator[Row]:
    try:
        producers = decode_snapshot(content, now_ms=0)
    except CorruptSnapshotError as error:
        yield Row("damage", {"position": 0}, str(error))
        return
    for producer_id, each in producers.items():
        last = each.batches[-1] if each.batches else None
        values = {
            "producer_id": producer_id,
            "producer_epoch": each.producer_epoch,
            "last_sequence": each.last_sequence,
            "last_offset": None if last is None else last.last_offset,
            "timestamp": each.last_timestamp,
            "coordinator_epoch": each.coordinator_epoch,
            "transaction_first_offset": None if each.transaction_first_offset < 0 else each.transaction_first_offset,
        }
        yield Row("producer", values)


def _leader_epochs(content: bytes, name: str) -> Iterator[Row]:
    for epoch, start_offset in decode_epochs(content, name):
        yield Row("leader-epoch", {"leader_epoch": epoch, "start_offset": start_offset})


def _offsets(content: bytes, name: str) -> Iterator[Row]:
    for partition, offset in decode_offsets(content, name).items():
        yield Row("offset", {"topic": partition.topic, "partition": partition.partition, "offset": offset})


def _partition_metadata(content: bytes, name: str) -> Iterator[Row]:
    yield Row("partition-metadata", {"topic_id": topic_id_text(decode_partition_metadata(content, name))})


def _meta_properties(content: bytes, name: str) -> Iterator[Row]:
    found = decode_meta_properties(content, name)
    if found is not None:
        directory_id = topic_id_text(found.directory_id)
        values = {"cluster_id": found.cluster_id, "node_id": found.node_id, "directory_id": directory_id}
        yield Row("meta-properties", {**values, **found.others})


def _clean_shutdown(content: bytes, _name: str) -> Iterator[Row]:
    yield Row("clean-shutdown", {"broker_epoch": decode_clean_shutdown(content)})


def _journal(content: bytes, _name: str) -> Iterator[Row]:
    try:
        found = decode_journal(content)
    except JournalDamageError as error:
        yield Row("damage", {}, f"{error}; `lowtide repair-log-start --dry-run` shows what can be kept")
        return
    values = {
        "capacity": found.header.capacity,
        "first_sequence": found.header.first_sequence,
        "next_sequence": found.next_sequence,
    }
    yield Row("journal", {**values, "end": found.end, "torn": found.torn})
    for (topic_id, partition), offset in sorted(found.entries.items()):
        yield Row("log-start", {"topic_id": topic_id_text(topic_id), "partition": partition, "offset": offset})


def _with_damage(dumper: Dumper) -> Dumper:
    """Returns a reader that yields a row for a file in another format."""

    def dump(content: bytes, name: str) -> Iterator[Row]:
        try:
            yield from dumper(content, name)
        except CheckpointError as error:
            yield Row("damage", {}, error.reason)
        except ValueError as error:
            yield Row("damage", {}, str(error))

    return dump


_BY_SUFFIX: Final[dict[str, Dumper]] = {
    INDEX_SUFFIX: _offset_index,
    TIME_INDEX_SUFFIX: _time_index,
    TRANSACTION_INDEX_SUFFIX: _transaction_index,
    SNAPSHOT_SUFFIX: _snapshot,
}
_BY_NAME: Final[dict[str, Dumper]] = {
    LEADER_EPOCH_CHECKPOINT: _leader_epochs,
    PARTITION_METADATA: _partition_metadata,
    META_PROPERTIES: _meta_properties,
    CLEAN_SHUTDOWN_MARKER: _clean_shutdown,
    JOURNAL_NAME: _journal,
    RECOVERY_POINT_CHECKPOINT: _offsets,
    HIGH_WATERMARK_CHECKPOINT: _offsets,
    LOG_BEGIN_CHECKPOINT: _offsets,
    LOG_START_CHECKPOINT: _offsets,
    CLEANER_CHECKPOINT: _offsets,
}
