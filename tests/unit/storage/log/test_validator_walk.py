"""The walk over records: the fast forms against the plain one, with equal and different layouts, and damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.protocol.batch_building import append_record, renumber_records
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import Record, read_record
from lowtide.storage.log.validation.record_runs import RecordWalk
from lowtide.storage.log.validation.rejections import iterate_steps
from lowtide.storage.log.validation.validator import walk_records

Shape = tuple[int, bytes | None, bytes | None, int]
"""Timestamp delta, key, value, number of headers."""


def encode(shapes: list[Shape], deltas: list[int] | None = None) -> bytes:
    """The records, one after the other."""
    out = bytearray()
    for index, (timestamp, key, value, headers) in enumerate(shapes):
        append_record(out, timestamp, deltas[index] if deltas else index, key, value, headers=[(b"h", None)] * headers)
    return bytes(out)


def decode(payload: bytes, count: int) -> list[Record]:
    """The records, read one by one by the plain reader."""
    records, position = [], 0
    for _ in range(count):
        record, position = read_record(payload, position, 0, 0)
        records.append(record)
    if position != len(payload):
        raise ProtocolError("bytes follow")
    return records


def summary(records: list[Record]) -> RecordWalk:
    """The result of the walk over them, by definition."""
    times = [record.timestamp for record in records]
    return RecordWalk(
        min_timestamp_delta=min(times),
        max_timestamp_delta=max(times),
        max_timestamp_index=times.index(max(times)),
        keyless=any(record.key is None for record in records),
        in_order=[record.offset for record in records] == list(range(len(records))),
    )


TIMES = st.one_of(st.just(0), st.integers(0, 70), st.integers(-(2**62), 2**62))
FIELD = st.none() | st.binary(max_size=5) | st.integers(60, 70).map(bytes) | st.integers(8190, 8195).map(bytes)


@st.composite
def mixed(draw: st.DrawFn) -> list[Shape]:
    """Records in groups: within a group all have the same layout, with timestamps that rise, jump, or fall."""
    shapes: list[Shape] = []
    for _ in range(draw(st.integers(1, 4))):
        key, value, headers = draw(FIELD), draw(FIELD), draw(st.sampled_from([0, 0, 0, 1]))
        start, step = draw(TIMES), draw(st.sampled_from([0, 1, 1, 3, -1]))
        shapes += [(start + step * i, key, value, headers) for i in range(draw(st.integers(1, 40)))]
    return shapes


@given(shapes=mixed())
def test_the_walk_returns_what_the_records_have(shapes: list[Shape]) -> None:
    """Protects the column-wise check and the inline varints against the plain reader."""
    payload = encode(shapes)
    expected = summary(decode(payload, len(shapes)))
    assert walk_records(payload, len(shapes)) == expected
    assert walk_records(memoryview(bytearray(payload)), len(shapes)) == expected
    steps = list(iterate_steps(payload, len(shapes)))
    assert [(step.timestamp_delta, step.offset_delta) for step in steps] == [
        (shape[0], i) for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize(
    "step",
    [
        lambda i: 0,
        lambda i: i,
        lambda i: i // 7,
        lambda i: -i,
        lambda i: i % 50,
        lambda i: 5000 - i,
        lambda i: 99 - i % 33,
    ],
)
@pytest.mark.parametrize("key", [None, b"key"])
def test_long_runs_of_equal_sizes(step: Callable[[int], int], key: bytes | None) -> None:
    """Protects runs across the widths of offset and timestamp deltas: 64, 8192, and more than two bytes of offset."""
    shapes: list[Shape] = [(step(i), key, b"value", 0) for i in range(9000)]
    payload = encode(shapes)
    assert walk_records(payload, len(shapes)) == summary(decode(payload, len(shapes)))


@pytest.mark.parametrize("later", [-60, -1, 63])
def test_a_run_takes_no_timestamps_from_behind_its_end(later: int) -> None:
    """Protects the max timestamp: a negative delta at the end of a run of equal records is not read as positive."""
    shapes: list[Shape] = [(0, b"k", b"v", 0)] * 20 + [(-7, b"k", b"v", 0)] + [(later, b"k", b"v", 0)] * 20
    assert walk_records(encode(shapes), 41) == summary(decode(encode(shapes), 41))


@pytest.mark.parametrize("at", [0, 5, 63, 64, 70, 199])
@pytest.mark.parametrize("delta", [-1, 0, 65, 63, 300])
def test_one_wrong_offset_delta_in_a_run_is_noticed(at: int, delta: int) -> None:
    """Protects `in_order` in runs: a single wrong delta must be detected."""
    deltas = list(range(200))
    deltas[at] = delta
    payload = encode([(0, b"k", b"v", 0)] * 200, deltas)
    assert walk_records(payload, 200).in_order is (delta == at)


@pytest.mark.parametrize("at", [0, 1, 30, 99])
def test_one_missing_key_in_a_run_is_noticed(at: int) -> None:
    """Protects compacted topics: a null key in a record of the same size as its neighbours must be detected."""
    shapes: list[Shape] = [(0, b"k", b"v", 0)] * 100
    shapes[at] = (0, None, b"vv", 0)
    assert walk_records(encode(shapes), 100).keyless
    assert not walk_records(encode([(0, b"k", b"v", 0)] * 100), 100).keyless


@given(shapes=mixed(), place=st.integers(0, 10**6), byte=st.integers(0, 255))
@example(shapes=[(0, b"k", b"v", 0)] * 30, place=5, byte=3)
def test_the_walk_and_the_plain_reader_refuse_the_same(shapes: list[Shape], place: int, byte: int) -> None:
    """Protects readers: a client can read every batch that the walk accepts, and no valid batch is refused."""
    damaged = bytearray(encode(shapes))
    damaged[place % len(damaged)] = byte
    try:
        expected = summary(decode(bytes(damaged), len(shapes)))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            walk_records(damaged, len(shapes))
    else:
        assert walk_records(damaged, len(shapes)) == expected


@given(byte=st.integers(0, 255), place=st.integers(0, 10**6))
def test_damage_within_a_run_is_judged_like_elsewhere(byte: int, place: int) -> None:
    """Protects the column-wise check in particular: one byte of a table of equal records is wrong."""
    damaged = bytearray(encode([(i // 3, b"key", b"value", 0) for i in range(90)]))
    damaged[place % len(damaged)] = byte
    try:
        expected = summary(decode(bytes(damaged), 90))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            walk_records(damaged, 90)
    else:
        assert walk_records(damaged, 90) == expected


@pytest.mark.parametrize("field", [b"\x03x", b"\x05xx"])
@pytest.mark.parametrize("as_key", [True, False])
def test_lengths_below_null_are_refused_even_in_runs(field: bytes, as_key: bool) -> None:
    """Protects against a length of -2 or -3 followed by bytes that make the record's own length fit."""
    body = b"\0\0%c" + (field + b"\x01" if as_key else b"\x01" + field) + b"\0"
    payload = b"".join(bytes([2 * len(body % 0)]) + body % (2 * i) for i in range(30))
    with pytest.raises(ProtocolError, match="length"):
        walk_records(payload, 30)


def test_every_cut_is_refused() -> None:
    """Protects against records that end early, at every byte, in runs and out of them."""
    payload = encode([(0, b"k", b"v", 0)] * 20 + [(5, None, b"value", 2)] * 2)
    for size in range(len(payload)):
        with pytest.raises(ProtocolError):
            walk_records(payload[:size], 22)


@pytest.mark.parametrize("count", [1, 19, 21, 2**31 - 1])
def test_a_wrong_count_is_refused(count: int) -> None:
    """Protects readers from too few or too many records; a huge count costs no time."""
    with pytest.raises(ProtocolError):
        walk_records(encode([(0, b"k", b"v", 0)] * 20), count)


@given(shapes=mixed(), data=st.data())
def test_renumbering_changes_offsets_only(shapes: list[Shape], data: st.DataObject) -> None:
    """Protects the records of a batch that is rewritten: every other field stays."""
    deltas = data.draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=len(shapes), max_size=len(shapes)))
    assert renumber_records(encode(shapes, deltas), len(shapes)) == encode(shapes)
