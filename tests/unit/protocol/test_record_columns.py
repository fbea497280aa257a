"""Record batches become columns, and columns batches: what is left out, refused, and continued. In both forms."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.columns import BinaryInput, RecordColumns, RecordRows
from lowtide.protocol.compression import Compression, DecompressedTooLargeError
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.record_columns import (
    BatchSettings,
    BuiltBatch,
    ColumnLimits,
    DamagedBatchError,
    FetchRange,
    RecordTooLargeError,
    append_batches,
    build_batches,
    next_sequence,
)
from lowtide.protocol.records import TimestampType, check_crc, iterate_records, read_batch_header
from tests.markers import build_end_transaction_marker

from .columns import binary, binary_input, buffers, record_rows, table

pytestmark = pytest.mark.usefixtures("walk_form")

NOW = 1_700_000_000_000
ALL = FetchRange(0, 2**62)
FIELDS = st.none() | st.binary(max_size=200)
NAMES = st.text(max_size=5).map(str.encode)
RECORDS = st.lists(
    st.tuples(st.integers(-1, 2**50), FIELDS, FIELDS, st.lists(st.tuples(NAMES, FIELDS), max_size=3)),
    min_size=1,
    max_size=40,
)


def rows_of(*batches: bytes, wanted: FetchRange = ALL, with_headers: bool = False) -> list[tuple[Any, ...]]:
    columns = RecordColumns(with_headers=with_headers)
    append_batches(columns, b"".join(batches), wanted)
    return table(columns)


def values_of(*batches: bytes, wanted: FetchRange = ALL) -> list[bytes | None]:
    return [row[4] for row in rows_of(*batches, wanted=wanted)]


def batch_of(base_offset: int, *values: bytes, **options: Any) -> bytes:
    return build_batch(
        [(NOW + number, None, value, ()) for number, value in enumerate(values)], base_offset=base_offset, **options
    )


def changed(batch: bytes, change: Callable[[bytearray], None]) -> bytes:
    """A batch with changed bytes and a correct CRC."""
    out = bytearray(batch)
    change(out)
    out[17:21] = crc32c(out[21:]).to_bytes(4, "big")
    return bytes(out)


# ------------------------------------------------------------------ batches to columns
@settings(deadline=None)
@given(
    records=RECORDS, base_offset=st.integers(0, 2**62), codec=st.sampled_from(Compression), append_time=st.booleans()
)
def test_columns_have_what_the_records_have(
    records: Any, base_offset: int, codec: Compression, append_time: bool
) -> None:
    """Protects every field, compared with the slow reader: nulls, empty strings, headers, timestamp types, codecs."""
    batch = build_batch(
        records,
        base_offset=base_offset,
        compression=codec,
        timestamp_type=TimestampType(append_time),
        producer_id=5,
        producer_epoch=1,
    )
    expected = [
        (each.offset, each.timestamp * 1000, int(append_time), each.key, each.value, list(each.headers))
        for each in iterate_records(batch, max_bytes=1 << 20)
    ]
    columns = RecordColumns(with_headers=True)
    appended = append_batches(columns, batch, FetchRange(0, 2**63 - 1))
    assert table(columns) == expected
    assert appended == (base_offset + len(records), len(records), False, 0)
    assert [row[:5] for row in rows_of(batch, wanted=FetchRange(0, 2**63 - 1))] == [row[:5] for row in expected]


@settings(deadline=None)
@given(lists=st.lists(RECORDS, min_size=1, max_size=4), bounds=st.tuples(st.integers(0, 120), st.integers(0, 120)))
def test_several_batches_are_appended_within_bounds(lists: Any, bounds: tuple[int, int]) -> None:
    """Protects the inclusive start and the exclusive end within batches, and bitmaps that continue within a byte."""
    first, until = sorted(bounds)
    batches, offset = [], 0
    for records in lists:
        batches.append(build_batch(records, base_offset=offset))
        offset += len(records)
    every = rows_of(*batches, with_headers=True)
    columns = RecordColumns(with_headers=True)
    appended = append_batches(columns, b"".join(batches), FetchRange(first, until))
    assert table(columns) == every[first:until]
    assert appended.next_offset == max(first, min(offset, until))
    assert appended.row_count == len(every[first:until])


def test_a_cut_batch_at_the_end_is_reported_with_its_size() -> None:
    """Protects progress: a batch larger than the response must be fetched whole, unless it is after the range."""
    whole, cut = batch_of(0, b"a", b"b"), batch_of(2, b"c" * 100)
    for length in (1, 11, 12, 60, 61, len(cut) - 1):
        columns = RecordColumns()
        appended = append_batches(columns, whole + cut[:length], ALL)
        assert (appended.next_offset, appended.row_count) == (2, 2)
        assert appended.cut_batch_bytes == (len(cut) if length >= 12 else 61)
        assert append_batches(RecordColumns(), whole + cut[:length], FetchRange(0, 2)).cut_batch_bytes == 0
    assert append_batches(RecordColumns(), b"", ALL) == (0, 0, False, 0)
    assert append_batches(RecordColumns(), cut[:40], FetchRange(1, 2)) == (2, 0, False, 0)


def test_offsets_without_records_are_skipped() -> None:
    """Protects readers of compacted logs: a batch may be empty, and the next may begin at any offset."""
    empty = changed(batch_of(10, b"x", b"y")[:61], lambda out: out.__setitem__(slice(8, 12), (49).to_bytes(4, "big")))
    empty = changed(empty, lambda out: out.__setitem__(slice(57, 61), bytes(4)))
    columns = RecordColumns()
    assert append_batches(columns, empty, FetchRange(3, 100)).next_offset == 12
    assert append_batches(columns, empty + batch_of(500, b"z"), FetchRange(3, 100)).next_offset == 100
    assert columns.row_count == 0


def test_markers_and_aborted_records_are_left_out() -> None:
    """Protects read_committed: only the aborted transaction is left out, not other records around it."""

    def write(offset: int, producer_id: int, value: bytes) -> bytes:
        return batch_of(
            offset, value, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )

    def end(offset: int, producer_id: int, kind: ControlRecordType) -> bytes:
        return build_end_transaction_marker(
            ControlRecord(kind, 0), timestamp_ms=NOW, producer_id=producer_id, producer_epoch=0, base_offset=offset
        )

    log = [
        write(0, 1, b"aborted"),
        write(1, 2, b"committed"),
        batch_of(2, b"plain"),
        batch_of(3, b"idempotent", producer_id=1, producer_epoch=0, base_sequence=0),
        end(4, 1, ControlRecordType.ABORT),
        write(5, 1, b"second"),
        end(6, 2, ControlRecordType.COMMIT),
        end(7, 1, ControlRecordType.COMMIT),
        write(8, 2, b"aborted, too"),
        end(9, 2, ControlRecordType.ABORT),
    ]
    aborted = [(2, 8), (1, 0)]
    assert values_of(*log) == [b"aborted", b"committed", b"plain", b"idempotent", b"second", b"aborted, too"]
    assert values_of(*log, wanted=FetchRange(0, 100, aborted)) == [b"committed", b"plain", b"idempotent", b"second"]
    # A reader that continues in the middle of a response does not have the earlier batches.
    assert values_of(*log, wanted=FetchRange(5, 100, aborted)) == [b"second"]
    assert append_batches(RecordColumns(), b"".join(log), FetchRange(0, 100, aborted)).next_offset == 10


def test_full_columns_return_where_to_continue() -> None:
    """Protects the range of int32 offsets: at least one whole batch is appended, until the columns are full."""
    log = b"".join(batch_of(number * 2, b"x" * 500, b"y" * 500) for number in range(10))
    limits = ColumnLimits(columns_bytes_max=2500)
    offset, found, times = 0, [], 0
    while offset < 20:
        columns = RecordColumns()
        appended = append_batches(columns, log, FetchRange(offset, 20), limits)
        assert columns.size_bytes <= 2500
        assert appended.is_full == (appended.next_offset < 20)
        found += [row[0] for row in table(columns)]
        offset, times = appended.next_offset, times + 1
    assert found == list(range(20))
    assert times == 5
    assert append_batches(RecordColumns(), log, FetchRange(0, 20), ColumnLimits(columns_bytes_max=1)) == (2, 2, True, 0)


def test_times_outside_of_microseconds_become_the_nearest() -> None:
    """Protects readers from producers' clocks: 64 bits of microseconds end in the year 294,247."""
    batch = build_batch([(2**62, None, b"", ()), (-(2**62), None, b"", ()), (-1, None, b"", ())])
    largest = (2**63 - 1) // 1000 * 1000
    assert [row[1] for row in rows_of(batch)] == [largest, -largest, -1000]


def test_names_of_headers_are_text() -> None:
    """Protects Arrow's strings, which are not checked again."""
    batch = build_batch([(NOW, None, b"", [(b"\xff\xfeok", b"\xff"), ("größe".encode(), None)])])
    [row] = rows_of(batch, with_headers=True)
    assert row[5] == [("\ufffd\ufffdok".encode(), b"\xff"), ("größe".encode(), None)]


@settings(deadline=None)
@given(
    position=st.integers(0, 10_000),
    flip=st.integers(1, 255),
    codec=st.sampled_from([Compression.NONE, Compression.LZ4]),
)
def test_a_damaged_byte_is_always_detected(position: int, flip: int, codec: Compression) -> None:
    """Protects against a flipped bit in a batch: it is refused with its offset, and the batch before it is kept.

    The base offset, the length and the leader epoch are outside the CRC.
    """
    good, bad = batch_of(7, b"good"), bytearray(batch_of(8, b"a" * 60, b"b" * 60, compression=codec))
    position %= len(bad)
    bad[position] ^= flip
    columns = RecordColumns()
    try:
        appended = append_batches(columns, good + bad, FetchRange(7, 10))
    except DamagedBatchError as error:
        assert str(error.offset) in str(error)
    else:
        assert position < 16
        assert appended.next_offset in (7, 8, 9, 10)
    rows = table(columns)
    assert [row[4] for row in rows][:1] == [b"good"]
    assert len(rows) == 1 or position < 16


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda out: out.__setitem__(16, 1), "its format is 1"),
        (lambda out: out.__setitem__(slice(8, 12), (48).to_bytes(4, "big")), "impossible length 48"),
        (lambda out: out.__setitem__(slice(57, 61), (3).to_bytes(4, "big")), "the varint at"),
        (lambda out: out.__setitem__(slice(57, 61), (1).to_bytes(4, "big")), "follow the last of 1 records"),
        (lambda out: out.__setitem__(slice(57, 61), b"\xff" * 4), "-1 records"),
        (lambda out: out.__setitem__(slice(23, 27), (0).to_bytes(4, "big")), "offset delta 1, the batch's last is 0"),
        (lambda out: out.__setitem__(slice(23, 27), b"\xff" * 4), "last offset delta -1"),
        (lambda out: out.__setitem__(22, 6), "compression codec 6"),
        (lambda out: out.__setitem__(22, 3), "broken lz4"),
        (lambda out: out.__setitem__(slice(0, 8), (2**63 - 2).to_bytes(8, "big")), "last offset delta"),
        (lambda out: out.__setitem__(slice(0, 8), bytes(8)), "the batch before it ends at 5"),
    ],
)
def test_batches_that_contradict_themselves_are_refused(change: Callable[[bytearray], None], says: str) -> None:
    """Protects against invalid bytes with a correct CRC: the error names them, and the columns keep earlier rows."""
    columns = RecordColumns()
    with pytest.raises(DamagedBatchError, match=says) as caught:
        append_batches(
            columns, batch_of(4, b"before") + changed(batch_of(5, b"a", b"b"), change), FetchRange(0, 2**63 - 1)
        )
    assert f"the batch at offset {caught.value.offset} can't be read" in str(caught.value)
    assert [row[4] for row in table(columns)] == [b"before"]


def test_what_decompresses_beyond_the_limit_is_refused() -> None:
    """Protects the memory of a worker from a small batch that claims to be a large one."""
    bomb = batch_of(0, bytes(100_000), compression=Compression.ZSTD)
    with pytest.raises(DamagedBatchError, match="larger than 5000 bytes") as caught:
        append_batches(RecordColumns(), bomb, ALL, ColumnLimits(decompressed_bytes_max=5000))
    assert isinstance(caught.value.__cause__, DecompressedTooLargeError)


# ------------------------------------------------------------------ columns to batches
@settings(deadline=None)
@given(
    records=RECORDS,
    first=st.integers(0, 9),
    codec=st.sampled_from(Compression),
    size=st.integers(1500, 6000),
    sequence=st.integers(0, 2**31 - 1) | st.just(-1),
)
def test_batches_have_what_the_columns_have(
    records: Any, first: int, codec: Compression, size: int, sequence: int
) -> None:
    """Protects every field on its way back: order, full batches, valid CRCs, consecutive sequences."""
    settings = BatchSettings(
        batch_bytes_max=size, compression=codec, producer_id=9, producer_epoch=2, is_transactional=True
    )
    built = list(build_batches(record_rows(records, first=first), settings, timestamp_ms=NOW, base_sequence=sequence))
    found: list[Any] = []
    for batch, row_count, base_sequence in built:
        header = read_batch_header(batch)
        assert check_crc(batch, 0, header)
        assert len(batch) == header.size_bytes <= size
        assert header.is_transactional
        assert header.base_sequence == base_sequence == next_sequence(sequence, len(found))
        assert (header.producer_id, header.producer_epoch, header.record_count) == (9, 2, row_count)
        assert header.last_offset_delta == row_count - 1
        assert header.max_timestamp == max(record[0] for record in records[len(found) : len(found) + row_count])
        found += [
            (each.timestamp, each.key, each.value, list(each.headers))
            for each in iterate_records(batch, max_bytes=1 << 20)
        ]
    assert found == [(when, key, value, list(headers)) for when, key, value, headers in records]
    if codec is Compression.NONE:
        # The result of a builder of one batch at a time for the same rows.
        _, row_count, base_sequence = built[0]
        assert bytes(built[0].batch) == build_batch(
            records[:row_count], producer_id=9, producer_epoch=2, base_sequence=base_sequence, is_transactional=True
        )


@settings(deadline=None)
@given(records=RECORDS, data=st.data())
def test_rows_are_written_as_they_are_selected(records: Any, data: st.DataObject) -> None:
    """Protects a sink that sorts rows by their partition: any rows in any order."""
    numbers = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=50))
    settings = BatchSettings(batch_bytes_max=3000)
    built = list(build_batches(record_rows(records), settings, timestamp_ms=NOW, selected=array("q", numbers)))
    found = [each.value for batch, _, _ in built for each in iterate_records(batch, max_bytes=1 << 20)]
    assert found == [records[number][2] for number in numbers]


def test_batches_are_as_full_as_they_may_be() -> None:
    """Protects throughput and `max.request.size`: one more record would not have fit."""
    rows = RecordRows(row_count=1000, values=binary_input([b"v" * 90] * 1000))
    sizes = [len(batch) for batch, _, _ in build_batches(rows, BatchSettings(batch_bytes_max=1024), timestamp_ms=NOW)]
    assert all(900 < size <= 1024 for size in sizes[:-1])


def test_what_compression_does_not_make_smaller_is_not_compressed() -> None:
    """Protects the promise about the size of a batch."""
    rows = RecordRows(row_count=1, values=binary_input([bytes(range(256))]))
    [built] = build_batches(rows, BatchSettings(batch_bytes_max=330, compression=Compression.GZIP), timestamp_ms=NOW)
    assert read_batch_header(built.batch).compression is Compression.NONE
    assert next(iterate_records(built.batch, max_bytes=1000)).value == bytes(range(256))


def test_rows_without_a_time_have_that_of_the_batch() -> None:
    """Protects the common case: no timestamps, no keys, no headers."""
    rows = RecordRows(row_count=2, values=binary_input([b"a", None]))
    [built] = build_batches(rows, BatchSettings(batch_bytes_max=1000), timestamp_ms=NOW)
    assert [(each.timestamp, each.key, each.value) for each in iterate_records(built.batch, max_bytes=1000)] == [
        (NOW, None, b"a"),
        (NOW, None, None),
    ]
    assert built == BuiltBatch(built.batch, 2, -1)


def test_a_record_that_fits_nowhere_is_named() -> None:
    """Protects a sink's error message, and that rows before it are there."""
    rows = RecordRows(row_count=3, values=binary_input([b"a", b"b" * 2000, b"c"]))
    batches = build_batches(rows, BatchSettings(batch_bytes_max=1000), timestamp_ms=NOW)
    assert next(batches).row_count == 1
    with pytest.raises(RecordTooLargeError, match="row 1 doesn't fit into a batch of 1000 bytes"):
        next(batches)


@pytest.mark.parametrize(
    "values",
    [
        BinaryInput(offsets=array("i", [0, 4]), values=b"abc"),
        BinaryInput(offsets=array("i", [2, 1]), values=b"abc"),
        BinaryInput(offsets=array("i", [-1, 1]), values=b"abc"),
        BinaryInput(offsets=array("i", [0]), values=b"abc"),
        BinaryInput(offsets=array("i", [0, 1]), values=b"abc", validity=b""),
        BinaryInput(offsets=array("i", [0, 1]), values=b"abc", first=1),
        BinaryInput(offsets=array("i", [0, 1]), values=b"abc", first=-1),
        BinaryInput(offsets=array("i", [0, 1]), values=b"abc", first=2**62),
    ],
)
def test_columns_that_contradict_themselves_are_refused(values: BinaryInput) -> None:
    """Protects memory from buffers that don't belong together: nothing outside of them is read."""
    with pytest.raises((ValueError, IndexError)):
        list(
            build_batches(RecordRows(row_count=1, values=values), BatchSettings(batch_bytes_max=1000), timestamp_ms=NOW)
        )


@pytest.mark.parametrize("number", [-1, 1, 2**62])
def test_rows_that_are_not_there_are_refused(number: int) -> None:
    """Protects the same, for selected rows."""
    rows = RecordRows(row_count=1, values=binary_input([b"a"]))
    with pytest.raises(ValueError, match="there is no row"):
        list(build_batches(rows, BatchSettings(batch_bytes_max=1000), timestamp_ms=NOW, selected=array("q", [number])))


def test_a_header_needs_a_name() -> None:
    """Protects consumers, which refuse a batch with such a record."""
    rows = record_rows([(NOW, None, b"v", [(None, b"x")])])
    with pytest.raises(ValueError, match="row 0 has a header without a name"):
        list(build_batches(rows, BatchSettings(batch_bytes_max=1000), timestamp_ms=NOW))


def test_columns_of_several_answers_are_one() -> None:
    """Protects readers that collect small responses."""
    columns = RecordColumns()
    for number in range(20):
        append_batches(columns, batch_of(number, b"%d" % number), ALL)
    assert binary(columns.values, 20) == [b"%d" % number for number in range(20)]
    assert len(buffers(columns)) == 12
