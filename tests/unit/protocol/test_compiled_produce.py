"""Small Produce requests as the compiled module reads and answers them, against the plain form: the decoder, the validator, the encoder.

For any bytes: what the compiled form reads the plain form accepts, with the same fields. WALK_EXAMPLES=100000 runs them longer.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import read_client_id, read_request_header, request_header, response_writer
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
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.examples import examples

from .columns import needs_compiled

LONG = settings(deadline=None, max_examples=int(os.environ.get("WALK_EXAMPLES", examples(300))))
NOW_MS, BEFORE = 1_700_000_000_000, b"bytes before"
SMALL_BATCH_BYTES = 64 << 10
VERSIONS = st.integers(3, 13)
NAMES = st.text("abcxyz.-_09", min_size=1, max_size=30) | st.sampled_from(["t" * 127, "t" * 128, "t" * 249])
IDS = st.binary(min_size=16, max_size=16)
TIMES = st.integers(NOW_MS - 1000, NOW_MS + 1000)
FIELDS = st.none() | st.binary(max_size=20)
RECORDS = st.lists(
    st.tuples(TIMES, FIELDS, FIELDS, st.just(()) | st.just(((b"name", b"content"),))), min_size=1, max_size=4
)
INT64 = st.integers(-(2**63), 2**63 - 1)
PRODUCERS = st.none() | st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 10))
TRANSACTIONS = st.none() | NAMES
"""Transactional ids. A batch that has none isn't transactional, and one that has one has a producer: see `transactional`."""
CHANGES = st.lists(
    st.tuples(st.integers(0, 4096), st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=3
)


def batch_of(records: list[Any], producer: tuple[int, int, int] | None = None, **fields: Any) -> bytes:
    if producer is not None:
        fields.update(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    return bytes(build_batch(records, **fields))


def transactional(records: list[Any], producer: tuple[int, int, int] | None, transactional_id: str | None) -> bytes:
    """The batch of a request with that transactional id."""
    if transactional_id is None:
        return batch_of(records, producer)
    return batch_of(records, producer or (7, 0, 0), is_transactional=True)


def request_of(
    version: int, batch: bytes | None, *, topic: str = "t", topic_id: bytes = b"i" * 16, **fields: Any
) -> bytes:
    """A request, without the length before it."""
    has_id = version >= 13
    rows = [PartitionProduceData(index=fields.pop("partition", 0), records=batch)] * fields.pop("rows", 1)
    data = TopicProduceData(
        name="" if has_id else topic, topic_id=topic_id if has_id else ZERO_TOPIC_ID, partition_data=rows
    )
    client_id, topics = fields.pop("client_id", "c"), fields.pop("topics", 1)
    request = ProduceRequest(**({"acks": 1, "timeout_ms": 1000, "topic_data": [data] * topics} | fields))
    return request_header(0, version, 7, client_id) + codec_for(ProduceRequest, version).encode(request)


def compiled_read(frame: bytes) -> native.SmallProduce | None:
    """What the compiled form reads, where the request lies behind other bytes; its place is counted from its own beginning."""
    assert native.compiled is not None
    buffer = memoryview(bytearray(BEFORE + frame + BEFORE))
    read = native.compiled.read_produce(buffer, len(BEFORE), len(BEFORE) + len(frame))
    return read if read is None else (*read[:6], read[6] - len(BEFORE), *read[7:])


def plain_read(frame: bytes) -> native.SmallProduce | None:
    """The same of the plain form: None for a request that it refuses, or whose batch it would change."""
    try:
        _, version, correlation_id, _, position = read_request_header(frame, 0, len(frame))
        request = codec_for(ProduceRequest, version).decode(memoryview(frame), position, len(frame))
    except ProtocolError:
        return None
    (topic,) = request.topic_data
    (row,) = topic.partition_data
    records = bytes(row.records or b"")  # type: ignore[call-overload]
    rules = ValidationRules(timestamp_after_max_ms=2**63 - 1 - NOW_MS)
    batch = validate_produce(records, rules, NOW_MS)
    if not isinstance(batch, ValidatedBatch):
        return None
    assert batch.is_transactional == (request.transactional_id is not None)
    assert not batch.is_transactional or batch.producer_id >= 0
    assert batch.tail == (records[16:],)
    start = frame.rindex(records)
    (base_timestamp,) = struct.unpack_from(">q", records, 27)
    earliest = base_timestamp + _smallest_delta(records)
    fields = tuple(getattr(batch, name) for name in ValidatedBatch.__struct_fields__[:10])
    crc = crc32c(records[21:])
    name = topic.topic_id if version >= 13 else topic.name
    return (
        version,
        correlation_id,
        request.acks,
        request.timeout_ms,
        name,
        row.index,
        start,
        crc,
        earliest,
        (*fields, ()),
        request.transactional_id,
    )


def _smallest_delta(records: bytes) -> int:
    from lowtide.storage.log.validation.record_walk import walk_records

    return walk_records(records[61:], struct.unpack_from(">i", records, 57)[0]).min_timestamp_delta


@needs_compiled
@LONG
@given(
    VERSIONS,
    RECORDS,
    PRODUCERS,
    NAMES,
    IDS.filter(any),
    st.none() | NAMES,
    st.sampled_from([1, -1]),
    st.integers(-(2**31), 2**31 - 1),
    TRANSACTIONS,
)
def test_usual_requests_are_read_as_the_plain_form_reads_them(
    version: int,
    records: list[Any],
    producer: tuple[int, int, int] | None,
    name: str,
    topic_id: bytes,
    client_id: str | None,
    acks: int,
    partition: int,
    transactional_id: str | None,
) -> None:
    batch = transactional(records, producer, transactional_id)
    fields = {"client_id": client_id, "acks": acks, "partition": partition, "transactional_id": transactional_id}
    frame = request_of(version, batch, topic=name, topic_id=topic_id, **fields)
    read = compiled_read(frame)
    assert read is not None
    assert read == plain_read(frame)


@needs_compiled
@LONG
@given(VERSIONS, RECORDS, PRODUCERS, TRANSACTIONS, CHANGES, st.booleans(), st.just(0) | st.integers(1, 200))
@example(3, [(NOW_MS, None, None, ())], None, None, [], True, 1)
@example(3, [(NOW_MS, None, None, ())], None, "x", [], True, 0)
def test_whatever_is_read_of_damaged_requests_the_plain_form_accepts(
    version: int,
    records: list[Any],
    producer: tuple[int, int, int] | None,
    transactional_id: str | None,
    changes: list[tuple[int, int]],
    right_crc: bool,
    cut: int,
) -> None:
    """A checksum that is right again lets damage through to the other checks."""
    batch = transactional(records, producer, transactional_id)
    whole = request_of(version, batch, transactional_id=transactional_id)
    frame = bytearray(whole)
    for position, byte in changes:
        frame[position % len(frame)] = byte
    start = whole.rindex(batch)
    if right_crc:
        struct.pack_into(">I", frame, start + 17, crc32c(frame[start + 21 : start + len(batch)]))
    frame = frame[: len(frame) - cut]
    read = compiled_read(bytes(frame))
    if read is None:
        return
    records_read = bytes(frame[read[6] : read[6] + read[9][0]])
    if crc32c(records_read[21:]) != read[7]:
        return  # The caller compares it, and leaves it to the plain form.
    assert read == plain_read(bytes(frame))


UNUSUAL: dict[str, bytes] = {
    "acks=0": request_of(9, batch_of([(NOW_MS, None, b"x", ())]), acks=0),
    "acks=2": request_of(9, batch_of([(NOW_MS, None, b"x", ())]), acks=2),
    "transactional id": request_of(9, batch_of([(NOW_MS, None, b"x", ())]), transactional_id="x"),
    "empty transactional id": request_of(3, batch_of([(NOW_MS, None, b"x", ())]), transactional_id=""),
    "empty, of a transaction": request_of(9, transactional([(NOW_MS, None, b"x", ())], None, ""), transactional_id=""),
    "of a transaction without an id": request_of(9, transactional([(NOW_MS, None, b"x", ())], None, "x")),
    "of a transaction without a producer": request_of(
        9, batch_of([(NOW_MS, None, b"x", ())], is_transactional=True), transactional_id="x"
    ),
    "transactional id beyond ASCII": request_of(
        9, transactional([(NOW_MS, None, b"x", ())], None, "x"), transactional_id="straße"
    ),
    "a marker": request_of(
        9, batch_of([(NOW_MS, None, b"x", ())], (7, 0, 0), is_transactional=True, is_control=True), transactional_id="x"
    ),
    "two topics": request_of(9, batch_of([(NOW_MS, None, b"x", ())]), topics=2),
    "no topic": request_of(3, batch_of([(NOW_MS, None, b"x", ())]), topics=0),
    "two partitions": request_of(9, batch_of([(NOW_MS, None, b"x", ())]), rows=2),
    "no records": request_of(9, None),
    "empty records": request_of(3, b""),
    "two batches": request_of(9, batch_of([(NOW_MS, None, b"x", ())]) * 2),
    "compressed": request_of(9, batch_of([(NOW_MS, None, b"x" * 100, ())], compression=Compression.LZ4)),
    "large": request_of(9, batch_of([(NOW_MS, None, bytes(SMALL_BATCH_BYTES), ())])),
    "topic beyond ASCII": request_of(9, batch_of([(NOW_MS, None, b"x", ())]), topic="straße"),
    "client id beyond ASCII": request_of(9, batch_of([(NOW_MS, None, b"x", ())]), client_id="straße"),
    "nameless": request_of(3, batch_of([(NOW_MS, None, b"x", ())]), topic=""),
    "no topic id": request_of(13, batch_of([(NOW_MS, None, b"x", ())]), topic_id=ZERO_TOPIC_ID),
    "more bytes": request_of(3, batch_of([(NOW_MS, None, b"x", ())])) + b"\0",
    "another API": b"\0\1" + request_of(9, batch_of([(NOW_MS, None, b"x", ())]))[2:],
    "an old version": struct.pack(">hhih", 0, 2, 1, -1) + bytes(40),
    "nothing": b"",
}


@needs_compiled
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_plain_form(name: str) -> None:
    assert compiled_read(UNUSUAL[name]) is None


@needs_compiled
def test_a_batch_of_the_largest_size_is_read() -> None:
    overhead = len(batch_of([(NOW_MS, None, bytes(SMALL_BATCH_BYTES - 100), ())])) - (SMALL_BATCH_BYTES - 100)
    for more, is_read in ((0, True), (1, False)):
        batch = batch_of([(NOW_MS, None, bytes(SMALL_BATCH_BYTES - overhead + more), ())])
        assert len(batch) == SMALL_BATCH_BYTES + more
        assert (compiled_read(request_of(9, batch)) is not None) == is_read


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (b"", 0, 1),
        (b"abc", 2, 1),
        (b"abc", -1, 2),
        (b"abc", 0, 4),
        ("abc", 0, 3),
        (b"abc", None, 3),
        (b"abc", 0, 2**70),
    ],
)
def test_places_beyond_the_buffer_are_not_read(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.read_produce(*arguments) is None


@needs_compiled
@LONG
@given(
    st.integers(0, 2**16 - 1),
    st.none() | st.text(max_size=20) | NAMES,
    st.binary(max_size=4) | st.just(b"\0"),
    st.booleans(),
    st.just([]) | CHANGES,
    st.just(0) | st.integers(1, 40),
)
@example(1, "c", b"", True, [], 0)
@example(1, None, b"\0", True, [], 0)
@example(1, "", b"\1\0\0", True, [], 0)
def test_heads_are_read_as_the_plain_form_reads_them(
    key: int, client_id: str | None, body: bytes, flexible: bool, changes: list[tuple[int, int]], cut: int
) -> None:
    """Or not at all: the plain form has the errors, and what is beyond ASCII."""
    assert native.compiled is not None
    name = b"" if client_id is None else client_id.encode()
    frame = bytearray(struct.pack(">HhIh", key, 1, 7, -1 if client_id is None else len(name)) + name + body)
    for position, byte in changes:
        frame[position % len(frame)] = byte
    frame = frame[: max(len(frame) - cut, 10)]
    buffer = memoryview(BEFORE + bytes(frame) + BEFORE)
    start, stop = len(BEFORE), len(BEFORE) + len(frame)
    found = native.compiled.read_head(buffer, start, stop, flexible)
    try:
        plain = read_client_id(buffer, start, stop, flexible=flexible)
    except ProtocolError:
        plain = None
    if found is not None:
        assert found == plain
    elif plain is not None:
        has_tags = flexible and buffer[start + 10 + len((plain[0] or "").encode())] != 0
        assert has_tags or not (plain[0] or "").isascii(), "this is as usual as can be"


@needs_compiled
@pytest.mark.parametrize(
    "arguments", [(b"", 0, 0), (bytes(9), 0, 9), (bytes(20), 11, 20), (bytes(20), 12, 11), (bytes(20), 0, 21)]
)
def test_heads_beyond_the_buffer_are_not_read(arguments: tuple[Any, ...]) -> None:
    compiled: Any = native.compiled
    assert compiled.read_head(*arguments, False) is None


@needs_compiled
@LONG
@given(VERSIONS, st.integers(-(2**31), 2**31 - 1), NAMES, IDS, st.integers(-(2**31), 2**31 - 1), INT64, INT64, INT64)
def test_answers_are_those_of_the_plain_form(
    version: int,
    correlation_id: int,
    name: str,
    topic_id: bytes,
    partition: int,
    base_offset: int,
    time_ms: int,
    log_start: int,
) -> None:
    assert native.compiled is not None
    has_id = version >= 13
    row = PartitionProduceResponse(
        index=partition, error_code=0, base_offset=base_offset, log_append_time_ms=time_ms, log_start_offset=log_start
    )
    topic = TopicProduceResponse(
        name="" if has_id else name, topic_id=topic_id if has_id else ZERO_TOPIC_ID, partition_responses=[row]
    )
    write = response_writer(codec_for(ProduceResponse, version).encode, flexible=version >= 9)
    plain = b"".join(write(correlation_id, ProduceResponse(responses=[topic])))
    topic_key = topic_id if has_id else name
    assert (
        native.compiled.produce_answer(version, correlation_id, topic_key, partition, base_offset, time_ms, log_start)
        == plain
    )


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (2, 1, "t", 0, 0, 0, 0),
        (14, 1, b"i" * 16, 0, 0, 0, 0),
        (13, 1, b"i" * 15, 0, 0, 0, 0),
        (13, 1, "t", 0, 0, 0, 0),
        (9, 1, b"t", 0, 0, 0, 0),
        (9, 1, "t" * 40_000, 0, 0, 0, 0),
        (9, 1, "\ud800", 0, 0, 0, 0),
        (9, 2**31, "t", 0, 0, 0, 0),
        (9, 1, "t", 2**31, 0, 0, 0),
        (9, 1, "t", 0, 2**63, 0, 0),
        (9, 1, "t", 0, 0, None, 0),
    ],
)
def test_answers_that_no_request_could_have_are_left_to_the_plain_form(arguments: tuple[Any, ...]) -> None:
    assert native.compiled is not None
    assert native.compiled.produce_answer(*arguments) is None
