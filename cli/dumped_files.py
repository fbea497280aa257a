"""The small files of a log and of a log directory, each as rows of (kind, values), with what is wrong with them.

Nothing is repaired or guessed: a file that can't be read whole is named as damaged, with the reason that a broker would
log.
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
from lowtide.storage.log_start.journal_format import JOURNAL_NAME, JournalDamageError, decode_journal


class Row(NamedTuple):
    """One thing in a file. `fault` says what is wrong with it."""

    kind: str
    values: dict[str, Any]
    fault: str | None = None


Dumper = Callable[[bytes, str], Iterator[Row]]

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


def base_offset_of(name: str) -> Offset:
    """The offset that a segment's files are named after. Errors: ValueError where it is no such name."""
    stem = name.partition(".")[0]
    if not stem.isascii() or not stem.isdigit():
        message = f"{name} is not named after an offset"
        raise ValueError(message)
    return int(stem)


def dumper_of(name: str) -> Dumper | None:
    """The reader for a file of this name; None for others, and for segments."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next(
        (dumper for suffix, dumper in _BY_SUFFIX.items() if name.removesuffix(".deleted").endswith(suffix)), None
    )


def _offset_index(content: bytes, name: str) -> Iterator[Row]:
    base, before = base_offset_of(name), (-1, -1)
    whole, zeros = _entries(content, OFFSET_ENTRY_BYTES)
    for number, entry in enumerate(_OFFSET_ENTRY.iter_unpack(content[: whole * OFFSET_ENTRY_BYTES])):
        relative, position = entry
        fault = (
            None
            if relative > before[0] and position > before[1]
            else f"entry {number} doesn't rise above the one before"
        )
        yield Row("offset-index", {"offset": base + relative, "position": position}, fault)
        before = entry
    yield from _tail(content, whole, zeros, OFFSET_ENTRY_BYTES)


def _time_index(content: bytes, name: str) -> Iterator[Row]:
    base, before = base_offset_of(name), (-1, -1)
    whole, zeros = _entries(content, TIME_ENTRY_BYTES)
    for number, entry in enumerate(_TIME_ENTRY.iter_unpack(content[: whole * TIME_ENTRY_BYTES])):
        timestamp, relative = entry
        fault = (
            None
            if timestamp > before[0] and relative >= before[1]
            else f"entry {number} doesn't rise above the one before"
        )
        yield Row("time-index", {"timestamp": timestamp, "offset": base + relative}, fault)
        before = entry
    yield from _tail(content, whole, zeros, TIME_ENTRY_BYTES)


def _entries(content: bytes, entry_bytes: int) -> tuple[int, int]:
    """How many entries a file has, and how many bytes of zeros stand behind them: Kafka makes these files larger beforehand."""
    used = -(-len(content.rstrip(b"\0")) // entry_bytes)
    whole = min(used, len(content) // entry_bytes)
    return whole, len(content) - used * entry_bytes


def _tail(content: bytes, whole: int, zeros: int, entry_bytes: int) -> Iterator[Row]:
    if zeros > 0:
        yield Row("unwritten", {"position": whole * entry_bytes, "bytes": zeros})
    if len(content) % entry_bytes and zeros <= 0:
        position = whole * entry_bytes
        yield Row(
            "damage",
            {"position": position},
            f"byte {position}: an entry is cut: {len(content) - position} of {entry_bytes} bytes",
        )


def _transaction_index(content: bytes, name: str) -> Iterator[Row]:
    entries = decode_aborted(content, base_offset_of(name))
    if entries is None:
        yield Row("damage", {"position": 0}, "it is no index of aborted transactions")
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
        yield Row(
            "meta-properties",
            {"cluster_id": found.cluster_id, "node_id": found.node_id, "directory_id": directory_id, **found.others},
        )


def _clean_shutdown(content: bytes, _name: str) -> Iterator[Row]:
    yield Row("clean-shutdown", {"broker_epoch": decode_clean_shutdown(content)})


def _journal(content: bytes, _name: str) -> Iterator[Row]:
    try:
        found = decode_journal(content)
    except JournalDamageError as error:
        yield Row("damage", {}, f"{error}; `lowtide repair-log-start --dry-run` says what can be kept")
        return
    values = {
        "capacity": found.header.capacity,
        "first_sequence": found.header.first_sequence,
        "next_sequence": found.next_sequence,
    }
    yield Row("journal", {**values, "end": found.end, "torn": found.torn})
    for (topic_id, partition), offset in sorted(found.entries.items()):
        yield Row("log-start", {"topic_id": topic_id_text(topic_id), "partition": partition, "offset": offset})


def _told(dumper: Dumper) -> Dumper:
    """The same, in which a file without its format is a row that says so."""

    def dump(content: bytes, name: str) -> Iterator[Row]:
        try:
            yield from dumper(content, name)
        except CheckpointError as error:
            yield Row("damage", {}, error.reason)
        except ValueError as error:
            yield Row("damage", {}, str(error))

    return dump


_BY_SUFFIX: Final = {
    INDEX_SUFFIX: _told(_offset_index),
    TIME_INDEX_SUFFIX: _told(_time_index),
    TRANSACTION_INDEX_SUFFIX: _told(_transaction_index),
    SNAPSHOT_SUFFIX: _told(_snapshot),
}
_BY_NAME: Final = {
    LEADER_EPOCH_CHECKPOINT: _told(_leader_epochs),
    PARTITION_METADATA: _told(_partition_metadata),
    META_PROPERTIES: _told(_meta_properties),
    CLEAN_SHUTDOWN_MARKER: _told(_clean_shutdown),
    JOURNAL_NAME: _told(_journal),
    **dict.fromkeys(
        (
            RECOVERY_POINT_CHECKPOINT,
            HIGH_WATERMARK_CHECKPOINT,
            LOG_BEGIN_CHECKPOINT,
            LOG_START_CHECKPOINT,
            CLEANER_CHECKPOINT,
        ),
        _told(_offsets),
    ),
}
