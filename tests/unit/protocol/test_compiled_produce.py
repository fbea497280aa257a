"""Small Produce requests as the compiled module reads and answers them, against the plain codec and the validator."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide.broker.partitions.produce.joint_produce import TYPES, ProduceGroup
from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import plain_codec
from lowtide.protocol.compression import Compression
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce, walk_records
from tests.examples import examples

from .columns import needs_compiled

LONG = settings(deadline=None, max_examples=int(os.environ.get("WALK_EXAMPLES", examples(300))))
NOW_MS, BEFORE = 1_700_000_000_000, b"bytes before"
SMALL_BATCH_BYTES, FRAME_MAX = 64 << 10, 1 << 20
OF_ONE_MAX, OF_SEVERAL_MAX = 16, 64
RULES = ValidationRules(timestamp_after_max_ms=2**63 - 1 - NOW_MS)
VERSIONS = st.integers(3, 13)
NAMES = st.text("abcxyz.-_09", min_size=1, max_size=30) | st.sampled_from(["t" * 127, "t" * 128, "t" * 249])
IDS = st.binary(min_size=16, max_size=16).filter(any)
FIELDS = st.none() | st.binary(max_size=20)
TIMES = st.integers(NOW_MS - 1000, NOW_MS + 1000)
HEADERS = st.just(()) | st.just(((b"name", b"content"),))
RECORDS = st.lists(st.tuples(TIMES, FIELDS, FIELDS, HEADERS), min_size=1, max_size=4)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
BYTES = st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])
CHANGES = st.lists(st.tuples(st.integers(0, 4096), BYTES), max_size=3)
ONE: list[Any] = [(NOW_MS, None, b"x", ())]


def batch_of(records: list[Any], producer: tuple[int, int, int] | None = None, **fields: Any) -> bytes:
    if producer is not None:
        fields.update(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    return bytes(build_batch(records, **fields))


def request_of(
    version: int, batch: bytes | None, *, topic: str = "t", topic_id: bytes = b"i" * 16, **fields: Any
) -> bytes:
    """Returns a request without the length before it."""
    has_id = version >= 13
    rows = [PartitionProduceData(index=fields.pop("partition", 0), records=batch)] * fields.pop("rows", 1)
    data = TopicProduceData(
        name="" if has_id else topic, topic_id=topic_id if has_id else ZERO_TOPIC_ID, partition_data=rows
    )
    client_id, topics = fields.pop("client_id", "c"), fields.pop("topics", 1)
    request = ProduceRequest(**({"acks": 1, "timeout_ms": 1000, "topic_data": [data] * topics} | fields))
    return request_header(0, version, 7, client_id) + plain_codec(ProduceRequest, version).encode(request)


def framed(*requests: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(request)) + request for request in requests)


def read(content: bytes, *, is_one: bool, frame_max: int = FRAME_MAX) -> list[ProduceGroup]:
    """Returns what is read of frames behind other bytes; places are counted from the first frame."""
    assert native.compiled is not None
    buffer, start = memoryview(bytearray(BEFORE + content)), len(BEFORE)
    groups = native.compiled.read_produce(TYPES, buffer, start, start + len(content), frame_max, is_one)
    assert groups is not None
    for group in groups:
        group.stop -= start
        for received in group.batches:
            received.start -= start
    return groups


class Plain:
    """A request as the plain codec and the validator read it."""

    def __init__(self, content: bytes, start: int, stop: int) -> None:
        """Errors: ProtocolError, or AssertionError for one that is not small."""
        key, self.version, self.correlation_id = struct.unpack_from(">hhi", content, start)
        assert key == 0
        assert 3 <= self.version <= 13
        self.stop = stop
        codec, buffer = plain_codec(ProduceRequest, self.version), memoryview(content)
        self.request, client_id = codec.read_request(buffer, start, stop, 1 << 30, self.version >= 9)
        (topic,) = self.request.topic_data
        (row,) = topic.partition_data
        assert isinstance(row.records, memoryview)
        records = bytes(row.records)
        self.topic, self.partition = topic.topic_id if self.version >= 13 else topic.name, row.index
        texts = (client_id or "", topic.name, self.request.transactional_id or "")
        assert all(text.isascii() for text in texts)
        assert self.request.acks in (1, -1)
        self.start = content.index(records, start, stop)
        self.crc = struct.unpack_from(">I", records, 17)[0]
        right = bytearray(records)  # The checksum is compared by the caller.
        struct.pack_into(">I", right, 17, crc32c(right[21:]))
        batch = validate_produce(bytes(right), RULES, NOW_MS)
        assert isinstance(batch, ValidatedBatch)
        self.batch = batch
        batch.tail = ()
        walked = walk_records(records[61:], batch.record_count)
        self.earliest = struct.unpack_from(">q", records, 27)[0] + walked.min_timestamp_delta

    @property
    def kind(self) -> Any:
        return self.version, self.request.acks, self.request.timeout_ms, self.topic, self.partition


def frames_of(content: bytes, frame_max: int, most: int) -> list[tuple[int, int]]:
    """Returns where the whole frames begin and end, without their lengths."""
    found, at = [], 0
    while len(content) - at > 4 and len(found) < most:
        (size,) = struct.unpack_from(">i", content, at)
        if not 0 <= size <= min(len(content) - at - 4, frame_max):
            break
        found.append((at + 4, at + 4 + size))
        at += 4 + size
    return found


def check(groups: list[ProduceGroup], content: bytes, *, is_one: bool, frame_max: int = FRAME_MAX) -> None:
    """Each request in a group is one that the plain form accepts, with these values, and groups have what belongs
    together."""
    frames = frames_of(content, frame_max, OF_ONE_MAX if is_one else OF_SEVERAL_MAX)
    seen = list[int]()
    for group in groups:
        plain = [Plain(content, *frames[place]) for place in group.places]
        seen += group.places
        assert list(group.places) == sorted(group.places)
        assert {each.kind for each in plain} == {
            (group.version, group.acks, group.timeout_ms, group.topic, group.partition)
        }
        assert [each.correlation_id for each in plain] == list(group.correlation_ids)
        got = [(received.batch, received.start, received.crc) for received in group.batches]
        assert got == [(each.batch, each.start, each.crc) for each in plain]
        assert group.transactional_id == plain[0].request.transactional_id
        assert group.transactional_id is None or (len(plain) == 1 and plain[0].batch.producer_id >= 0)
        assert (group.earliest, group.latest) == (
            min(each.earliest for each in plain),
            max(each.batch.max_timestamp for each in plain),
        )
        sizes = [each.batch.size_bytes for each in plain]
        assert (group.largest_bytes, group.size_bytes, group.stop) == (max(sizes), sum(sizes), plain[-1].stop)
        last: dict[int, ValidatedBatch] = {}
        for received in group.batches:
            batch = received.batch
            before = last.get(batch.producer_id)
            assert received.begins == (before is None or batch.producer_id < 0)
            if before is not None and batch.producer_id >= 0:
                assert batch.producer_epoch == before.producer_epoch
                assert batch.base_sequence == before.base_sequence + before.record_count
            last[batch.producer_id] = batch
    assert len(set(seen)) == len(seen)
    if is_one:
        assert seen == list(range(len(seen)))
        assert len(groups) <= 1


@needs_compiled
@LONG
@given(
    VERSIONS,
    RECORDS,
    st.none() | st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 10)),
    st.fixed_dictionaries(
        {
            "topic": NAMES,
            "topic_id": IDS,
            "client_id": st.none() | NAMES,
            "acks": st.sampled_from([1, -1]),
            "timeout_ms": INT32,
            "partition": INT32,
            "transactional_id": st.none() | NAMES,
        }
    ),
)
def test_every_usual_request_is_read(
    version: int, records: list[Any], producer: tuple[int, int, int] | None, fields: dict[str, Any]
) -> None:
    is_transactional = fields["transactional_id"] is not None
    known = producer or ((7, 0, 0) if is_transactional else None)
    content = framed(request_of(version, batch_of(records, known, is_transactional=is_transactional), **fields))
    for is_one in (True, False):
        groups = read(content, is_one=is_one)
        assert len(groups) == 1
        check(groups, content, is_one=is_one)


@st.composite
def several(draw: st.DrawFn) -> list[bytes]:
    """Requests of a few kinds and producers: many are alike, with sequences that follow, and some are unusual."""
    made, sequences = [], dict[int, int]()
    is_wild, version = draw(st.booleans()), draw(VERSIONS)
    for _ in range(draw(st.integers(1, 8) | st.integers(14, 20))):
        chance = draw(st.integers(0, 19 if is_wild else 60))
        producer_id = draw(st.sampled_from([None, 0, 1] if is_wild else [None, 0]))
        records, known, fields = draw(RECORDS), None, dict[str, Any]()
        if producer_id is not None:
            sequence = sequences.get(producer_id, 2**31 - 9 if chance == 6 else 0)
            sequences[producer_id] = sequence + len(records)
            known = producer_id, int(chance == 5), min(sequence + (chance == 4), 2**31 - 1)
        if chance == 0:
            records = [(NOW_MS, None, bytes(SMALL_BATCH_BYTES), ())]
        if chance == 1:
            fields["transactional_id"], known = "x", (9, 0, 0)
        if chance in (2, 3):
            fields |= {"acks": -1} if chance == 2 else {"partition": 1, "topic": "u", "topic_id": b"u" * 16}
        batch = batch_of(records, known, is_transactional=chance == 1)
        made.append(request_of(3 + (version - 2) % 11 if chance == 7 else version, batch, **fields))
    return made


@needs_compiled
@LONG
@given(several(), CHANGES, st.just(0) | st.integers(0, 300), st.booleans(), st.sampled_from([FRAME_MAX, 150]))
@example([request_of(3, batch_of(ONE))], [], 1, True, FRAME_MAX)
def test_what_is_read_the_plain_form_reads_alike(
    made: list[bytes],
    changes: list[tuple[int, int]],
    cut: int,
    is_one: bool,
    frame_max: int,
) -> None:
    """Whole, damaged and cut: of one connection or of several."""
    content = bytearray(framed(*made))
    for position, byte in changes:
        content[position * 7 % len(content)] = byte
    damaged = bytes(content[: max(len(content) - cut, 0)])
    groups = read(damaged, is_one=is_one, frame_max=frame_max)
    check(groups, damaged, is_one=is_one, frame_max=frame_max)
    if damaged == framed(*made) and frame_max == FRAME_MAX and not is_one:
        assert sum(len(group.places) for group in groups) >= len(
            {request[2:4] for request in made if len(request) < 9000}
        )


UNUSUAL: dict[str, bytes] = {
    "acks=0": request_of(9, batch_of(ONE), acks=0),
    "acks=2": request_of(9, batch_of(ONE), acks=2),
    "transactional id": request_of(9, batch_of(ONE), transactional_id="x"),
    "empty transactional id": request_of(3, batch_of(ONE), transactional_id=""),
    "of a transaction without an id": request_of(9, batch_of(ONE, (7, 0, 0), is_transactional=True)),
    "without a producer": request_of(9, batch_of(ONE, is_transactional=True), transactional_id="x"),
    "marker": request_of(9, batch_of(ONE, (7, 0, 0), is_transactional=True, is_control=True), transactional_id="x"),
    "two topics": request_of(9, batch_of(ONE), topics=2),
    "no topic": request_of(3, batch_of(ONE), topics=0),
    "two partitions": request_of(9, batch_of(ONE), rows=2),
    "no records": request_of(9, None),
    "empty records": request_of(3, b""),
    "two batches": request_of(9, batch_of(ONE) * 2),
    "compressed": request_of(9, batch_of([(NOW_MS, None, b"x" * 100, ())], compression=Compression.LZ4)),
    "large": request_of(9, batch_of([(NOW_MS, None, bytes(SMALL_BATCH_BYTES), ())])),
    "topic beyond ASCII": request_of(9, batch_of(ONE), topic="straße"),
    "client id beyond ASCII": request_of(9, batch_of(ONE), client_id="straße"),
    "nameless": request_of(3, batch_of(ONE), topic=""),
    "no topic id": request_of(13, batch_of(ONE), topic_id=ZERO_TOPIC_ID),
    "more bytes": request_of(3, batch_of(ONE)) + b"\0",
    "another API": b"\0\1" + request_of(9, batch_of(ONE))[2:],
    "an old version": struct.pack(">hhih", 0, 2, 1, -1) + bytes(40),
    "nothing": b"",
}


@needs_compiled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_plain_form(name: str) -> None:
    """Also between usual requests: of one connection nothing behind it is read."""
    one = request_of(9, batch_of(ONE))
    content = framed(one, UNUSUAL[name], one)
    assert read(framed(UNUSUAL[name]), is_one=True) == []
    assert [group.places for group in read(content, is_one=True)] == [(0,)]
    assert [group.places for group in read(content, is_one=False)] == [(0, 2)]


@needs_compiled
def test_requests_and_their_batches_are_bounded() -> None:
    one, many = request_of(9, batch_of(ONE)), [request_of(9, batch_of(ONE))] * 70
    assert [len(group.places) for group in read(framed(*many), is_one=True)] == [OF_ONE_MAX]
    assert [len(group.places) for group in read(framed(*many), is_one=False)] == [OF_SEVERAL_MAX]
    larger = request_of(9, batch_of([(NOW_MS, None, bytes(100), ())]))
    assert [group.places for group in read(framed(one, larger, one), is_one=True, frame_max=len(one))] == [(0,)]
    overhead = len(batch_of([(NOW_MS, None, bytes(SMALL_BATCH_BYTES - 100), ())])) - (SMALL_BATCH_BYTES - 100)
    for more, is_read in ((0, True), (1, False)):
        batch = batch_of([(NOW_MS, None, bytes(SMALL_BATCH_BYTES - overhead + more), ())])
        assert bool(read(framed(request_of(9, batch)), is_one=True)) == is_read


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
        (b"abc", 0, 2**70, 9),
        (b"abc", 0, 3, -1),
    ],
)
def test_places_beyond_the_buffer_are_not_read(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.read_produce(TYPES, *arguments, True) is None  # type: ignore[call-arg]


@needs_compiled
@LONG
@given(VERSIONS, st.lists(st.tuples(INT32, INT64), max_size=OF_ONE_MAX), NAMES, IDS, INT32, INT64, INT64)
def test_answers_are_those_of_the_plain_codec(
    version: int,
    answered: list[tuple[int, int]],
    name: str,
    topic_id: bytes,
    partition: int,
    time_ms: int,
    log_start: int,
) -> None:
    assert native.compiled is not None
    has_id, plain = version >= 13, []
    for correlation_id, base_offset in answered:
        row = PartitionProduceResponse(
            index=partition,
            error_code=0,
            base_offset=base_offset,
            log_append_time_ms=time_ms,
            log_start_offset=log_start,
        )
        topic = TopicProduceResponse(
            name="" if has_id else name, topic_id=topic_id if has_id else ZERO_TOPIC_ID, partition_responses=[row]
        )
        response = ProduceResponse(responses=[topic])
        plain.append(
            b"".join(plain_codec(ProduceResponse, version).encode_frame(correlation_id, response, version >= 9))
        )
    ids, offsets = tuple(each for each, _ in answered), tuple(offset for _, offset in answered)
    key = topic_id if has_id else name
    assert native.compiled.produce_answers(version, ids, key, partition, offsets, time_ms, log_start) == plain


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (2, (1,), "t", 0, (0,), 0, 0),
        (14, (1,), b"i" * 16, 0, (0,), 0, 0),
        (13, (1,), b"i" * 15, 0, (0,), 0, 0),
        (13, (1,), "t", 0, (0,), 0, 0),
        (9, (1,), b"t", 0, (0,), 0, 0),
        (9, (1,), "t" * 40_000, 0, (0,), 0, 0),
        (9, (1,), "\ud800", 0, (0,), 0, 0),
        (9, (2**31,), "t", 0, (0,), 0, 0),
        (9, (1, 2), "t", 0, (0,), 0, 0),
        (9, [1], "t", 0, [0], 0, 0),
        (9, (1,), "t", 2**31, (0,), 0, 0),
        (9, (1,), "t", 0, (2**63,), 0, 0),
        (9, (1, 2), "t", 0, (0, None), 0, 0),
        (9, (1,), "t", 0, (0,), None, 0),
    ],
)
def test_answers_that_no_request_could_have_are_refused(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.produce_answers(*arguments) is None
