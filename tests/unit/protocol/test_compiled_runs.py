"""Runs of small Produce requests as the compiled module reads and answers them, against the same requests read one by one."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol import native
from tests.examples import examples

from .columns import needs_compiled
from .test_compiled_produce import (
    BEFORE,
    CHANGES,
    IDS,
    INT64,
    NAMES,
    NOW_MS,
    RECORDS,
    SMALL_BATCH_BYTES,
    VERSIONS,
    batch_of,
    compiled_read,
    request_of,
    transactional,
)

SHORT = settings(deadline=None, max_examples=int(os.environ.get("WALK_EXAMPLES", examples(100))))
RUN_MAX, FRAME_MAX = 16, 1 << 20
INT32 = st.integers(-(2**31), 2**31 - 1)


def framed(*requests: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(request)) + request for request in requests)


def read_run(content: bytes, frame_max: int = FRAME_MAX) -> native.ProduceRun | None:
    """Of frames behind other bytes; places are counted from the first frame."""
    assert native.compiled is not None
    read = native.compiled.read_run(memoryview(BEFORE + content), len(BEFORE), len(BEFORE) + len(content), frame_max)
    if read is None:
        return None
    rows = tuple((start - len(BEFORE), crc, fields) for start, crc, fields in read[10])
    return (*read[:3], read[3] - len(BEFORE), *read[4:10], rows, read[11])


def frames_of(content: bytes) -> list[tuple[int, bytes]]:
    """Whole frames, and where their requests begin."""
    found, at = [], 0
    while len(content) - at >= 4:
        (size,) = struct.unpack_from(">i", content, at)
        if not 0 <= size <= len(content) - at - 4:
            break
        found.append((at + 4, content[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def one_by_one(content: bytes) -> native.ProduceRun | None:
    """The same, by the definition: the requests that `read_produce` reads, as far as they are alike and follow each other."""
    alike: list[tuple[int, Any]] = []
    for start, frame in frames_of(content)[:RUN_MAX]:
        read = compiled_read(frame)
        if read is None or read[10] is not None:
            break
        fields = read[9]
        if alike:
            first, before = alike[0][1], alike[-1][1][9]
            is_behind = fields[6] < 0 and before[6] < 0
            if fields[6] >= 0:
                is_behind = fields[6:8] == before[6:8] and fields[7] >= 0 and fields[8] == before[8] + before[2]
            if not is_behind or (read[0], *read[2:6]) != (first[0], *first[2:6]):
                break
        alike.append((start, read))
    if len(alike) < 2:
        return None
    reads = [read for _, read in alike]
    rows = tuple((start + read[6], read[7], read[9]) for start, read in alike)
    sizes = [read[9][0] for read in reads]
    times = min(read[8] for read in reads), max(read[9][3] for read in reads)
    stop = alike[-1][0] + len(frames_of(content)[len(alike) - 1][1])
    version, acks, topic, partition = reads[0][0], reads[0][2], reads[0][4], reads[0][5]
    ids = tuple(read[1] for read in reads)
    return version, ids, acks, stop, topic, partition, *times, max(sizes), sum(sizes), rows, reads[0][3]


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """Some that are alike, of which one may not be."""
    version, count = draw(VERSIONS), draw(st.integers(1, 4) | st.integers(14, 18))
    producer = draw(
        st.none() | st.tuples(st.integers(0, 3), st.sampled_from([0, 1, -1]), st.sampled_from([0, 5, 2**31 - 6]))
    )
    odd = draw(st.integers(0, count))
    way = draw(st.sampled_from(["version", "partition", "topic", "acks", "producer", "gap", "large", "transaction"]))
    records, made, sequence = draw(RECORDS), [], 0
    for number in range(count):
        is_odd = number == odd
        known = None
        if producer is not None:
            base = producer[2] + sequence + (is_odd and way == "gap")
            known = (producer[0] + (is_odd and way == "producer"), producer[1], min(base, 2**31 - 1))
            sequence += len(records)
        values = [(NOW_MS, None, bytes(SMALL_BATCH_BYTES), ())] if is_odd and way == "large" else records
        used = 3 + (version - 2) % 11 if is_odd and way == "version" else version
        fields: dict[str, Any] = {
            "acks": -1 if is_odd and way == "acks" else 1,
            "timeout_ms": 2 if is_odd and way == "timeout" else 1,
            "partition": int(is_odd and way == "partition"),
            "topic": "u" if is_odd and way == "topic" else "t",
            "topic_id": (b"u" if is_odd and way == "topic" else b"t") * 16,
            "transactional_id": "x" if is_odd and way == "transaction" else None,
        }
        made.append(request_of(used, transactional(values, known, fields["transactional_id"]), **fields))
    return made


@needs_compiled
@SHORT
@given(requests(), CHANGES, st.just(0) | st.integers(0, 200))
def test_runs_are_what_is_read_one_by_one(made: list[bytes], changes: list[tuple[int, int]], cut: int) -> None:
    """Whole, damaged and cut."""
    whole = framed(*made)
    assert read_run(whole) == one_by_one(whole)
    damaged = bytearray(whole)
    for position, byte in changes:
        damaged[position * 7 % len(damaged)] = byte
    content = bytes(damaged[: len(damaged) - cut])
    assert read_run(content) == one_by_one(content)


@needs_compiled
def test_no_more_requests_are_read_than_one_pass_may_take() -> None:
    run = read_run(framed(*[request_of(9, batch_of([(NOW_MS, None, b"x", ())]))] * 40))
    assert run is not None
    assert len(run[1]) == len(run[10]) == RUN_MAX


@needs_compiled
def test_a_frame_above_the_limit_ends_the_run() -> None:
    small, large = (request_of(9, batch_of([(NOW_MS, None, bytes(size), ())])) for size in (10, 100))
    run = read_run(framed(small, small, large, small), len(small))
    assert run is not None
    assert len(run[1]) == 2
    assert read_run(framed(small, large), len(small)) is None


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (b"", 0, 1, 9),
        (b"abc", 2, 1, 9),
        (b"abc", -1, 2, 9),
        (b"abc", 0, 4, 9),
        ("abc", 0, 3, 9),
        (b"abc", None, 3, 9),
        (b"abc", 0, 3, -1),
    ],
)
def test_places_beyond_the_buffer_are_not_read(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.read_run(*arguments) is None


@needs_compiled
@SHORT
@given(VERSIONS, st.lists(st.tuples(INT32, INT64), max_size=RUN_MAX), NAMES, IDS, INT32, INT64, INT64)
def test_the_answers_of_a_run_are_those_of_its_requests(
    version: int,
    answered: list[tuple[int, int]],
    name: str,
    topic_id: bytes,
    partition: int,
    time_ms: int,
    log_start: int,
) -> None:
    assert native.compiled is not None
    topic, write = topic_id if version >= 13 else name, native.compiled.produce_answer
    ids, offsets = tuple(each for each, _ in answered), tuple(offset for _, offset in answered)
    singly = [write(version, each, topic, partition, offset, time_ms, log_start) for each, offset in answered]
    assert None not in singly
    together = native.compiled.run_answer(version, ids, topic, partition, offsets, time_ms, log_start)
    assert together == b"".join(each for each in singly if each is not None)


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (2, (1, 2), "t", 0, (0, 1), 0, 0),
        (9, (1, 2), "t", 0, (0,), 0, 0),
        (9, [1, 2], "t", 0, [0, 1], 0, 0),
        (9, (1, 2**31), "t", 0, (0, 1), 0, 0),
        (9, (1, 2), "t", 0, (0, 2**63), 0, 0),
        (9, (1, 2), "t", 0, (0, None), 0, 0),
        (13, (1, 2), "t", 0, (0, 1), 0, 0),
        (9, (1,) * 65, "t", 0, (1,) * 65, 0, 0),
    ],
)
def test_answers_that_no_run_could_have_are_left_to_the_plain_form(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.run_answer(*arguments) is None
