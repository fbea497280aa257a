"""Our batches against the record builders and readers of kafka-python and aiokafka, for every codec."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.records import Record, check_crc, iterate_records, read_batch_header
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas by a deprecated function.
    from kafka.record.default_records import DefaultRecordBatch as KafkaBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder

NOW = 1_700_000_000_000
RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (NOW, b"key", b"value", []),
    (NOW + 3, None, b"x" * 1000, [("name", b"content"), ("null", None)]),
    (NOW - 7, b"", b"", []),
    (NOW + 3, b"k" * 70, None, [("ümlaut", b"")]),
    *((NOW + i, b"key-%d" % i, bytes(100), []) for i in range(200)),
]
EXPECTED = [Record(i, ts, k, v, tuple((n.encode(), c) for n, c in hs)) for i, (ts, k, v, hs) in enumerate(RECORDS)]
BUILDERS = pytest.mark.parametrize("builder", [KafkaBuilder, AiokafkaBuilder], ids=["kafka-python", "aiokafka"])
READERS = pytest.mark.parametrize("reader", [KafkaBatch, AiokafkaBatch], ids=["kafka-python", "aiokafka"])
CODECS = pytest.mark.parametrize("codec", Compression)


def built_by(builder: Any, codec: Compression) -> bytes:
    """The records as a client would send them."""
    made = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=12,
        producer_epoch=1,
        base_sequence=30,
        batch_size=1 << 20,
    )
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        assert made.append(offset, timestamp=timestamp, key=key, value=value, headers=headers) is not None
    return bytes(made.build())


@BUILDERS
@CODECS
def test_we_read_and_accept_what_clients_build(builder: Any, codec: Compression) -> None:
    """Protects the whole path in: header, CRC, decompression, records, and the produce path's verdict."""
    batch = built_by(builder, codec)
    header = read_batch_header(batch)
    assert check_crc(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.compression) == (12, 1, 30, codec)
    assert list(iterate_records(batch, max_bytes=1 << 20)) == EXPECTED
    accepted = validate_produce(memoryview(bytearray(batch)), ValidationRules(), NOW)
    assert isinstance(accepted, ValidatedBatch)
    assert b"".join(accepted.tail) == batch[16:], "a valid batch is stored as it was sent"


@BUILDERS
def test_uncompressed_batches_are_the_same_bytes(builder: Any) -> None:
    """Protects against differences that both readers tolerate."""
    records = [
        (ts, key, value, [(name.encode(), content) for name, content in headers]) for ts, key, value, headers in RECORDS
    ]
    ours = bytearray(build_batch(records, producer_id=12, producer_epoch=1, base_sequence=30))
    theirs = bytearray(built_by(builder, Compression.NONE))
    # The leader epoch before the leader has set it: -1 from us, 0 from aiokafka. It is outside the CRC.
    ours[12:16] = theirs[12:16]
    assert ours == theirs


@READERS
@CODECS
def test_clients_read_what_we_build(reader: Any, codec: Compression) -> None:
    """Protects the whole path out, including batches that the broker compresses itself."""
    records = [
        (ts, key, value, [(name.encode(), content) for name, content in headers]) for ts, key, value, headers in RECORDS
    ]
    batch = reader(build_batch(records, base_offset=500, compression=codec))
    assert batch.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    assert read == [(500 + i, ts, key, value, headers) for i, (ts, key, value, headers) in enumerate(RECORDS)]
