"""Records deleted by any client are deleted for every client: ListOffsets and Fetch agree (KIP-107)."""

from __future__ import annotations

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest

from .driver import TO_HIGH_WATERMARK, Driver, OutgoingRecord, OutOfRangeError

BASE_TIME_MS = 1_700_000_000_000
REFUSED = (confluent_kafka.KafkaException, kafka.errors.OffsetOutOfRangeError, aiokafka.errors.OffsetOutOfRangeError)


def ten(*, first: int = 0) -> list[OutgoingRecord]:
    return [OutgoingRecord(b"k", b"%d" % n, BASE_TIME_MS + n * 1000) for n in range(first, first + 10)]


def test_delete_by_offset_answers_the_low_watermark_and_moves_the_beginning(library: Driver, topic: str) -> None:
    library.produce(topic, ten(), partition=0)
    library.produce(topic, ten(), partition=1)
    assert library.delete_records(topic, {0: 3, 1: 10}) == {0: 3, 1: 10}
    assert library.offsets(topic, range(3)) == {0: (3, 10), 1: (10, 10), 2: (0, 0)}


def test_delete_to_the_high_watermark_leaves_an_empty_partition_that_continues(
    library: Driver, client: Driver, topic: str
) -> None:
    library.produce(topic, ten())
    assert library.delete_records(topic, {0: TO_HIGH_WATERMARK}) == {0: 10}
    assert client.offsets(topic, [0]) == {0: (10, 10)}
    client.produce(topic, [OutgoingRecord(b"k", b"next")])
    with client.reader(topic, 0, 10) as reader:
        assert [(record.offset, record.value) for record in reader.read(1)] == [(10, b"next")]


def test_a_delete_at_or_below_the_start_is_a_success_that_changes_nothing(library: Driver, topic: str) -> None:
    library.produce(topic, ten())
    assert library.delete_records(topic, {0: 6}) == {0: 6}
    assert library.delete_records(topic, {0: 6}) == {0: 6}
    assert library.delete_records(topic, {0: 2}) == {0: 6}
    assert library.offsets(topic, [0]) == {0: (6, 10)}


def test_a_delete_beyond_the_high_watermark_is_refused_and_deletes_nothing(library: Driver, topic: str) -> None:
    library.produce(topic, ten())
    with pytest.raises(REFUSED, match=r"(?i)out.?of.?range"):
        library.delete_records(topic, {0: 11})
    assert library.offsets(topic, [0]) == {0: (0, 10)}


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_a_reader_in_the_middle_of_a_batch_sees_no_deleted_record(
    client: Driver, other: Driver, topic: str, codec: str
) -> None:
    """The batch that straddles the start is sent whole; the clients drop records below the requested offset."""
    other.produce(topic, ten(), codec=codec)
    other.delete_records(topic, {0: 4})
    assert client.offsets(topic, [0]) == {0: (4, 10)}
    with client.reader(topic, 0, 4) as reader:
        assert [record.offset for record in reader.read(6)] == [4, 5, 6, 7, 8, 9]


def test_a_read_below_the_start_is_refused(client: Driver, other: Driver, topic: str) -> None:
    other.produce(topic, ten())
    other.delete_records(topic, {0: 4})
    with client.reader(topic, 0, 3) as reader, pytest.raises(OutOfRangeError):
        reader.read(1)


def test_a_refused_reader_resets_to_the_new_start(client: Driver, other: Driver, topic: str) -> None:
    other.produce(topic, ten())
    other.delete_records(topic, {0: 4})
    with client.reader(topic, 0, 0, reset="earliest") as reader:
        assert [record.offset for record in reader.read(6)] == [4, 5, 6, 7, 8, 9]


def test_an_open_reader_that_returns_to_its_old_position_is_reset(client: Driver, other: Driver, topic: str) -> None:
    """The consumer has read everything and keeps its fetch session; its old position is deleted meanwhile."""
    other.produce(topic, ten())
    other.produce(topic, ten(first=10))
    with client.reader(topic, 0, 0, reset="earliest") as reader:
        assert len(reader.read(20)) == 20
        other.delete_records(topic, {0: 13})
        reader.seek(2)
        assert [record.offset for record in reader.read(7)] == list(range(13, 20))


def test_an_open_reader_that_returns_to_its_old_position_is_refused(client: Driver, other: Driver, topic: str) -> None:
    other.produce(topic, ten())
    with client.reader(topic, 0, 0) as reader:
        assert len(reader.read(10)) == 10
        other.delete_records(topic, {0: TO_HIGH_WATERMARK})
        reader.seek(9)
        with pytest.raises(OutOfRangeError):
            reader.read(1)


def test_a_time_search_never_finds_a_deleted_record(client: Driver, other: Driver, topic: str) -> None:
    """One batch of ten, the start in its middle: the answer is the first record at or after both time and start."""
    other.produce(topic, ten(), codec="snappy")
    other.delete_records(topic, {0: 4})
    assert client.offset_for_time(topic, 0, BASE_TIME_MS) == 4
    assert client.offset_for_time(topic, 0, BASE_TIME_MS + 6000) == 6
    other.delete_records(topic, {0: TO_HIGH_WATERMARK})
    assert client.offset_for_time(topic, 0, BASE_TIME_MS) is None


def test_delete_by_time_removes_what_is_older(library: Driver, topic: str) -> None:
    """The two calls that a user makes: the offset for a time, then DeleteRecords to it."""
    library.produce(topic, ten())
    offset = library.offset_for_time(topic, 0, BASE_TIME_MS + 7000)
    assert offset == 7
    library.delete_records(topic, {0: offset})
    with library.reader(topic, 0, 0, reset="earliest") as reader:
        assert [record.value for record in reader.read(3)] == [b"7", b"8", b"9"]
