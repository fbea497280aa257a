"""Small Produce requests of several connections as the compiled module reads them, against the same requests read one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol import native

from .columns import needs_compiled
from .test_compiled_produce import BEFORE, CHANGES, NOW_MS, SMALL_BATCH_BYTES, batch_of, compiled_read, request_of
from .test_compiled_runs import SHORT, framed, frames_of

ROUND_MAX = 64
ONE = [(NOW_MS, None, b"x", ())]


def read_round(content: bytes) -> list[native.ProduceGroup] | None:
    """Of frames behind other bytes; places are counted from the first frame."""
    assert native.compiled is not None
    read = native.compiled.read_round(memoryview(BEFORE + content), len(BEFORE), len(BEFORE) + len(content))
    if read is None:
        return None
    return [
        (*group[:10], tuple((start - len(BEFORE), crc, fields) for start, crc, fields in group[10]), group[11])
        for group in read
    ]


def one_by_one(content: bytes) -> list[native.ProduceGroup] | None:
    """The same, by the definition: the requests that `read_produce` reads, in the order of the first of each kind."""
    kinds: dict[Any, list[tuple[int, int, Any]]] = {}
    for place, (start, frame) in enumerate(frames_of(content)[:ROUND_MAX]):
        read = compiled_read(frame)
        if read is None or read[10] is not None:
            continue
        alike = kinds.setdefault((read[0], *read[2:6]), [])
        producer_id = read[9][6]
        if producer_id < 0 or producer_id not in [other[9][6] for _, _, other in alike]:
            alike.append((place, start, read))
    return [group_of(alike) for alike in kinds.values() if len(alike) > 1] or None


def group_of(alike: list[tuple[int, int, Any]]) -> native.ProduceGroup:
    reads = [read for _, _, read in alike]
    first, sizes = reads[0], [read[9][0] for read in reads]
    return (
        first[0],
        tuple(read[1] for read in reads),
        first[2],
        tuple(place for place, _, _ in alike),
        first[4],
        first[5],
        min(read[8] for read in reads),
        max(read[9][3] for read in reads),
        max(sizes),
        sum(sizes),
        tuple((start + read[6], read[7], read[9]) for _, start, read in alike),
        first[3],
    )


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """Of few versions, topics, partitions and producers; some are not small."""
    made = []
    for _ in range(draw(st.integers(1, 12))):
        version, partition = draw(st.sampled_from([3, 9, 13])), draw(st.integers(0, 1))
        topic, acks, producer_id = (
            draw(st.sampled_from("tu")),
            draw(st.sampled_from([1, 1, -1])),
            draw(st.sampled_from([None, None, 0, 1, 2])),
        )
        records = [(NOW_MS, None, bytes(SMALL_BATCH_BYTES), ())] if draw(st.integers(0, 9)) == 0 else ONE
        known = None if producer_id is None else (producer_id, draw(st.integers(0, 1)), draw(st.integers(0, 2)))
        fields: dict[str, Any] = {"acks": acks, "partition": partition, "topic": topic, "topic_id": topic.encode() * 16}
        made.append(request_of(version, batch_of(records, known), **fields))
    return made


@needs_compiled
@SHORT
@given(requests(), CHANGES, st.just(0) | st.integers(0, 200))
def test_groups_are_what_is_read_one_by_one(made: list[bytes], changes: list[tuple[int, int]], cut: int) -> None:
    """Whole, damaged and cut."""
    whole = framed(*made)
    assert read_round(whole) == one_by_one(whole)
    damaged = bytearray(whole)
    for position, byte in changes:
        damaged[position * 7 % len(damaged)] = byte
    content = bytes(damaged[: len(damaged) - cut])
    assert read_round(content) == one_by_one(content)


@needs_compiled
def test_no_more_requests_are_read_than_a_round_has() -> None:
    groups = read_round(framed(*[request_of(9, batch_of(ONE))] * 70))
    assert groups is not None
    assert [group[3] for group in groups] == [tuple(range(ROUND_MAX))]


@needs_compiled
def test_two_requests_of_an_idempotent_producer_are_in_no_group_together() -> None:
    """A log that takes either might not take both: which one is first isn't known."""
    made = [request_of(9, batch_of(ONE, (producer_id, 0, 0))) for producer_id in (5, 6, 5)]
    groups = read_round(framed(*made))
    assert groups is not None
    assert [group[3] for group in groups] == [(0, 1)]
    assert read_round(framed(made[0], made[2])) is None


@needs_compiled
@pytest.mark.parametrize(
    "arguments", [(b"", 0, 1), (b"abc", 2, 1), (b"abc", -1, 2), (b"abc", 0, 4), ("abc", 0, 3), (b"abc", None, 3)]
)
def test_places_beyond_the_buffer_are_not_read(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.read_round(*arguments) is None
