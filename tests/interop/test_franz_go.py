"""franz-go, the client that most Go programs use: writes, reads, seeks and deletes, and survives the broker.

Each expectation was met by Kafka 4.3 too, except for the codec that librdkafka chooses.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import load
from .franz_go import BASE_TIME_MS, FranzGo, FranzGoError, Record, numbered, plain, read_line, record, write
from .lowtide_process import LowtideProcess

pytestmark = pytest.mark.interop

RELEASES = ["0.11.0", "1.1", "2.1", "2.4", "2.8", "3.5", "4.0"]
"""Each uses other versions of the protocol: records v2 first, zstd, flexible versions, topic ids, and so on."""


@pytest.fixture
def topic(go: FranzGo) -> str:
    """A topic of three empty partitions."""
    name = f"franz-go-{uuid.uuid4().hex[:8]}"
    assert go.one("create-topic", topic=name, count=3)["error"] == ""
    return name


@pytest.mark.parametrize("codec", load.CODECS)
def test_a_batch_of_every_codec_is_read_by_franz_go_and_by_librdkafka(
    go: FranzGo, broker: LowtideProcess, topic: str, codec: str
) -> None:
    sent = numbered(100)
    assert [line["offset"] for line in go.produce(topic, sent, codec=codec)] == list(range(100))
    got = go.consume(topic, 100)
    assert [record(line) for line in got] == sent
    assert [line["offset"] for line in got] == list(range(100))
    assert {line["codec"] for line in got} == {codec}
    read = load.read(broker.bootstrap, topic, 0, 100)
    assert [(entry.key, entry.value, entry.timestamp_ms) for entry in read] == [
        (r.key, r.value, r.timestamp_ms) for r in sent
    ]


def test_franz_go_reads_the_batches_of_librdkafka(go: FranzGo, broker: LowtideProcess, topic: str) -> None:
    """Covers every codec; librdkafka uses lz4 only with brokers that list FindCoordinator, as this one does."""
    written = load.produce(broker.bootstrap, topic)
    got = go.consume(topic, load.COUNT)
    assert [
        load.Entry(line["offset"], line["timestamp_ms"], plain(line["key"]), plain(line["value"])) for line in got
    ] == written
    assert {line["codec"] for line in got} == set(load.CODECS)


@pytest.mark.parametrize("release", RELEASES)
def test_a_client_of_an_older_release_writes_reads_and_lists_offsets(go: FranzGo, release: str) -> None:
    """The client sends no version that this release of Kafka did not have."""
    topic, sent = f"release-{release}-{uuid.uuid4().hex[:8]}", numbered(20)
    assert go.one("create-topic", topic=topic, count=1, versions=release)["error"] == ""
    go.produce(topic, sent, codec="lz4", versions=release)
    assert [record(line) for line in go.consume(topic, 20, versions=release)] == sent
    assert [
        record(line) for line in go.consume(topic, 5, versions=release, **{"from": f"@{BASE_TIME_MS + 15_000}"})
    ] == sent[15:]
    [listed] = go.run("list-offsets", topic=topic, at="end", versions=release)
    assert (listed["offset"], listed["error"]) == (20, "")
    assert go.one("delete-records", topic=topic, offset=7, versions=release)["low_watermark"] == 7
    assert go.one("delete-topic", topic=topic, versions=release)["error"] == ""


def test_headers_nulls_and_tombstones_pass_unchanged(go: FranzGo, topic: str) -> None:
    """A null is not an empty text, and headers of one name keep their order."""
    sent = [
        Record(b"v", b"k", (("name", b"1"), ("other", b"two"), ("name", b"again"))),
        Record(b"v", None, (("null", None), ("empty", b""))),
        Record(None, b"tombstone"),
        Record(None, None),
        Record(b"", b""),
        Record(bytes(range(256)), "schlüssel".encode(), (("ü", b"\xff\x00"),)),
    ]
    times = [line["timestamp_ms"] for line in go.produce(topic, sent)]
    assert [record(line) for line in go.consume(topic, len(sent))] == [
        r._replace(timestamp_ms=t) for r, t in zip(sent, times, strict=True)
    ]


def test_an_idempotent_producer_is_known_to_the_partition_and_writes_once(go: FranzGo, topic: str) -> None:
    """franz-go is idempotent by default: its records have the producer id that the broker assigned."""
    for first in (0, 50):
        go.produce(topic, numbered(50, first=first))
    got = go.consume(topic, 100)
    assert [record(line) for line in got] == numbered(100)
    ids = [line["producer_id"] for line in got]
    assert len(set(ids)) == 2
    assert min(ids) >= 0
    assert go.offsets(topic) == {0: 100, 1: 0, 2: 0}


def test_a_producer_without_idempotence_has_no_id(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(3), plain=True)
    assert [line["producer_id"] for line in go.consume(topic, 3)] == [-1] * 3


def test_fifty_partitions_are_written_and_read_by_one_client(go: FranzGo) -> None:
    topic = f"many-{uuid.uuid4().hex[:8]}"
    assert go.one("create-topic", topic=topic, count=50)["partitions"] == 50
    sent = [r for partition in range(50) for r in numbered(partition + 1, partition=partition)]
    go.produce(topic, sent)
    got = [record(line) for line in go.consume(topic, len(sent), partitions="0-49")]
    assert sorted(got, key=lambda r: (r.partition, r.timestamp_ms)) == sent
    assert all([r for r in got if r.partition == p] == numbered(p + 1, partition=p) for p in range(50))
    assert go.offsets(topic) == {p: p + 1 for p in range(50)}


def test_a_consumer_starts_at_its_configured_position(go: FranzGo, topic: str) -> None:
    """Inside a batch, at a time, and the same with read_committed."""
    go.produce(topic, numbered(20), codec="gzip")
    for committed in (False, True):
        for start in ("13", f"@{BASE_TIME_MS + 12_001}"):
            got = go.consume(topic, 7, committed=committed, **{"from": start})
            assert [record(line) for line in got] == numbered(7, first=13)


def test_an_open_consumer_seeks_back_and_reads_again(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(10))
    assert [line["offset"] for line in go.consume(topic, 10, seek=4, again=6)] == [*range(10), *range(4, 10)]


def test_a_consumer_that_waits_at_the_end_gets_what_is_written_later(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(2))
    with go.open("consume", topic=topic, count=3) as waiting:
        assert [json.loads(read_line(waiting))["offset"] for _ in range(2)] == [0, 1]
        go.produce(topic, numbered(1, first=2))
        assert json.loads(read_line(waiting))["offset"] == 2


def test_every_kind_of_offset_is_listed(go: FranzGo, topic: str) -> None:
    """The record with the largest time is the fourth of ten."""
    records = [r._replace(timestamp_ms=BASE_TIME_MS + 60_000) if n == 3 else r for n, r in enumerate(numbered(10))]
    go.produce(topic, records)
    assert go.offsets(topic, "start") == {0: 0, 1: 0, 2: 0}
    assert go.offsets(topic, "end") == {0: 10, 1: 0, 2: 0}
    assert go.offsets(topic, "committed") == {0: 10, 1: 0, 2: 0}
    assert go.offsets(topic, "local-start") == {0: 0, 1: 0, 2: 0}
    assert go.offsets(topic, "remote") == {0: -1, 1: -1, 2: -1}
    latest = go.run("list-offsets", topic=topic, at="max-timestamp")
    assert [(line["offset"], line["timestamp_ms"]) for line in latest] == [
        (3, BASE_TIME_MS + 60_000),
        (-1, -1),
        (-1, -1),
    ]
    found = go.run("list-offsets", topic=topic, at=f"@{BASE_TIME_MS + 1500}")
    assert [(line["offset"], line["timestamp_ms"]) for line in found] == [(2, BASE_TIME_MS + 2000), (0, -1), (0, -1)]
    assert go.offsets(topic, f"@{BASE_TIME_MS + 60_001}")[0] == 10
    assert {line["leader_epoch"] for line in found} == {0}


def test_a_leader_epoch_ends_at_the_end_of_the_log(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(5))
    assert go.one("epoch-end", topic=topic, epoch=0) == {
        "partition": 0,
        "leader_epoch": 0,
        "end_offset": 5,
        "error": "",
    }


def test_a_delete_answers_the_low_watermark_and_readers_below_are_refused_or_reset(go: FranzGo, topic: str) -> None:
    go.produce(topic, [*numbered(10), *numbered(10, partition=1)], codec="zstd")
    deleted = go.run("delete-records", topic=topic, partitions="0-1", offset=4)
    assert [(line["partition"], line["low_watermark"], line["error"]) for line in deleted] == [(0, 4, ""), (1, 4, "")]
    assert go.offsets(topic, "start") == {0: 4, 1: 4, 2: 0}
    [refused] = go.consume(topic, 1, **{"from": "3"})
    assert refused["error"] == "OFFSET_OUT_OF_RANGE"
    assert [record(line) for line in go.consume(topic, 6, reset="start", **{"from": "3"})] == numbered(6, first=4)
    assert [record(line) for line in go.consume(topic, 6, **{"from": "4"})] == numbered(6, first=4)
    assert go.offsets(topic, f"@{BASE_TIME_MS}")[0] == 4


def test_an_open_consumer_that_seeks_below_the_new_start_is_refused(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(10))
    go.run("delete-records", topic=topic, offset=6)
    *before, refused = go.consume(topic, 4, seek=2, again=1)
    assert [line["offset"] for line in before] == [6, 7, 8, 9]
    assert refused["error"] == "OFFSET_OUT_OF_RANGE"


def test_a_delete_to_the_high_watermark_empties_the_partition_that_continues(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(10))
    assert go.one("delete-records", topic=topic, offset=-1)["low_watermark"] == 10
    assert go.offsets(topic, f"@{BASE_TIME_MS}")[0] == 10
    go.produce(topic, numbered(1, first=10))
    assert [line["offset"] for line in go.consume(topic, 1)] == [10]


def test_a_delete_beyond_the_high_watermark_is_refused(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(10))
    refused = go.one("delete-records", topic=topic, offset=11)
    assert (refused["low_watermark"], refused["error"]) == (-1, "OFFSET_OUT_OF_RANGE")
    assert go.offsets(topic, "start")[0] == 0


def test_a_record_beyond_the_limit_is_refused_and_the_topic_may_raise_it(go: FranzGo, topic: str) -> None:
    """The client's own limit is raised, so that the broker's limit is reached: 1,048,588 bytes a batch."""
    for size in (1_048_588 - 100, 1_048_588):
        text = Record(os.urandom(size)).line()
        line = go.one("produce", topic=topic, text=text, max_bytes=8_000_000)
        assert line["error"] == ("" if size < 1_048_588 else "MESSAGE_TOO_LARGE")
    larger = f"larger-{uuid.uuid4().hex[:8]}"
    assert go.one("create-topic", topic=larger, config=["max.message.bytes=4000000"])["error"] == ""
    sent = Record(os.urandom(3_900_000))
    go.produce(larger, [sent], max_bytes=8_000_000)
    [got] = go.consume(larger, 1)
    assert record(got).value == sent.value


def test_a_producer_and_a_consumer_continue_after_the_broker_was_killed(franz_go_program: Path, tmp_path: Path) -> None:
    """Both keep their connection while the broker is killed and restarts: each record is there once, in order."""
    sent = numbered(12)
    with ExitStack() as stack:
        broker = stack.enter_context(LowtideProcess(tmp_path))
        go = FranzGo(franz_go_program, broker.bootstrap)
        assert go.one("create-topic", topic="restarted")["error"] == ""
        producing = stack.enter_context(go.open("produce", topic="restarted", each=True))
        consuming = stack.enter_context(go.open("consume", topic="restarted", count=len(sent)))
        for n, one in enumerate(sent):
            if n in (4, 8):
                broker.kill()
            write(producing, one.line())
            if n in (4, 8):
                broker = stack.enter_context(
                    LowtideProcess(tmp_path, after_kill=True, listeners=f"PLAINTEXT://{broker.bootstrap}")
                )
            assert json.loads(read_line(producing))["offset"] == n
            assert json.loads(read_line(consuming))["offset"] == n
        got = go.consume("restarted", 12)
        assert [record(line) for line in got] == sent
        assert len({line["producer_id"] for line in got}) == 1


def test_each_record_of_a_stream_is_written_once_though_the_broker_is_killed_during_it(
    franz_go_program: Path, tmp_path: Path
) -> None:
    """Five requests are in flight when the broker is killed; it recognizes their duplicates later."""
    count = 40_000
    with ExitStack() as stack:
        broker = stack.enter_context(LowtideProcess(tmp_path))
        go = FranzGo(franz_go_program, broker.bootstrap)
        assert go.one("create-topic", topic="stream")["error"] == ""
        producing = stack.enter_context(go.open("produce", topic="stream", generate=count))
        for size in (1_000_000, 3_000_000):
            wait_for_bytes(tmp_path / "stream-0", size)
            broker.kill()
            assert log_bytes(tmp_path / "stream-0") < count * 500, "everything was written before"
            broker = stack.enter_context(
                LowtideProcess(tmp_path, after_kill=True, listeners=f"PLAINTEXT://{broker.bootstrap}")
            )
        assert json.loads(read_line(producing)) == {"sent": count, "refused": 0}
        assert go.offsets("stream") == {0: count}
        got = go.consume("stream", count)
        assert [int(plain(line["value"]) or b"") for line in got] == list(range(count))


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def wait_for_bytes(folder: Path, size: int) -> None:
    """Waits until the log of a partition has this size."""
    deadline = time.monotonic() + load.DEADLINE_S
    while log_bytes(folder) < size:
        assert time.monotonic() < deadline, "the log does not grow"
        time.sleep(0.001)


def test_an_unknown_command_fails(go: FranzGo) -> None:
    """The control case: an unsupported command fails the test that uses it."""
    with pytest.raises(FranzGoError, match="list-offsets"):
        go.run("no-such-command")
    with pytest.raises(FranzGoError, match="no codec"):
        go.run("produce", codec="rle")
