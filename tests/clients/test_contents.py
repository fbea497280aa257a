"""Records pass every client unchanged: nulls, tombstones, empty values, any byte, headers."""

from __future__ import annotations

from .driver import Driver, OutgoingRecord
from .driver_kafka_python import KafkaPython

EVERY_BYTE = bytes(range(256))


def read_back(
    reading: Driver, topic: str, count: int
) -> list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]:
    with reading.reader(topic, 0, 0) as reader:
        return [(record.key, record.value, record.headers) for record in reader.read(count)]


def test_null_keys_and_tombstones_are_null_and_not_empty(client: Driver, other: Driver, topic: str) -> None:
    """A tombstone is a key without a value."""
    client.produce(
        topic, [OutgoingRecord(None, b"no key"), OutgoingRecord(b"tombstone", None), OutgoingRecord(b"k", b"v")]
    )
    other.produce(topic, [OutgoingRecord(None, None)])  # kafka-python refuses to
    expected = [(None, b"no key", ()), (b"tombstone", None, ()), (b"k", b"v", ()), (None, None, ())]
    assert read_back(client, topic, 4) == expected
    assert read_back(other, topic, 4) == expected


def test_empty_is_not_null(library: Driver, client: Driver, topic: str) -> None:
    library.produce(topic, [OutgoingRecord(b"", b""), OutgoingRecord(b"", None), OutgoingRecord(None, b"")])
    assert read_back(client, topic, 3) == [(b"", b"", ()), (b"", None, ()), (None, b"", ())]


def test_every_byte_passes(library: Driver, other: Driver, topic: str) -> None:
    headers = (("ünïcode", EVERY_BYTE), ("x" * 1000, b""))
    for codec in ("none", "zstd"):
        library.produce(topic, [OutgoingRecord(EVERY_BYTE, EVERY_BYTE[::-1], None, headers)], codec=codec)
    for reading in (library, other):
        assert read_back(reading, topic, 2) == [(EVERY_BYTE, EVERY_BYTE[::-1], headers)] * 2


def test_headers_of_one_name_keep_their_order_and_may_be_null(client: Driver, other: Driver, topic: str) -> None:
    headers = (("name", b"1"), ("other", None), ("name", b"2"), ("name", None))
    writing = other if client.name == KafkaPython.name else client  # kafka-python refuses a header without a value
    writing.produce(topic, [OutgoingRecord(b"k", b"v", None, headers)])
    assert read_back(client, topic, 1) == [(b"k", b"v", headers)]
    assert read_back(other, topic, 1) == [(b"k", b"v", headers)]


def test_each_record_of_a_batch_has_its_own_headers(library: Driver, other: Driver, topic: str) -> None:
    records = [OutgoingRecord(b"k", b"%d" % n, None, tuple((f"h{i}", b"%d" % i) for i in range(n))) for n in range(20)]
    library.produce(topic, records, codec="lz4")
    for reading in (library, other):
        assert [headers for _, _, headers in read_back(reading, topic, 20)] == [record.headers for record in records]
