"""Record batches: field positions, record encoding, walks over cut and broken bytes, and control batches."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.batch_building import VARINTS, UnplacedRecord, build_batch
from lowtide.protocol.compression import Compression, CompressionError
from lowtide.protocol.control_records import (
    ControlRecord,
    ControlRecordType,
    read_control_record,
)
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Record,
    TimestampType,
    check_crc,
    iterate_batches,
    iterate_records,
    read_batch_header,
    read_varint,
)
from tests.markers import build_end_transaction_marker

NOW = 1_700_000_000_000
LIMIT = 1 << 20
KEYS = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.tuples(st.integers(0, 2**62), KEYS, KEYS, st.lists(st.tuples(st.binary(max_size=9), KEYS), max_size=3)),
    min_size=1,
    max_size=20,
)


def refresh(batch: bytearray) -> bytes:
    """Update the CRC of a changed batch."""
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    return bytes(batch)


def test_each_field_lies_where_the_format_says() -> None:
    """Protects the header's layout: every field has its own value, read back at its documented position."""
    batch = build_batch(
        [(NOW, b"k", b"v", ()), (NOW + 5, None, b"w", ())],
        base_offset=0x0102030405060708,
        producer_id=77,
        producer_epoch=3,
        base_sequence=9,
        leader_epoch=6,
        is_transactional=True,
    )
    assert struct.unpack_from(">qi", batch, 0) == (0x0102030405060708, len(batch) - 12)
    assert struct.unpack_from(">i", batch, 12) == (6,)
    assert batch[16] == 2
    assert struct.unpack_from(">I", batch, 17) == (crc32c(batch[21:]),)
    assert struct.unpack_from(">hiqqqhii", batch, 21) == (0x10, 1, NOW, NOW + 5, 77, 3, 9, 2)
    assert batch[61:].hex(" ") == "10 00 00 00 02 6b 02 76 00 0e 00 0a 02 01 02 77 00"


def test_the_header_reads_back_as_it_was_built() -> None:
    """Protects `read_batch_header` and the derived properties."""
    batch = build_batch([(NOW, None, None, ())] * 3, base_offset=40, compression=Compression.LZ4, base_sequence=8)
    header = read_batch_header(b"xyz" + batch, 3)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (40, 42, 43, 3)
    assert (header.base_sequence, header.last_sequence) == (8, 10)
    assert header.compression is Compression.LZ4
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_control
    assert not header.is_transactional


def test_sequences_wrap_to_zero() -> None:
    """Protects producers that have sent 2^31 records: the sequence after the largest is 0."""
    header = read_batch_header(
        build_batch([(NOW, None, None, ())] * 3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    )
    assert header.last_sequence == 0


@pytest.mark.parametrize("codec", Compression)
@given(records=RECORDS)
def test_records_are_read_back(codec: Compression, records: list[UnplacedRecord]) -> None:
    """Protects the encoding of records: nulls, empties, headers, timestamps that go backwards."""
    batch = build_batch(records, base_offset=7, compression=codec)
    expected = [Record(7 + i, ts, key, value, tuple(headers)) for i, (ts, key, value, headers) in enumerate(records)]
    assert list(iterate_records(batch, max_bytes=LIMIT)) == expected
    header = read_batch_header(batch)
    assert header.max_timestamp == max(record[0] for record in records)
    assert check_crc(batch, 0, header)


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints_are_read_back(value: int) -> None:
    """Protects zigzag over all 64 bits."""
    out = b"?" + VARINTS[value]
    assert read_varint(out, 1) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (8191, "fe7f"), (8192, "808001")],
)
def test_varints_have_protobuf_form(value: int, encoded: str) -> None:
    """Protects the form against a symmetric mistake in writer and reader."""
    assert VARINTS[value].hex() == encoded


@pytest.mark.parametrize("encoded", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10 + b"\x01"])
def test_cut_and_endless_varints_are_refused(encoded: bytes) -> None:
    """Protects against reading beyond the end, or without end."""
    with pytest.raises(ProtocolError):
        read_varint(encoded, 0)


def test_log_append_time_replaces_every_timestamp() -> None:
    """Protects readers of topics with LogAppendTime: the records' own timestamps are ignored there."""
    batch = build_batch(
        [(NOW, None, b"a", ()), (NOW - 9, None, b"b", ())], timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    assert read_batch_header(batch).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in iterate_records(batch, max_bytes=LIMIT)] == [NOW, NOW]


def test_a_cut_header_is_a_protocol_error() -> None:
    """Protects callers that catch ProtocolError: struct's own error must not escape."""
    batch = build_batch([(NOW, None, None, ())])
    for size in range(RECORD_BATCH_OVERHEAD):
        with pytest.raises(ProtocolError):
            read_batch_header(batch[:size])


def test_the_crc_covers_all_but_the_first_21_bytes() -> None:
    """Protects in-place writing of offset and leader epoch, and everything else from silent damage."""
    batch = build_batch([(NOW, b"key", b"value", ())])
    for position in range(len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x40
        header = read_batch_header(damaged)
        assert check_crc(damaged, 0, header) == (position < 8 or 12 <= position < 17), position


def test_a_crc_check_of_a_cut_batch_fails_without_an_error() -> None:
    """Protects recovery, which reads torn tails."""
    batch = build_batch([(NOW, b"key", b"value", ())])
    header = read_batch_header(batch)
    assert not check_crc(batch[:-1], 0, header)
    header.batch_length = -5
    assert not check_crc(batch, 0, header)


def test_batches_are_walked_up_to_a_cut_one() -> None:
    """Protects Fetch responses: their last batch may be cut anywhere."""
    first, second = build_batch([(NOW, None, b"a", ())]), build_batch([(NOW, None, b"bc", ())] * 2, base_offset=1)
    for size in range(len(second)):
        walked = list(iterate_batches(first + second[:size]))
        assert [(position, header.base_offset) for position, header in walked] == [(0, 0)]
    assert [header.next_offset for _, header in iterate_batches(memoryview(first + second))] == [1, 3]


@pytest.mark.parametrize(
    ("position", "field"), [(8, b"\x00\x00\x00\x30"), (8, b"\xff\xff\xff\xff"), (16, b"\x01"), (16, b"\x03")]
)
def test_impossible_batches_stop_the_walk(position: int, field: bytes) -> None:
    """Protects against a walk without progress, backwards, or through another format."""
    batch = bytearray(build_batch([(NOW, None, b"a", ())]))
    batch[position : position + len(field)] = field
    with pytest.raises(ProtocolError):
        list(iterate_batches(batch))


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_damaged_records_raise_nothing_but_protocol_errors(place: int, byte: int) -> None:
    """Protects searches and tools: any byte of the records may be wrong."""
    batch = bytearray(build_batch([(NOW + i, b"k%d" % i, b"v", ((b"h", None),)) for i in range(5)]))
    batch[RECORD_BATCH_OVERHEAD + place % (len(batch) - RECORD_BATCH_OVERHEAD)] = byte
    try:
        records = list(iterate_records(refresh(batch), max_bytes=LIMIT))
    except ProtocolError:
        return
    assert len(records) == 5


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_count_that_does_not_fit_the_records_is_refused(count: int) -> None:
    """Protects readers from reading fewer or more records than there are."""
    batch = bytearray(build_batch([(NOW, b"k", b"v", ())] * 2))
    batch[57:61] = count.to_bytes(4, "big")
    with pytest.raises(ProtocolError):
        list(iterate_records(refresh(batch), max_bytes=LIMIT))


def test_a_batch_that_would_decompress_beyond_the_limit_is_refused() -> None:
    """Protects the limit in `iterate_records`."""
    batch = build_batch([(NOW, None, bytes(10_000), ())], compression=Compression.ZSTD)
    with pytest.raises(CompressionError):
        list(iterate_records(batch, max_bytes=9_999))


def test_a_codec_without_meaning_is_a_protocol_error() -> None:
    """Protects callers from ValueErrors of the enum."""
    with pytest.raises(ProtocolError, match="codec 6"):
        _ = BatchHeader(0, 0, 0, 2, 0, 6, 0, 0, 0, -1, -1, -1, 1).compression


@pytest.mark.parametrize("kind", ControlRecordType)
def test_end_transaction_markers_are_read_back(kind: ControlRecordType) -> None:
    """Protects the markers' bytes: key `version, type`, value `version, coordinator epoch`."""
    batch = build_end_transaction_marker(
        ControlRecord(kind, 11), timestamp_ms=NOW, producer_id=5, producer_epoch=2, base_offset=90
    )
    header = read_batch_header(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence, header.last_offset) == (
        True,
        True,
        -1,
        90,
    )
    (record,) = iterate_records(batch, max_bytes=LIMIT)
    assert (record.key, record.value) == (bytes([0, 0, 0, kind]), b"\x00\x00\x00\x00\x00\x0b")
    assert read_control_record(batch, max_bytes=LIMIT) == ControlRecord(kind, 11)


def test_control_records_of_other_kinds_end_no_transaction() -> None:
    """Protects forward compatibility: KRaft writes types above 1 and readers skip them."""
    batch = build_batch([(NOW, b"\x00\x00\x00\x02", b"", ())], is_control=True)
    assert read_control_record(batch, max_bytes=LIMIT) is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\0\0\0", b""), (b"\0\0\0\x01", None), (b"\0\0\0\x01", b"\0\0\0")]
)
def test_markers_that_are_too_short_are_refused(key: bytes | None, value: bytes | None) -> None:
    """Protects recovery from struct errors over a damaged marker."""
    with pytest.raises(ProtocolError):
        read_control_record(build_batch([(NOW, key, value, ())], is_control=True), max_bytes=LIMIT)
