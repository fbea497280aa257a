"""Every client requests beginning, end and times, and reads from the returned offsets."""

from __future__ import annotations

from .driver import Driver, OutgoingRecord

BASE_TIME_MS = 1_700_000_000_000
STEP_MS = 1_000


def test_an_empty_partition_begins_and_ends_at_zero(client: Driver, topic: str) -> None:
    assert client.offsets(topic, range(3)) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    assert client.offset_for_time(topic, 0, BASE_TIME_MS) is None


def test_the_end_is_one_past_the_last_record(client: Driver, other: Driver, topic: str) -> None:
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 7, partition=1)
    assert client.offsets(topic, range(3)) == {0: (0, 0), 1: (0, 7), 2: (0, 0)}


def test_a_time_finds_the_first_record_at_or_after_it_within_a_batch(client: Driver, other: Driver, topic: str) -> None:
    """Three batches of four records, one a second; one batch is compressed, so the search decompresses it."""
    for batch, codec in enumerate(("none", "zstd", "none")):
        times = [BASE_TIME_MS + (batch * 4 + n) * STEP_MS for n in range(4)]
        other.produce(topic, [OutgoingRecord(b"k", b"v", time) for time in times], codec=codec)
    for offset in range(12):
        assert client.offset_for_time(topic, 0, BASE_TIME_MS + offset * STEP_MS) == offset
    assert client.offset_for_time(topic, 0, BASE_TIME_MS + 5 * STEP_MS + 1) == 6
    assert client.offset_for_time(topic, 0, BASE_TIME_MS - 1) == 0
    assert client.offset_for_time(topic, 0, BASE_TIME_MS + 11 * STEP_MS + 1) is None


def test_a_reader_that_seeks_by_time_gets_no_older_records(client: Driver, other: Driver, topic: str) -> None:
    other.produce(topic, [OutgoingRecord(b"k", b"%d" % n, BASE_TIME_MS + n * STEP_MS) for n in range(10)])
    offset = client.offset_for_time(topic, 0, BASE_TIME_MS + 7 * STEP_MS)
    assert offset is not None
    with client.reader(topic, 0, offset) as reader:
        assert [record.value for record in reader.read(3)] == [b"7", b"8", b"9"]
