"""What a selector matches: exactly the records that a plain reading of the batch finds, in both forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import append_record, assemble_batch, build_batch
from lowtide.protocol.compression import Compression, DecompressedTooLargeError
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.key_digest import DigestIndex, KeyDigests, key_digest
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, Record, TimestampType, iterate_records, read_batch_header
from lowtide.storage.erasures import record_search
from lowtide.storage.erasures.record_search import (
    KEYS_MAX,
    DigestSelector,
    FoundRecords,
    HeaderSelector,
    KeySelector,
    OffsetSelector,
    RecordMatcher,
    RecordSelector,
    has_records,
    why_invalid,
)

COMPILED = native.compiled
LIMIT = 1 << 20
SOME_KEYS = st.sampled_from([b"", b"a", b"ab", b"person-7", bytes(130)]) | st.binary(max_size=3)
KEYS = st.none() | SOME_KEYS
HEADERS = st.lists(
    st.tuples(st.sampled_from([b"", b"who", b"trace"]), st.none() | st.sampled_from([b"", b"x", b"person-7"])),
    max_size=3,
)
ROWS = st.lists(st.tuples(st.integers(0, 2**40), KEYS, st.none() | st.binary(max_size=9), HEADERS), min_size=1)
CODECS = st.sampled_from(list(Compression))


@pytest.fixture(params=[True, False], ids=["compiled", "plain"], autouse=True)
def _form(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param and COMPILED is None:
        pytest.skip("the compiled form wasn't built")
    native.compiled = COMPILED if request.param else None  # type: ignore[misc]
    yield
    native.compiled = COMPILED  # type: ignore[misc]


def search(selector: RecordSelector, batch: bytes) -> list[tuple[int, int, int]]:
    matcher, found, header = (
        RecordMatcher(selector, decompressed_bytes_max=LIMIT),
        FoundRecords(),
        read_batch_header(batch),
    )
    if has_records(header) and matcher.may_match(header.base_offset, header.last_offset):
        matcher.search(header, matcher.records(header, batch), found)
    return list(zip(found.offsets, found.timestamps, found.leader_epochs, strict=True))


def plain(batch: bytes, wanted: Any) -> list[tuple[int, int, int]]:
    records: list[Record] = list(iterate_records(batch, max_bytes=LIMIT))
    return [(record.offset, record.timestamp, 5) for record in records if wanted(record)]


@given(ROWS, CODECS, st.frozensets(SOME_KEYS, min_size=1, max_size=12), st.booleans())
def test_records_with_one_of_the_keys_match(
    rows: list[Any], codec: Compression, keys: frozenset[bytes], append_time: bool
) -> None:
    """Protects a person whose records must all be found; a record without a key isn't one with an empty key."""
    kind = TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME
    batch = build_batch(rows, base_offset=40, leader_epoch=5, compression=codec, timestamp_type=kind)
    assert search(KeySelector(keys), batch) == plain(batch, lambda record: record.key in keys)


@given(ROWS, CODECS, st.lists(st.frozensets(SOME_KEYS, min_size=1, max_size=6), min_size=1, max_size=3))
def test_records_with_a_digest_of_the_key_match(
    rows: list[Any], codec: Compression, groups: list[frozenset[bytes]]
) -> None:
    """Protects standing erasures, which have no keys: the same records are found, each with its key."""
    secrets = [bytes([number]) * 32 for number in range(len(groups))]
    digests = tuple(
        KeyDigests(secret, tuple(key_digest(secret, key) for key in keys))
        for secret, keys in zip(secrets, groups, strict=True)
    )
    batch = build_batch(rows, base_offset=40, leader_epoch=5, compression=codec)
    keys = frozenset().union(*groups)
    assert search(DigestSelector(digests), batch) == plain(batch, lambda record: record.key in keys)
    index = DigestIndex(digests)
    for key in keys:
        assert index.groups_of(key) == tuple(number for number, group in enumerate(groups) if key in group)
    other = KeyDigests(b"x" * 32, digests[0].digests)
    assert DigestIndex([other]).groups_of(next(iter(groups[0]))) == (), "another secret"


@given(ROWS, CODECS, st.sampled_from([b"", b"who", b"trace", b"other"]), st.none() | st.sampled_from([b"", b"x"]))
def test_records_with_the_header_match(rows: list[Any], codec: Compression, name: bytes, value: bytes | None) -> None:
    """Protects the search by header: name and value belong together, and no value isn't an empty one."""
    batch = build_batch(rows, base_offset=40, leader_epoch=5, compression=codec)
    assert search(HeaderSelector(name, value), batch) == plain(batch, lambda record: (name, value) in record.headers)


@given(ROWS, CODECS, st.sets(st.integers(30, 60), min_size=1))
def test_records_at_the_offsets_match(rows: list[Any], codec: Compression, offsets: set[int]) -> None:
    """Protects exact offsets: only those that exist are found."""
    batch = build_batch(rows, base_offset=40, leader_epoch=5, compression=codec)
    selector = OffsetSelector(OffsetRanges.of_offsets(offsets).ranges())
    assert search(selector, batch) == plain(batch, lambda record: record.offset in offsets)


def test_a_key_in_a_varint_of_unusual_length_is_found() -> None:
    """Protects against a producer that writes its key's size in more bytes than needed."""
    body = b"\0\0\0" + b"\x8c\x00" + b"person" + b"\x01" + b"\0"
    record = bytes([2 * len(body)]) + body
    batch = (
        bytearray(build_batch([(1, b"x", b"", ())], base_offset=40, leader_epoch=5)[:RECORD_BATCH_OVERHEAD]) + record
    )
    header = read_batch_header(batch)
    header.batch_length = len(batch) - 12
    found = FoundRecords()
    matcher = RecordMatcher(KeySelector(frozenset([b"person"])), decompressed_bytes_max=LIMIT)
    matcher.search(header, record, found)
    assert list(found.offsets) == [40]


def test_timestamps_beyond_an_int64_wrap() -> None:
    """Protects the search from a producer with impossible timestamps."""
    batch = build_batch([(1, b"x", b"", ()), (6, b"person", b"", ())], base_offset=40, leader_epoch=5)
    header, found = read_batch_header(batch), FoundRecords()
    header.base_timestamp = 2**63 - 1
    matcher = RecordMatcher(KeySelector(frozenset([b"person"])), decompressed_bytes_max=LIMIT)
    matcher.search(header, batch[RECORD_BATCH_OVERHEAD:], found)
    assert list(found.timestamps) == [-(2**63) + 4]


def test_a_batch_is_decompressed_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the worker's memory from a small batch that becomes large, and each record of one that is allowed."""
    monkeypatch.setattr(record_search, "_ROOM_BYTES", 1_000)
    rows = [(1, b"person", bytes(20_000), ()), (1, b"person", b"x", ())]
    batch = build_batch(rows, base_offset=40, compression=Compression.ZSTD)
    small = build_batch(rows[1:], base_offset=42, compression=Compression.ZSTD)
    size = len(build_batch(rows)) - RECORD_BATCH_OVERHEAD
    person = KeySelector(frozenset([b"person"]))
    matcher, found = RecordMatcher(person, decompressed_bytes_max=size), FoundRecords()
    for each in (batch, small, batch):
        header = read_batch_header(each)
        matcher.search(header, matcher.records(header, each), found)
    assert list(found.offsets) == [40, 41, 42, 40, 41]
    medium = build_batch([(1, b"person", bytes(3_500), ())], compression=Compression.ZSTD)
    for limit, each in ((size - 1, batch), (999, batch), (4_000, batch), (3_000, medium)):
        with pytest.raises(DecompressedTooLargeError):
            RecordMatcher(person, decompressed_bytes_max=limit).records(read_batch_header(each), each)


def test_keys_of_all_lengths_are_found_by_the_compiled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the time of a search: the plain form would find them too."""
    if native.compiled is not None:
        monkeypatch.setattr(record_search, "find_keys", None)
    for length in (0, 1, 62, 63, 64, 127, 128):
        keys = [bytes(length), b"x" * length]
        batch = build_batch([(1, key, b"", ()) for key in keys], base_offset=40)
        assert [offset for offset, _, _ in search(KeySelector(frozenset(keys[:1])), batch)] == [40, 41][
            : 2 - bool(length)
        ]


def test_a_shortened_batch_keeps_the_times_of_its_records() -> None:
    """Protects a repeated erasure, which knows a record by its timestamp: the first one may be gone."""
    payload = bytearray()
    append_record(payload, 5, 2, b"person", b"v", headers=[(b"who", b"person")])
    append_record(payload, 9, 3, b"person", b"v", headers=[(b"who", b"person")])
    header = read_batch_header(build_batch([(1_000, b"x", b"", ())] * 4, base_offset=40, leader_epoch=5))
    header.record_count = 2
    batch = assemble_batch(header, bytes(payload))
    digests = KeyDigests(bytes(32), (key_digest(bytes(32), b"person"),))
    for selector in (
        KeySelector(frozenset([b"person"])),
        DigestSelector((digests,)),
        OffsetSelector((OffsetRange(0, 99),)),
        HeaderSelector(b"who", b"person"),
    ):
        assert search(selector, batch) == [(42, 1_005, 5), (43, 1_009, 5)]


def test_damaged_records_are_not_called_clean() -> None:
    """The plain form sees only damage in a batch that has the bytes of the selector."""
    batch = build_batch([(1, b"other", b"v", [(b"who", b"x"), (b"more", b"yz")])], base_offset=40)
    header = read_batch_header(batch)
    damaged = (batch[RECORD_BATCH_OVERHEAD:-1], batch[RECORD_BATCH_OVERHEAD:] + b"\0")
    names = [b"other"] if native.compiled is None else [b"other", b"person"]
    for records in damaged:
        for selector in (*(KeySelector(frozenset([name])) for name in names), HeaderSelector(b"who", b"x")):
            with pytest.raises(ProtocolError):
                RecordMatcher(selector, decompressed_bytes_max=LIMIT).search(header, records, FoundRecords())


def test_control_and_empty_batches_never_match() -> None:
    """Protects markers and erasures, which nobody may erase."""
    control = build_batch([(1, b"person", b"", ())], base_offset=40, is_control=True)
    assert search(KeySelector(frozenset([b"person"])), control) == []
    assert search(OffsetSelector((OffsetRange(0, 100),)), control) == []
    empty = read_batch_header(build_batch([(1, b"person", b"", ())], base_offset=40))
    assert has_records(empty)
    empty.record_count = 0
    assert not has_records(empty)


@given(ROWS, st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=3), st.integers(0, 5))
def test_damaged_records_are_an_error_or_match_as_they_are_read(
    rows: list[Any], changes: list[tuple[int, int]], cut: int
) -> None:
    """Protects the search from an error of another kind."""
    batch = build_batch(rows, base_offset=40, leader_epoch=5)
    records = bytearray(batch[RECORD_BATCH_OVERHEAD:])
    for position, byte in changes:
        records[position % len(records)] = byte
    for selector in (
        KeySelector(frozenset([b"a"])),
        HeaderSelector(b"who", b"x"),
        OffsetSelector((OffsetRange(0, 99),)),
    ):
        try:
            RecordMatcher(selector, decompressed_bytes_max=LIMIT).search(
                read_batch_header(batch), bytes(records[: len(records) - cut]), FoundRecords()
            )
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        (KeySelector(frozenset()), "no key"),
        (KeySelector(frozenset(b"%d" % number for number in range(KEYS_MAX + 1))), "1001 keys"),
        (KeySelector(frozenset([bytes((1 << 20) + 1)])), "1048577 bytes"),
        (HeaderSelector(bytes(1 << 20), b"secret"), "more than"),
        (OffsetSelector(()), "no offset"),
        (OffsetSelector((OffsetRange(-1, 5),)), "negative"),
        (OffsetSelector((OffsetRange(5, 4),)), "ends before"),
        (OffsetSelector(tuple(OffsetRange(each, each) for each in range(100_001))), "100001 ranges"),
        (KeySelector(frozenset(b"%d" % number for number in range(KEYS_MAX))), None),
        (KeySelector(frozenset([bytes(1 << 19), bytes([1]) * (1 << 19)])), None),
        (HeaderSelector(bytes(5), bytes((1 << 20) - 5)), None),
        (OffsetSelector(tuple(OffsetRange(each, each) for each in range(100_000))), None),
        (KeySelector(frozenset([b""])), None),
        (HeaderSelector(b"", None), None),
        (OffsetSelector((OffsetRange(0, 0),)), None),
        (DigestSelector((KeyDigests(b"secret", (b"secret",)),)), "by digests"),
    ],
)
def test_a_bad_selector_is_refused_without_its_content(selector: RecordSelector, reason: str | None) -> None:
    """Protects memory and time of the broker, and the person's key in its messages."""
    refusal = why_invalid(selector)
    assert (refusal is None) if reason is None else (refusal is not None and reason in refusal)
    assert "secret" not in repr(selector) + str(refusal)
    assert "person" not in repr(KeySelector(frozenset([b"person"])))


@pytest.mark.skipif(COMPILED is None, reason="the compiled form wasn't built")
@given(ROWS, st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=2), st.integers(0, 3))
def test_the_compiled_form_finds_the_same(rows: list[Any], changes: list[tuple[int, int]], cut: int) -> None:
    """Protects against a record that one form finds and the other misses; also in bytes that no client writes."""
    batch = build_batch(rows, base_offset=40, leader_epoch=5)
    header, damaged = read_batch_header(batch), bytearray(batch[RECORD_BATCH_OVERHEAD:])
    for position, byte in changes:
        damaged[position % len(damaged)] = byte
    records = bytes(damaged[: len(damaged) - cut])
    for selector in (KeySelector(frozenset([b"a", b"", b"person-7"])), HeaderSelector(b"who", None)):
        found: list[list[int] | None] = []
        for form in (COMPILED, None):
            native.compiled = form  # type: ignore[misc]
            columns = FoundRecords()
            try:
                RecordMatcher(selector, decompressed_bytes_max=LIMIT).search(header, records, columns)
                found.append([*columns.offsets, *columns.timestamps])
            except ProtocolError:
                found.append(None)
        plain = found[1]
        # The plain form reads no records at all if the bytes of the selector aren't there.
        assert found[0] == plain or (found[0] is None and plain == [])
