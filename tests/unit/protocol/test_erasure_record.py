"""The control record of an erasure: what is written is read back, and nothing that is damaged is taken for one."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import ControlRecord, ControlRecordType, end_transaction_record
from lowtide.protocol.erasure_record import (
    ErasureRecord,
    ReplicaSearch,
    UnknownErasureError,
    encode_erasure,
    read_erasure,
)
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges

MAX_BYTES = 1 << 20
OFFSET_MAX = (1 << 63) - 2
OFFSETS = st.integers(0, OFFSET_MAX)
RANGES = st.lists(
    st.one_of(
        st.tuples(OFFSETS, st.integers(0, 500)).map(lambda each: (each[0], min(sum(each), OFFSET_MAX))),
        st.integers(0, 200).map(lambda offset: (offset, offset)),
    ),
    min_size=1,
    max_size=50,
).map(lambda ranges: OffsetRanges(ranges).ranges())
BROKERS = st.sets(st.integers(0, (1 << 31) - 1), min_size=1, max_size=5).map(lambda ids: tuple(sorted(ids)))
SEARCHES = st.builds(ReplicaSearch, st.uuids(), BROKERS)
ERASURES = st.one_of(
    st.builds(ErasureRecord, st.uuids(), RANGES, st.none() | SEARCHES),
    st.builds(ErasureRecord, st.uuids(), st.just(()), SEARCHES),
)

ID = UUID(int=0x1234)
SMALL = ErasureRecord(ID, (OffsetRange(5, 5), OffsetRange(9, 300)))
SEARCHED = ErasureRecord(ID, (OffsetRange(5, 5),), ReplicaSearch(UUID(int=9), (1, 2, 300)))
KEY, VALUE = encode_erasure(SMALL)


def batch_of(*records: tuple[bytes | None, bytes | None]) -> bytes:
    return build_batch([(1, key, value, ()) for key, value in records], is_control=True)


def read(key: bytes | None, value: bytes | None) -> ErasureRecord | None:
    return read_erasure(batch_of((key, value)), max_bytes=MAX_BYTES)


def value_of(ranges: bytes, *, version: int = 0, flags: int = 0, first: int = 5, count: int = 1) -> bytes:
    return struct.pack(">h16shqi", version, ID.bytes, flags, first, count) + ranges


@given(ERASURES)
@example(ErasureRecord(ID, (OffsetRange(0, OFFSET_MAX),)))
@example(ErasureRecord(ID, (OffsetRange(0, 0), OffsetRange(OFFSET_MAX, OFFSET_MAX))))
def test_an_erasure_is_read_as_it_was_written(erasure: ErasureRecord) -> None:
    """Protects that all replicas erase the same records."""
    assert read(*encode_erasure(erasure)) == erasure


@given(ERASURES, st.data())
def test_a_truncated_value_is_refused(erasure: ErasureRecord, data: st.DataObject) -> None:
    """Protects that a part of an erasure isn't taken for the whole."""
    key, value = encode_erasure(erasure)
    with pytest.raises(ProtocolError):
        read(key, value[: data.draw(st.integers(0, len(value) - 1))])


def test_every_truncation_and_addition_is_refused() -> None:
    """Protects the same at every byte."""
    for value in (VALUE, encode_erasure(SEARCHED)[1]):
        for size in range(len(value)):
            with pytest.raises(ProtocolError):
                read(KEY, value[:size])
        with pytest.raises(ProtocolError):
            read(KEY, value + b"\0")
    for size in range(len(KEY)):
        with pytest.raises(ProtocolError):
            read(KEY[:size], VALUE)
    for key, value in ((KEY + b"\0", VALUE), (KEY, VALUE + b"\0"), (KEY, None), (None, VALUE)):
        with pytest.raises(ProtocolError):
            read(key, value)
    with pytest.raises(ProtocolError):
        read_erasure(batch_of((KEY, VALUE), (KEY, VALUE)), max_bytes=MAX_BYTES)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """Protects a replica from an error of another kind, which would be a bug of ours."""
    for value in (content, VALUE[:20] + content, VALUE[:32] + content):
        try:
            found = read(KEY, value)
        except ProtocolError:
            continue
        assert found is not None
        assert found.ranges == OffsetRanges(found.ranges).ranges()
        assert read(*encode_erasure(found)) == found


@pytest.mark.parametrize(
    "value",
    [
        value_of(b"\0\1", flags=2),
        value_of(b"\0\1", flags=-1),
        value_of(b"\0\1", first=-1),
        value_of(b"\0\1", count=0),
        value_of(b"\0\1", count=-1),
        value_of(b"\0\1", count=2),
        value_of(b"\0\1\1\1", count=1),
        value_of(b"\1\1"),
        value_of(b"\0\0"),
        value_of(b"\0\1\0\1", count=2),
        value_of(b"\0\1", first=(1 << 63) - 1),
        value_of(b"\0" + b"\x80" * 9 + b"\1"),
        value_of(b"\0" + b"\xff" * 8 + b"\x7f"),
    ],
    ids=[
        "unknown flag",
        "all flags",
        "negative offset",
        "no ranges",
        "negative count",
        "more ranges than bytes",
        "fewer ranges than bytes",
        "gap before the first range",
        "empty range",
        "adjacent ranges",
        "offset above the last one",
        "varint of ten bytes",
        "length above the last offset",
    ],
)
def test_an_invalid_value_is_refused(value: bytes) -> None:
    """Protects that an erasure has one form, and offsets that exist."""
    with pytest.raises(ProtocolError) as caught:
        read(KEY, value)
    assert not isinstance(caught.value, UnknownErasureError)


@pytest.mark.parametrize("brokers", [(), (2, 1), (1, 1), (-1, 2)], ids=["none", "descending", "twice", "negative"])
def test_an_invalid_search_is_refused(brokers: tuple[int, ...]) -> None:
    """Protects that it is certain who was searched."""
    head = struct.pack(">h16sh16sh", 0, ID.bytes, 1, bytes(16), len(brokers))
    value = head + struct.pack(f">{len(brokers)}i", *brokers) + struct.pack(">qi", 5, 1) + b"\0\1"
    with pytest.raises(ProtocolError):
        read(KEY, value)


def test_an_unknown_version_has_its_own_error() -> None:
    """Protects rule 5: a replica that doesn't know what is erased must not serve the log."""
    with pytest.raises(UnknownErasureError):
        read(KEY, value_of(b"", version=1))
    with pytest.raises(UnknownErasureError):
        read(KEY, b"\0\1")
    with pytest.raises(UnknownErasureError):
        read(b"\0\1" + KEY[2:], VALUE)


def test_other_control_batches_are_no_erasures() -> None:
    """Protects markers, control records of later versions, and batches that compaction emptied."""
    assert read(*end_transaction_record(ControlRecord(ControlRecordType.ABORT, 3))) is None
    assert read(b"\0\0\0\5more", b"anything") is None
    emptied = bytearray(batch_of((KEY, VALUE))[:61])
    emptied[57:61] = bytes(4)
    assert read_erasure(bytes(emptied), max_bytes=MAX_BYTES) is None
