"""What a producer may send: every error, in Kafka's order and with Kafka's code, and what is stored of a valid batch.

The verdicts are those of Apache Kafka 4.3.1 on the wire, except where it returned UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.batch_building import append_record, build_batch
from lowtide.protocol.compression import Compression, compress
from lowtide.protocol.control_records import ControlRecord
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import iterate_records, read_batch_header
from lowtide.storage.log.stored_batches import validate_stored
from lowtide.storage.log.validation.rejections import Rejection
from lowtide.storage.log.validation.validation_rules import TARGET_CODECS, ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.markers import build_end_transaction_marker

NOW = 1_700_000_000_000
ALL_TIMES = 2**63 - 1
RULES = ValidationRules()


def make(
    records: int = 1,
    *,
    base: int = 0,
    length: int | None = None,
    magic: int = 2,
    crc: int | None = None,
    attributes: int = 0,
    last: int | None = None,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int | None = None,
    deltas: list[int] | None = None,
    payload: bytes | None = None,
) -> bytes:
    """A batch of `records` records (keys k0, k1, ..., a millisecond apart) in which any field may be false."""
    if payload is None:
        out = bytearray()
        for index in range(records):
            append_record(out, index, deltas[index] if deltas else index, b"k%d" % index, b"value")
        payload = compress(Compression(attributes & 7), out) if attributes & 7 < 5 else bytes(out)
    top = NOW + max(records - 1, 0) if max_timestamp is None else max_timestamp
    last = records - 1 if last is None else last
    body = (
        struct.pack(">hiqqqhii", attributes, last, NOW, top, *producer, records if count is None else count) + payload
    )
    size = 9 + len(body) if length is None else length
    return struct.pack(">qiibI", base, size, 77, magic, crc32c(body) if crc is None else crc) + body


def verdict(records: bytes | None, rules: ValidationRules = RULES) -> tuple[ErrorCode, bool]:
    """The code and whether the log start offset is returned."""
    outcome = validate_produce(None if records is None else memoryview(bytearray(records)), rules, NOW)
    return (outcome.error_code, outcome.found_in_log) if isinstance(outcome, Rejection) else (ErrorCode.NONE, True)


def accept(records: bytes, rules: ValidationRules = RULES) -> ValidatedBatch:
    """The batch, which must be accepted."""
    outcome = validate_produce(memoryview(bytearray(records)), rules, NOW)
    assert isinstance(outcome, ValidatedBatch), outcome
    return outcome


def stored(batch: ValidatedBatch) -> bytes:
    """The batch as a log at offset 40 in epoch 3 would store it; checked as in recovery."""
    whole = struct.pack(">qii", 40, batch.size_bytes - 12, 3) + b"".join(batch.tail)
    header = read_batch_header(whole)
    assert len(whole) == batch.size_bytes
    assert validate_stored(whole, 0, header) is None
    assert (header.attributes, header.max_timestamp, header.record_count) == (
        batch.attributes,
        batch.max_timestamp,
        batch.record_count,
    )
    return whole


GOOD = make(2)
OK = (ErrorCode.NONE, True)
CORRUPT = (ErrorCode.CORRUPT_MESSAGE, False)
BEFORE_LOG = (ErrorCode.INVALID_RECORD, False)
IN_LOG = (ErrorCode.INVALID_RECORD, True)
TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, False)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param(None, BEFORE_LOG, id="null"),
        pytest.param(b"", BEFORE_LOG, id="empty"),
        pytest.param(GOOD[:11], BEFORE_LOG, id="less than a length"),
        pytest.param(GOOD[:12], BEFORE_LOG, id="only a length"),
        pytest.param(GOOD[:-3], BEFORE_LOG, id="cut"),
        pytest.param(make(2, length=len(GOOD) + 500), BEFORE_LOG, id="length too large"),
        pytest.param(make(2, length=len(GOOD) - 20), CORRUPT, id="length too small"),
        pytest.param(make(2, length=5), CORRUPT, id="length below any message"),
        pytest.param(make(2, length=-1), CORRUPT, id="length negative"),
        pytest.param(make(1, length=20)[:32], CORRUPT, id="length below a header"),
        pytest.param(GOOD + b"\0", OK, id="one trailing byte"),
        pytest.param(GOOD + bytes(11), OK, id="eleven trailing bytes"),
        pytest.param(GOOD + bytes(12), CORRUPT, id="twelve trailing bytes"),
        pytest.param(GOOD + bytes(30), CORRUPT, id="thirty trailing bytes"),
        pytest.param(GOOD + GOOD, BEFORE_LOG, id="two batches"),
        pytest.param(GOOD + GOOD[:-1], OK, id="a second batch that is cut"),
        pytest.param(make(magic=3), CORRUPT, id="magic 3"),
        pytest.param(make(magic=-1), CORRUPT, id="magic -1"),
        pytest.param(make(magic=1), BEFORE_LOG, id="magic 1"),
        pytest.param(make(magic=0), BEFORE_LOG, id="magic 0"),
        pytest.param(struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1), BEFORE_LOG, id="message set"),
        pytest.param(make(2, crc=1), CORRUPT, id="CRC"),
        pytest.param(make(2, base=1000), IN_LOG, id="base offset"),
        pytest.param(make(2, base=-5), IN_LOG, id="base offset negative"),
        pytest.param(make(2, count=3), IN_LOG, id="count too large"),
        pytest.param(make(2, count=1), IN_LOG, id="count too small"),
        pytest.param(make(2, count=1, last=0), IN_LOG, id="count and last delta too small"),
        pytest.param(make(2, count=3, last=2), IN_LOG, id="count and last delta too large"),
        pytest.param(make(2, count=0), IN_LOG, id="count 0"),
        pytest.param(make(2, count=-1), IN_LOG, id="count -1"),
        pytest.param(make(2, last=5), IN_LOG, id="last delta too large"),
        pytest.param(make(2, last=0), IN_LOG, id="last delta too small"),
        pytest.param(make(2, last=-1), IN_LOG, id="last delta -1"),
        pytest.param(make(0, last=0), IN_LOG, id="no records"),
        pytest.param(make(0, last=-1), IN_LOG, id="no records, last delta -1"),
        pytest.param(make(1, count=-(2**31), last=-(2**31)), IN_LOG, id="smallest count"),
        pytest.param(make(2, deltas=[0, 0]), OK, id="deltas 0 0"),
        pytest.param(make(2, deltas=[1, 2]), OK, id="deltas 1 2"),
        pytest.param(make(2, deltas=[0, 2], last=2), IN_LOG, id="deltas 0 2"),
        pytest.param(make(2, payload=b"\xff" * 20), IN_LOG, id="garbage"),
        pytest.param(make(2, payload=b""), IN_LOG, id="nothing"),
        *(pytest.param(make(1, attributes=codec), IN_LOG, id=f"codec {codec}") for codec in (5, 6, 7)),
        *(
            pytest.param(make(1, attributes=codec, payload=b"no such thing"), IN_LOG, id=f"broken {codec}")
            for codec in (1, 2, 3, 4)
        ),
        pytest.param(make(attributes=0x20), IN_LOG, id="control bit"),
        pytest.param(make(producer=(5, 0, -1)), IN_LOG, id="sequence -1"),
        pytest.param(make(producer=(5, 0, -5)), IN_LOG, id="sequence -5"),
        pytest.param(make(producer=(5, -1, 0)), OK, id="epoch -1"),
        pytest.param(make(producer=(-1, 0, 4)), OK, id="sequence without producer"),
        pytest.param(make(producer=(-9, 0, 0)), OK, id="producer -9"),
        pytest.param(make(attributes=0x10, producer=(5, 0, 0)), OK, id="transactional"),
    ],
)
def test_each_lie_gets_kafkas_verdict(records: bytes | None, expected: tuple[ErrorCode, bool]) -> None:
    """Protects the error codes that clients act on, and whether the answer has the log start offset."""
    assert verdict(records) == expected


def test_a_transaction_marker_from_a_client_is_refused() -> None:
    """Protects transactions: only the coordinator may write markers."""
    marker = build_end_transaction_marker(ControlRecord(0, 0), timestamp_ms=NOW, producer_id=1, producer_epoch=0)
    assert verdict(marker) == IN_LOG


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (make(2, base=1, crc=1), ErrorCode.INVALID_RECORD),
        (make(200, crc=1), ErrorCode.MESSAGE_TOO_LARGE),
        (make(2, crc=1, count=3), ErrorCode.CORRUPT_MESSAGE),
        (make(2, attributes=4) + GOOD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (make(2, magic=1) + GOOD, ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "offset before CRC",
        "size before CRC",
        "CRC before count",
        "zstd before second batch",
        "magic before second batch",
    ],
)
def test_the_first_fault_in_kafkas_order_is_returned(records: bytes, code: ErrorCode) -> None:
    """Protects the order of checks for batches with two faults."""
    assert verdict(records, ValidationRules(max_message_bytes=1000, allow_zstd=False))[0] == code


def test_zstd_needs_a_newer_produce_version() -> None:
    """Protects old clients' expectation of code 76, and accepts everything else below Produce v7."""
    old = ValidationRules(allow_zstd=False)
    assert verdict(make(2, attributes=4), old) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, False)
    assert verdict(make(2, attributes=4)) == OK
    assert verdict(make(2, attributes=3), old) == OK


def test_the_largest_size_is_allowed() -> None:
    """Protects the edge of max.message.bytes: it limits the whole batch, inclusively."""
    assert verdict(GOOD, ValidationRules(max_message_bytes=len(GOOD))) == OK
    assert verdict(GOOD, ValidationRules(max_message_bytes=len(GOOD) - 1)) == TOO_LARGE
    assert verdict(GOOD + b"\0", ValidationRules(max_message_bytes=len(GOOD))) == OK


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_decompression_stops_at_its_limit(codec: int) -> None:
    """Protects memory; the code makes Java producers split the batch instead of sending it again."""
    batch = build_batch([(NOW, None, bytes(10_000), ())], compression=Compression(codec))
    assert verdict(batch, ValidationRules(max_decompressed_bytes=9_999)) == TOO_LARGE
    assert verdict(batch, ValidationRules(max_decompressed_bytes=10_100)) == OK


@pytest.mark.parametrize("codec", Compression)
def test_a_sound_batch_is_stored_as_it_was_sent(codec: Compression) -> None:
    """Protects zero copy and byte identity, leader epoch aside, and keeps bits that have no meaning yet."""
    sent = make(20, attributes=codec | 0x40 | 0x100, producer=(9, 1, 5))
    batch = accept(sent)
    assert stored(batch)[16:] == sent[16:]
    assert len(batch.tail) == 1
    assert isinstance(batch.tail[0], memoryview)
    assert (batch.last_offset_delta, batch.record_count, batch.base_timestamp) == (19, 20, NOW)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 1, 5)
    assert (batch.max_timestamp, batch.offset_delta_of_max_timestamp) == (NOW + 19, 19)
    assert not batch.is_transactional
    assert not batch.is_control


def test_trailing_bytes_are_not_stored() -> None:
    """Protects the log from the bytes that Kafka drops."""
    assert stored(accept(GOOD + b"\0\0"))[16:] == GOOD[16:]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("lie", [-5, 500, -NOW - 7])
def test_a_wrong_max_timestamp_is_corrected(codec: Compression, lie: int) -> None:
    """Protects time-based retention and search, which trust the stored max timestamp."""
    whole = stored(accept(make(2, attributes=codec, max_timestamp=NOW + lie)))
    assert read_batch_header(whole).max_timestamp == NOW + 1
    assert len(list(iterate_records(whole, max_bytes=1000))) == 2


def test_the_first_of_equal_largest_timestamps_is_named() -> None:
    """Protects ListOffsets by max timestamp: ties answer the first record."""
    batch = accept(build_batch([(NOW + delta, None, b"", ()) for delta in (0, 5, -3, 5, 4)]))
    assert (batch.max_timestamp, batch.offset_delta_of_max_timestamp) == (NOW + 5, 1)


@pytest.mark.parametrize("timestamp", [-1, -2])
def test_records_without_a_timestamp_are_accepted(timestamp: int) -> None:
    """Protects producers without timestamps: -1 is never too old; the stored max is never below -1."""
    rules = ValidationRules(timestamp_before_max_ms=1000 if timestamp == -1 else ALL_TIMES)
    batch = accept(build_batch([(timestamp, None, b"", ())] * 3), rules)
    assert read_batch_header(stored(batch)).max_timestamp == -1
    assert batch.offset_delta_of_max_timestamp == 0


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("deltas", [[0, 0, 0], [1, 2, 3], [2, 1, 0], [0, -1, 2**31]])
def test_offset_deltas_are_made_consecutive(codec: Compression, deltas: list[int]) -> None:
    """Protects offsets: for any deltas of a producer, no two records share one and none belongs to the next batch."""
    whole = stored(accept(make(3, attributes=codec, deltas=deltas, last=2)))
    records = list(iterate_records(whole, max_bytes=1000))
    assert [record.offset for record in records] == [40, 41, 42]
    assert [(record.key, record.timestamp) for record in records] == [(b"k%d" % i, NOW + i) for i in range(3)]
    assert read_batch_header(whole).compression is codec


@pytest.mark.parametrize("source", Compression)
@pytest.mark.parametrize("wanted", TARGET_CODECS)
def test_the_topics_compression_is_applied(source: Compression, wanted: str) -> None:
    """Protects `compression.type`: the content stays, the codec is the topic's, the CRC is right."""
    sent = make(50, attributes=source | 0x10, producer=(3, 0, 7))
    whole = stored(accept(sent, ValidationRules(compression_type=wanted)))
    header = read_batch_header(whole)
    assert (header.compression, header.is_transactional, header.producer_id, header.base_sequence) == (
        TARGET_CODECS[wanted],
        True,
        3,
        7,
    )
    assert [(r.key, r.timestamp) for r in iterate_records(whole, max_bytes=9999)] == [
        (b"k%d" % i, NOW + i) for i in range(50)
    ]


def test_a_batch_that_grows_beyond_the_limit_is_too_large() -> None:
    """Protects max.message.bytes against a topic that stores what producers send compressed as uncompressed."""
    sent = build_batch([(NOW, None, bytes(5000), ())], compression=Compression.GZIP)
    assert verdict(sent, ValidationRules(max_message_bytes=1000, compression_type="uncompressed")) == TOO_LARGE


@pytest.mark.parametrize("codec", Compression)
def test_log_append_time_is_written_into_the_header(codec: Compression) -> None:
    """Protects topics with LogAppendTime: bit and time are set, and producers' times are not checked."""
    rules = ValidationRules(timestamp_type="log_append", timestamp_before_max_ms=1, timestamp_after_max_ms=1)
    batch = accept(build_batch([(NOW + 10**9 * i, None, b"", ()) for i in (3, -2)], compression=codec), rules)
    assert read_batch_header(stored(batch)).attributes == codec | 8
    assert (batch.max_timestamp, batch.offset_delta_of_max_timestamp) == (NOW, 0)


def test_the_log_append_bit_of_a_producer() -> None:
    """Protects the bit's meaning: cleared if producers set timestamps, refused if the broker does or there is none."""
    sent = make(2, attributes=8)
    assert read_batch_header(stored(accept(sent))).attributes == 0
    assert verdict(sent, ValidationRules(timestamp_type="log_append")) == (ErrorCode.INVALID_TIMESTAMP, True)


@pytest.mark.parametrize("codec", [0, 1])
def test_compacted_topics_name_the_records_without_a_key(codec: int) -> None:
    """Protects compaction, which keeps the last record of each key; an empty key is a key."""
    rules = ValidationRules(compacted=True)
    keys = [b"k", None, b"", None]
    outcome = validate_produce(
        build_batch([(NOW, key, b"v", ()) for key in keys], compression=Compression(codec)), rules, NOW
    )
    assert isinstance(outcome, Rejection)
    assert (outcome.error_code, outcome.found_in_log) == (ErrorCode.INVALID_RECORD, True)
    assert [index for index, _ in outcome.record_errors] == [1, 3]
    assert all("key" in (message or "") for _, message in outcome.record_errors)
    assert verdict(build_batch([(NOW, b"", None, ())]), rules) == OK


@pytest.mark.parametrize(
    ("ages", "faulty"),
    [([0, 1000], []), ([0, 1001], [1]), ([-500], []), ([-501, 0, -501], [0, 2]), ([2000, -2000, 3], [0, 1])],
)
def test_timestamps_out_of_bounds_are_named(ages: list[int], faulty: list[int]) -> None:
    """Protects both bounds of a record's age, inclusive, and the list of invalid records."""
    rules = ValidationRules(timestamp_before_max_ms=1000, timestamp_after_max_ms=500)
    outcome = validate_produce(build_batch([(NOW - age, None, b"", ()) for age in ages]), rules, NOW)
    assert isinstance(outcome, Rejection) == bool(faulty)
    if isinstance(outcome, Rejection):
        assert (outcome.error_code, outcome.found_in_log) == (ErrorCode.INVALID_TIMESTAMP, True)
        assert [index for index, _ in outcome.record_errors] == faulty


def test_both_kinds_of_record_faults_answer_invalid_timestamp() -> None:
    """Protects the code when records fail for different reasons: Kafka returns the timestamp's error."""
    rules = ValidationRules(compacted=True, timestamp_before_max_ms=1000)
    outcome = validate_produce(build_batch([(NOW, None, b"", ()), (NOW - 9999, b"k", b"", ())]), rules, NOW)
    assert isinstance(outcome, Rejection)
    assert outcome.error_code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in outcome.record_errors] == [0, 1]


@pytest.mark.parametrize("base", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("delta", [-(2**63), -1, 1, 2**63 - 1])
@pytest.mark.parametrize("kind", ["create", "log_append"])
def test_timestamps_beyond_64_bits_are_refused(base: int, delta: int, kind: str) -> None:
    """Protects the packing of the header: base plus delta may leave the 64 bits that a timestamp has."""
    out = bytearray()
    append_record(out, delta, 0, None, None)
    body = struct.pack(">hiqqqhii", 0, 0, base, base, -1, -1, -1, 1) + out
    batch = struct.pack(">qiibI", 0, 9 + len(body), 0, 2, crc32c(body)) + body
    rules = ValidationRules(timestamp_type=kind, timestamp_before_max_ms=ALL_TIMES, timestamp_after_max_ms=ALL_TIMES)
    sound = -(2**63) <= base + delta < 2**63
    # Of the timestamps that fit, those near the lower end are still older than the largest possible bound.
    expected = (
        ErrorCode.NONE
        if sound and (kind == "log_append" or base + delta > NOW - ALL_TIMES)
        else ErrorCode.INVALID_TIMESTAMP
    )
    assert verdict(batch, rules) == (expected, True)


def test_the_list_of_record_errors_is_bounded() -> None:
    """Protects against an answer larger than its request."""
    outcome = validate_produce(build_batch([(NOW, None, None, ())] * 5000), ValidationRules(compacted=True), NOW)
    assert isinstance(outcome, Rejection)
    assert len(outcome.record_errors) == 1000


@given(data=st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    """Protects the promise that nothing a client sends raises."""
    assert verdict(data)[0] is not ErrorCode.NONE


@given(
    codec=st.sampled_from(Compression),
    place=st.integers(0, 1000),
    byte=st.integers(0, 255),
    target=st.sampled_from(["producer", *TARGET_CODECS]),
)
def test_a_changed_byte_under_a_right_crc_is_refused_or_stored_soundly(
    codec: Compression, place: int, byte: int, target: str
) -> None:
    """Protects readers: whatever the contents, the stored batch can be parsed and has consecutive offsets."""
    batch = bytearray(make(15, attributes=codec))
    batch[21 + place % (len(batch) - 21)] = byte
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    rules = ValidationRules(compression_type=target, max_decompressed_bytes=4096, timestamp_after_max_ms=ALL_TIMES)
    outcome = validate_produce(memoryview(batch), rules, NOW)
    if isinstance(outcome, ValidatedBatch):
        whole = stored(outcome)
        records = list(iterate_records(whole, max_bytes=4096))
        assert [record.offset for record in records] == list(range(40, 55))
        assert max(-1, *(record.timestamp for record in records)) == outcome.max_timestamp


def test_the_result_of_stored_checks_names_the_fault() -> None:
    """Protects recovery and followers: each fault of a stored batch is detected and described."""
    batch = build_batch([(NOW, b"k", b"v", ())] * 3, base_offset=5, compression=Compression.LZ4)
    header = read_batch_header(batch)
    assert validate_stored(b"12" + batch + b"rest", 2, header) is None
    assert validate_stored(batch, 0, header, max_bytes=len(batch)) is None
    assert "at most" in str(validate_stored(batch, 0, header, max_bytes=len(batch) - 1))
    assert "are there" in str(validate_stored(batch[:-1], 0, header))
    assert "CRC" in str(validate_stored(batch[:-1] + b"?", 0, header))
    lies = [
        ("magic", 1, "magic"),
        ("batch_length", 48, "below"),
        ("batch_length", -9, "below"),
        ("base_offset", -1, "negative"),
    ]
    for field, value, word in lies:
        wrong = read_batch_header(batch)
        setattr(wrong, field, value)
        assert word in str(validate_stored(batch, 0, wrong))


def test_a_compacted_stored_batch_is_valid() -> None:
    """Protects followers of compacted topics: such batches have fewer records than offsets."""
    batch = make(2, last=7, payload=b"")
    assert validate_stored(batch, 0, read_batch_header(batch)) is None


@pytest.mark.parametrize(("limit", "faulty"), [(100, [1]), (107, []), (106, [1]), (1, [0, 1, 2])])
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.NONE])
def test_large_records_of_a_compressed_batch_are_named(codec: Compression, limit: int, faulty: list[int]) -> None:
    """Kafka: `max.decompressed.message.bytes`. Without compression `max.message.bytes` is the limit."""
    records = build_batch([(1, None, b"a", ()), (1, None, b"b" * 100, ()), (1, None, b"c", ())], compression=codec)
    found = validate_produce(records, ValidationRules(max_record_bytes=limit), 1)
    if codec is Compression.NONE or not faulty:
        assert isinstance(found, ValidatedBatch)
    else:
        assert isinstance(found, Rejection)
        assert (found.error_code, [number for number, _ in found.record_errors]) == (ErrorCode.INVALID_RECORD, faulty)


def test_a_limit_for_records_needs_a_look_at_each_batch() -> None:
    assert ValidationRules().unchanged_bytes > 0
    assert ValidationRules(max_record_bytes=1000).unchanged_bytes == 0
