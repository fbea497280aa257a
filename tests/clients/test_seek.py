"""An open consumer requests the offset of a time, seeks there, and reads; it also seeks backwards and forwards."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from .driver import Driver, OutgoingRecord
from .driver_kcat import run_kcat
from .open_clients import OPEN_CONSUMERS

BASE_TIME_MS = 1_700_000_000_000
STEP_MS = 1_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def written(other: Driver, topic: str) -> str:
    """Ten records in each of two partitions, one a second, a batch of every codec; partition 1 begins an hour later."""
    for partition, start in ((0, BASE_TIME_MS), (1, BASE_TIME_MS + 3_600_000)):
        for batch, codec in enumerate(CODECS):
            rows = [OutgoingRecord(b"k", b"%d" % n, start + n * STEP_MS) for n in (2 * batch, 2 * batch + 1)]
            other.produce(topic, rows, partition=partition, codec=codec)
    return topic


@pytest.mark.parametrize("name", OPEN_CONSUMERS)
def test_an_open_consumer_seeks_by_time_in_each_partition(lowtide: SimpleNamespace, written: str, name: str) -> None:
    with OPEN_CONSUMERS[name](lowtide.bootstrap, written, {0: 0, 1: 0}) as consumer:
        assert {p: len(rows) for p, rows in consumer.read(20).items()} == {0: 10, 1: 10}
        for wanted in (7, 2, 9):
            offset = consumer.offset_for_time(0, BASE_TIME_MS + wanted * STEP_MS - 1)
            assert offset == wanted
            consumer.seek(0, offset)
            rows = consumer.read(10 - wanted)
            assert list(rows) == [0]
            assert [row.timestamp_ms for row in rows[0]] == [BASE_TIME_MS + n * STEP_MS for n in range(wanted, 10)]
        assert consumer.offset_for_time(1, BASE_TIME_MS + 9 * STEP_MS) == 0
        assert consumer.offset_for_time(0, BASE_TIME_MS + 9 * STEP_MS + 1) is None


@pytest.mark.parametrize("name", OPEN_CONSUMERS)
def test_an_open_consumer_that_seeks_by_time_after_a_delete_begins_at_the_new_start(
    lowtide: SimpleNamespace, other: Driver, written: str, name: str
) -> None:
    with OPEN_CONSUMERS[name](lowtide.bootstrap, written, {0: 0}) as consumer:
        consumer.read(10)
        other.delete_records(written, {0: 5})
        offset = consumer.offset_for_time(0, BASE_TIME_MS)
        assert offset == 5
        consumer.seek(0, offset)
        assert [row.value for row in consumer.read(5)[0]] == [b"5", b"6", b"7", b"8", b"9"]


def test_kcat_reads_from_a_time_up_to_a_time(lowtide: SimpleNamespace, written: str) -> None:
    """kcat's -o s@ and e@ are two look-ups before it starts."""
    span = ["-o", f"s@{BASE_TIME_MS + 3 * STEP_MS}", "-o", f"e@{BASE_TIME_MS + 7 * STEP_MS}"]
    lines = run_kcat(lowtide.bootstrap, "-C", "-J", "-q", "-t", written, "-p", "0", *span).splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [3, 4, 5, 6]


def test_kcat_reads_the_last_records(lowtide: SimpleNamespace, written: str) -> None:
    """A position relative to the end is the end offset minus the count."""
    lines = run_kcat(lowtide.bootstrap, "-C", "-J", "-q", "-e", "-t", written, "-p", "1", "-o", "-3").splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["7", "8", "9"]
