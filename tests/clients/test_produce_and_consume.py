"""Every client writes with every codec and reads its own and others' records, byte for byte and in order."""

from __future__ import annotations

import pytest

from .driver import Driver, OutgoingRecord, ReadRecord

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BASE_TIME_MS = 1_700_000_000_000


def letters(count: int, *, size: int = 100) -> list[OutgoingRecord]:
    """Returns records whose values differ, compress well and haves no line break (kcat's separator)."""
    return [OutgoingRecord(b"key-%d" % n, (b"value-%d " % n) * (size // 8)) for n in range(count)]


def contents(records: list[ReadRecord]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_every_codec_is_read_by_its_writer_and_by_another_client(
    client: Driver, other: Driver, topic: str, codec: str
) -> None:
    sent = letters(20)
    client.produce(topic, sent, codec=codec)
    for reading in (client, other):
        with reading.reader(topic, 0, 0) as reader:
            records = reader.read(20)
        assert [record.offset for record in records] == list(range(20))
        assert contents(records) == [(record.key, record.value) for record in sent]


def test_the_batches_of_all_codecs_are_in_one_partition(client: Driver, other: Driver, topic: str) -> None:
    """A reader that fetches five batches of five codecs in one answer decodes each by its own attributes."""
    for number, codec in enumerate(CODECS):
        other.produce(topic, [OutgoingRecord(b"%d" % number, codec.encode()) for _ in range(3)], codec=codec)
    with client.reader(topic, 0, 0) as reader:
        assert [record.value for record in reader.read(15)] == [codec.encode() for codec in CODECS for _ in range(3)]


def test_an_idempotent_producer_writes_each_record_once_and_in_order(client: Driver, topic: str) -> None:
    for round_number in range(3):
        client.produce(topic, [OutgoingRecord(b"k", b"%d-%d" % (round_number, n)) for n in range(50)], idempotent=True)
    assert client.offsets(topic, [0]) == {0: (0, 150)}
    with client.reader(topic, 0, 0) as reader:
        assert [record.value for record in reader.read(150)] == [b"%d-%d" % (r, n) for r in range(3) for n in range(50)]


def test_headers_pass_unchanged(client: Driver, topic: str) -> None:
    headers = (("first", b"1"), ("second", b"two"), ("first", b"again"))
    client.produce(topic, [OutgoingRecord(b"k", b"v", None, headers)])
    with client.reader(topic, 0, 0) as reader:
        [record] = reader.read(1)
    assert record.headers == headers


def test_the_producer_s_timestamps_are_kept(library: Driver, client: Driver, topic: str) -> None:
    library.produce(topic, [OutgoingRecord(b"k", b"v", BASE_TIME_MS + n) for n in range(5)])
    with client.reader(topic, 0, 0) as reader:
        assert [record.timestamp_ms for record in reader.read(5)] == [BASE_TIME_MS + n for n in range(5)]


def test_a_record_near_a_megabyte_passes(client: Driver, topic: str) -> None:
    """The first batch of a response is sent whole, for any size."""
    value = b"x" * 900_000
    client.produce(topic, [OutgoingRecord(b"large", value)])
    with client.reader(topic, 0, 0) as reader:
        [record] = reader.read(1)
    assert record.value == value


def test_partitions_are_written_and_read_apart(client: Driver, topic: str) -> None:
    for partition in range(3):
        client.produce(
            topic, [OutgoingRecord(b"k", b"p%d-%d" % (partition, n)) for n in range(partition + 1)], partition=partition
        )
    for partition in range(3):
        with client.reader(topic, partition, 0) as reader:
            values = [record.value for record in reader.read(partition + 1)]
        assert values == [b"p%d-%d" % (partition, n) for n in range(partition + 1)]
    assert client.offsets(topic, range(3)) == {0: (0, 1), 1: (0, 2), 2: (0, 3)}


def test_a_reader_that_starts_inside_a_batch_sees_nothing_before_its_start(client: Driver, topic: str) -> None:
    client.produce(topic, letters(10), codec="lz4")
    with client.reader(topic, 0, 6) as reader:
        assert [record.offset for record in reader.read(4)] == [6, 7, 8, 9]


def test_a_reader_seeks_back_and_reads_again(client: Driver, topic: str) -> None:
    client.produce(topic, letters(10))
    with client.reader(topic, 0, 0) as reader:
        first = reader.read(10)
        reader.seek(3)
        assert reader.read(7) == first[3:]


def test_a_waiting_reader_gets_what_is_written_later(client: Driver, other: Driver, topic: str) -> None:
    client.produce(topic, letters(2))
    with client.reader(topic, 0, 0) as reader:
        assert len(reader.read(2)) == 2
        other.produce(topic, [OutgoingRecord(b"k", b"later")])
        assert [(record.offset, record.value) for record in reader.read(1)] == [(2, b"later")]
