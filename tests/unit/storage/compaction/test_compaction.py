"""Compaction: single rules, and histories against a model of the last record of each key."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.record_keys import find_keys
from lowtide.protocol.records import (
    DELETE_HORIZON_BIT,
    BatchHeader,
    Record,
    TimestampType,
    check_crc,
    iterate_records,
    read_batch_header,
)
from lowtide.storage.compaction.compaction import CompactionRules, LastRecord, compact_batch, note_batch
from lowtide.storage.compaction.offset_map import ENTRY_BYTES, OffsetMap
from tests.examples import one_in
from tests.markers import build_end_transaction_marker
from tests.own_process import Run

pytestmark = pytest.mark.usefixtures("walk_form")

NOW_MS = 1_000_000
LIMIT = 1 << 20
ROOM = 1000 * ENTRY_BYTES
RULES = CompactionRules(NOW_MS, 100, {}, LIMIT)
ATTRIBUTES_KEPT = (
    "base_offset",
    "last_offset_delta",
    "partition_leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)


def batch_of(*records: tuple[Any, ...], base_offset: int = 0, **keywords: Any) -> bytes:
    """From (key, value) or (key, value, timestamp)."""
    rows = [(rest[0] if rest else 500, key, value, ((b"h", b"x"),)) for key, value, *rest in records]
    return build_batch(rows, base_offset=base_offset, **keywords)


def compacted(
    *batches: bytes, rules: CompactionRules = RULES, room: int = ROOM, dirty: int = 0, aborted: tuple[int, ...] = ()
) -> list[bytes]:
    """One whole compaction; `aborted` has base offsets of batches."""
    offsets = OffsetMap(room)
    for batch in batches:
        header = read_batch_header(batch)
        if not note_batch(
            offsets, header, batch, dirty, aborted=header.base_offset in aborted, decompressed_bytes_max=LIMIT
        ):
            break
    left = []
    for batch in batches:
        header = read_batch_header(batch)
        found = compact_batch(offsets, header, batch, rules, discarded=header.base_offset in aborted)
        if found is not None:
            left.append(bytes(found))
            assert check_crc(left[-1], 0, read_batch_header(left[-1]))
    return left


def rows(batches: list[bytes]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for batch in batches
        for record in iterate_records(batch, max_bytes=LIMIT)
    ]


def test_the_last_record_of_each_key_stays_where_it_was() -> None:
    left = compacted(
        batch_of((b"a", b"1"), (b"b", b"2"), (b"a", b"3")), batch_of((b"b", b"4"), (b"c", b"5"), base_offset=3)
    )
    assert rows(left) == [(2, b"a", b"3"), (3, b"b", b"4"), (4, b"c", b"5")]
    assert read_batch_header(left[0]).base_offset == 0, "the batch keeps its base and last offset"
    assert read_batch_header(left[0]).last_offset == 2


def test_what_is_not_changed_is_copied() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2"), compression=Compression.ZSTD)
    assert compacted(batch) == [batch]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("kind", TimestampType)
def test_attributes_are_kept(codec: Compression, kind: TimestampType) -> None:
    given_attributes: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 3,
        "base_sequence": 9,
        "leader_epoch": 5,
        "is_transactional": True,
    }
    batch = batch_of(
        (b"a", b"1", 900),
        (b"b", b"2", 800),
        (b"c", b"", 700),
        (b"a", b"4", 600),
        timestamp_type=kind,
        compression=codec,
        **given_attributes,
    )
    (left,) = compacted(batch)
    before, after = read_batch_header(batch), read_batch_header(left)
    assert [getattr(before, name) for name in ATTRIBUTES_KEPT] == [getattr(after, name) for name in ATTRIBUTES_KEPT]
    assert (after.attributes, after.record_count) == (before.attributes, 3)
    assert after.max_timestamp == (900 if kind is TimestampType.LOG_APPEND_TIME else 800)
    told = [
        (record.timestamp, record.key, record.value, record.headers)
        for record in iterate_records(left, max_bytes=LIMIT)
    ]
    times = (900, 900, 900) if kind is TimestampType.LOG_APPEND_TIME else (800, 700, 600)
    values = ((b"b", b"2"), (b"c", b""), (b"a", b"4"))
    assert [(time, *row) for time, row in zip(times, values, strict=True)] == [row[:3] for row in told]
    assert {tuple(map(tuple, row[3])) for row in told} == {((b"h", b"x"),)}


def test_a_tombstone_stays_for_its_time_from_the_first_compaction_on() -> None:
    """KIP-534."""
    batch = batch_of((b"a", b"1", 10), (b"b", b"2", 20), (b"a", None, 30))
    (first,) = compacted(batch)
    assert rows([first]) == [(1, b"b", b"2"), (2, b"a", None)]
    header = read_batch_header(first)
    assert (header.attributes & DELETE_HORIZON_BIT, header.base_timestamp, header.max_timestamp) == (
        DELETE_HORIZON_BIT,
        NOW_MS + 100,
        30,
    )
    assert [record.timestamp for record in iterate_records(first, max_bytes=LIMIT)] == [20, 30]
    assert compacted(first, rules=RULES._replace(now_ms=NOW_MS + 99)) == [first], "the delete horizon does not move"
    (second,) = compacted(first, rules=RULES._replace(now_ms=NOW_MS + 100))
    assert rows([second]) == [(1, b"b", b"2")]
    assert [record.timestamp for record in iterate_records(second, max_bytes=LIMIT)] == [20]
    assert compacted(batch_of((b"a", None)), batch_of((b"a", b"1"), base_offset=1)) == [
        batch_of((b"a", b"1"), base_offset=1)
    ]


def test_aborted_records_go_and_replace_nothing() -> None:
    committed = batch_of((b"a", b"good"))
    lost = batch_of(
        (b"a", b"bad"),
        (b"b", b"bad"),
        base_offset=1,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    marker = build_end_transaction_marker(
        ControlRecord(ControlRecordType.ABORT, 0), timestamp_ms=5, producer_id=1, producer_epoch=0, base_offset=3
    )
    assert compacted(committed, lost, marker, aborted=(1,)) == [committed, marker]


def test_the_last_batch_of_a_producer_stays_empty() -> None:
    """Removing it would lose the producer's sequence number."""
    keywords: dict[str, Any] = {
        "producer_id": 4,
        "producer_epoch": 1,
        "base_sequence": 6,
        "compression": Compression.GZIP,
        "leader_epoch": 2,
    }
    mine = batch_of((b"a", b"1", 11), (b"b", b"2", 12), **keywords)
    other = batch_of((b"a", b"3"), (b"b", b"4"), base_offset=2)
    for last_offset, count in ((1, 2), (0, 1)):
        left = compacted(mine, other, rules=RULES._replace(last_records={4: LastRecord(last_offset, 1)}))
        assert len(left) == count
    empty = compacted(mine, other, rules=RULES._replace(last_records={4: LastRecord(1, 1)}))[0]
    header = read_batch_header(empty)
    assert [getattr(header, name) for name in ATTRIBUTES_KEPT] == [0, 1, 2, 4, 1, 6]
    assert (header.record_count, header.compression, header.max_timestamp) == (0, Compression.NONE, 12)
    assert compacted(empty, other, rules=RULES._replace(last_records={4: LastRecord(1, 1)})) == [empty, other]
    assert compacted(empty, other, rules=RULES._replace(last_records={4: LastRecord(9, 1)})) == [other]


def test_records_without_a_key_go_where_compaction_reaches() -> None:
    assert rows(compacted(batch_of((None, b"1"), (b"a", b"2")))) == [(1, b"a", b"2")]


def test_a_full_map_ends_the_part_that_is_compacted() -> None:
    """Several passes then compact what one pass cannot."""
    batches = [batch_of((b"a", b"1"), (b"b", b"2"), (b"c", b"3")), batch_of((b"a", b"4"), (b"b", b"5"), base_offset=3)]
    offsets = OffsetMap(2 * ENTRY_BYTES)
    assert not note_batch(
        offsets, read_batch_header(batches[0]), batches[0], 0, aborted=False, decompressed_bytes_max=LIMIT
    )
    assert (len(offsets), offsets.latest_offset) == (2, 1)
    assert compacted(*batches, room=2 * ENTRY_BYTES) == batches
    assert rows(compacted(*batches, room=3 * ENTRY_BYTES)) == [(2, b"c", b"3"), (3, b"a", b"4"), (4, b"b", b"5")]
    with pytest.raises(ValueError, match=f"{ENTRY_BYTES - 1} bytes"):
        OffsetMap(ENTRY_BYTES - 1)


def note(offsets: OffsetMap, batch: bytes) -> bool:
    return note_batch(offsets, read_batch_header(batch), batch, 0, aborted=False, decompressed_bytes_max=1 << 30)


MAP_KEYS = 40_000
COMPILED = native.compiled


def filled_map(size: int) -> OffsetMap:
    """Full, with keys of `size` bytes."""
    offsets = OffsetMap(MAP_KEYS * ENTRY_BYTES)
    for first in range(0, MAP_KEYS, 500):
        pairs = [(number.to_bytes(size, "big"), b"v") for number in range(first, first + 500)]
        assert note(offsets, batch_of(*pairs, base_offset=10**9 + first))
    return offsets


def peak_while_filled(size: int, *, compiled: bool) -> int:
    """The most bytes that were allocated, in a process that has nothing else to do."""
    native.compiled = COMPILED if compiled else None  # type: ignore[misc]
    filled_map(size)
    tracemalloc.start()
    filled_map(size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("size", one_in(2, (8, 300)))
def test_the_map_takes_no_more_memory_than_its_limit(in_own_process: Run, size: int) -> None:
    """A million keys fit into less than 100 MB. A batch is measured with it."""
    assert in_own_process(peak_while_filled, size, compiled=native.compiled is not None) <= MAP_KEYS * ENTRY_BYTES + (
        1 << 20
    )
    assert ENTRY_BYTES <= 100


@pytest.mark.parametrize("size", [8, 19, 20, 300])
def test_a_full_map_knows_its_keys_and_takes_no_more(size: int) -> None:
    offsets = filled_map(size)
    assert not note(offsets, batch_of((b"one more", b"v"), base_offset=10**9 + MAP_KEYS))
    assert len(offsets) == MAP_KEYS
    batch = batch_of((b"none", b"v"), ((MAP_KEYS - 1).to_bytes(size, "big"), b"v"), base_offset=5)
    found = find_keys(batch, 61, len(batch), 2)
    assert offsets.superseded(found, 5) == [1]
    assert offsets.superseded(found, 10**9 + MAP_KEYS - 2) == []


@settings(deadline=None)
@given(st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=9), max_size=40), st.integers(1, 60))
def test_the_map_has_the_last_offset_of_each_key(batches: list[list[bytes]], entries: int) -> None:
    offsets, last, offset = OffsetMap(entries * ENTRY_BYTES), dict[bytes, int](), 7
    full = False
    for keys in batches:
        for number, key in enumerate(keys):
            if not full and (key in last or len(last) < entries):
                last[key] = offset + number
            else:
                full = True
        assert note(offsets, batch_of(*((key, b"v") for key in keys), base_offset=offset)) is not full
        if full:
            break
        offset += len(keys)
    assert len(offsets) == len(last)
    assert offsets.latest_offset == max(last.values(), default=-1)
    for key, at in last.items():
        batch = batch_of((key, b"v"))
        found = find_keys(batch, 61, len(batch), 1)
        assert [offsets.superseded(found, base) for base in (at - 1, at)] == [[0], []]


@pytest.mark.parametrize(
    "damage", [lambda payload: payload[:-1], lambda payload: payload + b"\0", lambda payload: b"\xff" * len(payload)]
)
def test_damaged_records_are_an_error(damage: Any) -> None:
    payload = batch_of((b"a", b"1"), (b"b", b"2"))[61:]
    with pytest.raises(ProtocolError):
        damaged = damage(payload)
        find_keys(damaged, 0, len(damaged), 2)


keys_drawn = st.sampled_from([b"a", b"b", b"c", b"d" * 30, None])
records_drawn = st.tuples(keys_drawn, st.sampled_from([b"", b"1", b"2" * 200, None]), st.integers(0, 10**6))
batches_drawn = st.lists(
    st.tuples(st.lists(records_drawn, min_size=1, max_size=5), st.sampled_from(Compression), st.booleans()),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(batches_drawn, st.lists(st.tuples(st.integers(1, 6), st.integers(0, 400)), min_size=1, max_size=4))
def test_the_last_value_of_each_key_survives_any_number_of_compactions(
    drawn: list[tuple[list[tuple[Any, ...]], Compression, bool]], passes: list[tuple[int, int]]
) -> None:
    """For maps of all sizes, with tombstones and passing time; order, offsets and timestamps are kept."""
    batches, offset, written = [], 0, {}
    aborted = set()
    for records, codec, is_aborted in drawn:
        batches.append(batch_of(*records, base_offset=offset, compression=codec))
        if is_aborted:
            aborted.add(offset)
        for key, value, timestamp in records:
            written[offset] = (key, value, timestamp, is_aborted)
            offset += 1
    last = {
        key: at for at, (key, _value, _timestamp, is_aborted) in written.items() if key is not None and not is_aborted
    }
    now_ms, dirty, end = 10**7, 0, offset
    for entries, later_ms in passes:
        now_ms += later_ms
        offsets = OffsetMap(entries * ENTRY_BYTES)
        rules = CompactionRules(now_ms, 100, {}, LIMIT)
        headers = [(read_batch_header(batch), batch) for batch in batches]
        for header, batch in headers:
            if not note_batch(
                offsets, header, batch, dirty, aborted=header.base_offset in aborted, decompressed_bytes_max=LIMIT
            ):
                break
        batches = [
            bytes(found)
            for header, batch in headers
            if (found := compact_batch(offsets, header, batch, rules, discarded=header.base_offset in aborted))
            is not None
        ]
        check(batches, written, last, dict.fromkeys(header.base_offset for header, _ in headers))
        dirty = max(dirty, offsets.latest_offset + 1)
    if dirty == end and all(written[at][1] is not None for at in last.values()):
        kept = [record.offset for batch in batches for record in iterate_records(batch, max_bytes=LIMIT)]
        assert kept == sorted(last.values()), "a fully compacted log has nothing else"


def check(batches: list[bytes], written: dict[int, Any], last: dict[bytes, int], bases: dict[int, None]) -> None:
    records: list[Record] = [record for batch in batches for record in iterate_records(batch, max_bytes=LIMIT)]
    told = [record.offset for record in records]
    assert told == sorted(set(told))
    for record in records:
        key, value, timestamp, _ = written[record.offset]
        assert (record.key, record.value, record.timestamp) == (key, value, timestamp)
    for at in last.values():
        assert at in told or written[at][1] is None, "the last record of a key is missing"
    headers: list[BatchHeader] = [read_batch_header(batch) for batch in batches]
    assert all(header.base_offset in bases for header in headers)
    assert not any(written[record.offset][3] for record in records), "an aborted record is still there"
