"""franz-go, the client that most Go programs use: produces, consumes and administers a Lowtide broker that runs as a process."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import load
from .franz_go import FranzGo, FranzGoError, Record, build, plain, read_line, record, write
from .lowtide_process import LowtideProcess

pytestmark = pytest.mark.interop

BASE_TIME_MS = 1_700_000_000_000
NODE_ID = 0
RELEASES = ["0.11.0", "1.1", "2.1", "2.4", "2.8", "3.5", "4.0"]
"""Each speaks other versions of the protocol: records v2 first, zstd, flexible versions, topic ids, and so on."""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built client."""
    if shutil.which("go") is None:
        assert os.environ.get("CI_INTEROP") != "1", "CI_INTEROP=1, but go not installed"
        pytest.skip("go not installed")
    return build(tmp_path_factory.mktemp("franz-go"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """One broker for all tests, with two log directories; whatever its clients do, it has nothing to complain of."""
    folder = tmp_path_factory.mktemp("lowtide")
    with LowtideProcess(folder / "one", log_dirs=f"{folder / 'one'},{folder / 'two'}") as process:
        yield process


@pytest.fixture
def go(program: Path, broker: LowtideProcess) -> FranzGo:
    return FranzGo(program, broker.bootstrap)


@pytest.fixture
def topic(go: FranzGo) -> str:
    """A topic of three empty partitions."""
    name = f"franz-go-{uuid.uuid4().hex[:8]}"
    assert go.one("create-topic", topic=name, count=3)["error"] == ""
    return name


def numbered(count: int, *, first: int = 0, partition: int = 0) -> list[Record]:
    """Records one second apart whose values differ and compress."""
    return [
        Record(b"value-%d " % n * 10, b"key-%d" % n, timestamp_ms=BASE_TIME_MS + n * 1000, partition=partition)
        for n in range(first, first + count)
    ]


@pytest.mark.parametrize("codec", load.CODECS)
def test_a_batch_of_every_codec_is_read_by_franz_go_and_by_librdkafka(go: FranzGo, broker: LowtideProcess, topic: str, codec: str) -> None:
    sent = numbered(100)
    assert [line["offset"] for line in go.produce(topic, sent, codec=codec)] == list(range(100))
    got = go.consume(topic, 100)
    assert [record(line) for line in got] == sent
    assert [line["offset"] for line in got] == list(range(100))
    assert {line["codec"] for line in got} == {codec}
    read = load.read(broker.bootstrap, topic, 0, 100)
    assert [(entry.key, entry.value, entry.timestamp_ms) for entry in read] == [(r.key, r.value, r.timestamp_ms) for r in sent]


def test_franz_go_reads_the_batches_of_librdkafka(go: FranzGo, broker: LowtideProcess, topic: str) -> None:
    """librdkafka compresses by lz4 only for a broker that lists FindCoordinator; for this one it sends those records as they are."""
    written = load.produce(broker.bootstrap, topic)
    got = go.consume(topic, load.COUNT)
    assert [load.Entry(line["offset"], line["timestamp_ms"], plain(line["key"]), plain(line["value"])) for line in got] == written
    assert {line["codec"] for line in got} == set(load.CODECS) - {"lz4"}


@pytest.mark.parametrize("release", RELEASES)
def test_a_client_of_an_older_release_writes_reads_and_asks_for_offsets(go: FranzGo, release: str) -> None:
    """The client sends no version that this release of Kafka didn't have."""
    topic, sent = f"release-{release}-{uuid.uuid4().hex[:8]}", numbered(20)
    assert go.one("create-topic", topic=topic, count=1, versions=release)["error"] == ""
    go.produce(topic, sent, codec="lz4", versions=release)
    assert [record(line) for line in go.consume(topic, 20, versions=release)] == sent
    assert [record(line) for line in go.consume(topic, 5, versions=release, **{"from": f"@{BASE_TIME_MS + 15_000}"})] == sent[15:]
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
    assert [record(line) for line in go.consume(topic, len(sent))] == [r._replace(timestamp_ms=t) for r, t in zip(sent, times, strict=True)]


def test_an_idempotent_producer_is_known_to_the_partition_and_writes_once(go: FranzGo, topic: str) -> None:
    """franz-go is idempotent unless told otherwise: its records carry the id that the broker gave it."""
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


def test_a_consumer_begins_where_it_is_told(go: FranzGo, topic: str) -> None:
    """Inside of a batch, at a time, and, read committed, at the same places."""
    go.produce(topic, numbered(20), codec="gzip")
    for committed in (False, True):
        for start in ("13", f"@{BASE_TIME_MS + 12_001}"):
            got = go.consume(topic, 7, committed=committed, **{"from": start})
            assert [record(line) for line in got] == numbered(7, first=13)


def test_an_open_consumer_goes_back_and_reads_again(go: FranzGo, topic: str) -> None:
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
    assert [(line["offset"], line["timestamp_ms"]) for line in latest] == [(3, BASE_TIME_MS + 60_000), (-1, -1), (-1, -1)]
    found = go.run("list-offsets", topic=topic, at=f"@{BASE_TIME_MS + 1500}")
    assert [(line["offset"], line["timestamp_ms"]) for line in found] == [(2, BASE_TIME_MS + 2000), (0, -1), (0, -1)]
    assert go.offsets(topic, f"@{BASE_TIME_MS + 60_001}")[0] == 10
    assert {line["leader_epoch"] for line in found} == {0}


def test_a_leader_epoch_ends_at_the_end_of_the_log(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(5))
    assert go.one("epoch-end", topic=topic, epoch=0) == {"partition": 0, "leader_epoch": 0, "end_offset": 5, "error": ""}


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


def test_an_open_consumer_that_goes_below_the_new_start_is_refused(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(10))
    go.run("delete-records", topic=topic, offset=6)
    *before, refused = go.consume(topic, 4, seek=2, again=1)
    assert [line["offset"] for line in before] == [6, 7, 8, 9]
    assert refused["error"] == "OFFSET_OUT_OF_RANGE"


def test_a_delete_to_the_high_watermark_empties_the_partition_that_goes_on(go: FranzGo, topic: str) -> None:
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


def test_topics_are_created_described_and_deleted(go: FranzGo) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    settings = {"config": ["retention.ms=3600000", "segment.bytes=2097152"], "count": 5, "topic": topic}
    assert go.one("create-topic", dry=True, **settings)["error"] == ""
    assert go.run("metadata", topic=topic)[-1]["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    made = go.one("create-topic", **settings)
    assert (made["error"], made["partitions"], made["replicas"], made["configs"]["segment.bytes"]) == ("", 5, 1, "2097152")
    assert go.one("create-topic", **settings)["error"] == "TOPIC_ALREADY_EXISTS"
    described = [line for line in go.run("metadata", topic=topic) if line.get("topic")]
    assert (described[0]["id"], described[0]["internal"]) == (made["id"], False)
    assert [(line["partition"], line["leader"], line["replicas"], line["isr"]) for line in described[1:]] == [
        (partition, NODE_ID, [NODE_ID], [NODE_ID]) for partition in range(5)
    ]
    assert go.one("delete-topic", topic=topic)["error"] == ""
    assert go.one("delete-topic", topic=topic)["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize(
    ("topic", "flags", "error"),
    [
        ("not/a/topic", {}, "INVALID_TOPIC_EXCEPTION"),
        ("a" * 250, {}, "INVALID_TOPIC_EXCEPTION"),
        ("no-partitions", {"count": 0}, "INVALID_PARTITIONS"),
        ("bad-config", {"config": ["segment.bytes=few"]}, "INVALID_CONFIG"),
        ("no-such-config", {"config": ["segment.bites=1"]}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_a_reason(go: FranzGo, topic: str, flags: dict[str, object], error: str) -> None:
    refused = go.one("create-topic", topic=topic, **flags)
    assert refused["error"] == error
    assert refused["message"]


def test_the_cluster_tells_its_broker_and_controller(go: FranzGo, broker: LowtideProcess, topic: str) -> None:
    cluster, told = go.run("metadata", topic=topic)[:2]
    assert cluster["controller"] == NODE_ID
    assert len(cluster["cluster"]) == 22
    assert told == {"broker": NODE_ID, "host": "127.0.0.1", "port": int(broker.bootstrap.partition(":")[2])}


def test_every_version_that_franz_go_may_speak_is_told(go: FranzGo) -> None:
    told = go.one("api-versions")["versions"]
    expected = {
        "Produce": [0, 13],
        "Fetch": [4, 18],
        "ListOffsets": [1, 11],
        "Metadata": [0, 13],
        "ApiVersions": [0, 4],
        "InitProducerID": [0, 5],
    }
    assert {name: told[name] for name in expected} == expected


def test_a_record_beyond_the_limit_is_refused_and_the_topic_may_raise_it(go: FranzGo, topic: str) -> None:
    """The client's own limit is raised, so that the broker's is met: 1,048,588 bytes a batch."""
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


def test_partitions_are_added_and_used(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(3, partition=2))
    assert go.one("create-partitions", topic=topic, count=9, dry=True)["error"] == ""
    assert len(go.offsets(topic)) == 3
    assert go.one("create-partitions", topic=topic, count=5)["error"] == ""
    assert go.one("create-partitions", topic=topic, count=1, add=True)["error"] == ""
    sent = numbered(4, partition=5)
    go.produce(topic, sent)
    assert [record(line) for line in go.consume(topic, 4, partitions="5")] == sent
    assert go.offsets(topic) == {0: 0, 1: 0, 2: 3, 3: 0, 4: 0, 5: 4}


@pytest.mark.parametrize(("count", "error"), [(2, "INVALID_PARTITIONS"), (3, "INVALID_PARTITIONS"), (0, "INVALID_PARTITIONS")])
def test_partitions_are_never_taken_away(go: FranzGo, topic: str, count: int, error: str) -> None:
    refused = go.one("create-partitions", topic=topic, count=count)
    assert refused["error"] == error
    assert refused["message"]
    assert len(go.offsets(topic)) == 3


def test_the_cluster_is_described(go: FranzGo, broker: LowtideProcess) -> None:
    told, known = go.one("describe-cluster"), go.run("metadata")[0]
    host, _, port = broker.bootstrap.partition(":")
    assert (told["cluster"], told["controller"], told["error"]) == (known["cluster"], NODE_ID, "")
    assert told["brokers"] == [{"broker": NODE_ID, "host": host, "port": int(port), "rack": None}]


def configs(go: FranzGo, **flags: object) -> dict[str, dict[str, object]]:
    return {line["name"]: line for line in go.run("describe-configs", **flags)}


def test_a_topic_s_configuration_is_described_with_where_it_comes_from(go: FranzGo) -> None:
    topic = f"configured-{uuid.uuid4().hex[:8]}"
    made = go.one("create-topic", topic=topic, config=["segment.bytes=2097152"])
    told = configs(go, topic=topic)
    assert {name: line["value"] for name, line in told.items()} == made["configs"]
    assert told["segment.bytes"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert told["segment.bytes"]["synonyms"] == [
        {"name": "segment.bytes", "value": "2097152", "source": "DYNAMIC_TOPIC_CONFIG"},
        {"name": "log.segment.bytes", "value": "1073741824", "source": "DEFAULT_CONFIG"},
    ]
    assert told["max.message.bytes"]["source"] == "DEFAULT_CONFIG"
    [unknown] = go.run("describe-configs", topic="no-such-topic")
    assert unknown["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_topic_s_configuration_is_altered_key_by_key(go: FranzGo, topic: str) -> None:
    """Set, append, subtract and delete, by IncrementalAlterConfigs; what is only validated changes nothing."""

    def alter(*changes: str, dry: bool = False) -> str:
        return go.one("alter-configs", topic=topic, config=list(changes), dry=dry)["error"]

    assert alter("segment.bytes=3000000", dry=True) == ""
    assert configs(go, topic=topic)["segment.bytes"]["value"] == "1073741824"
    assert alter("segment.bytes=3000000", "+cleanup.policy=compact") == ""
    told = configs(go, topic=topic)
    assert (told["segment.bytes"]["value"], told["cleanup.policy"]["value"]) == ("3000000", "delete,compact")
    assert alter("-cleanup.policy=delete", "!segment.bytes") == ""
    told = configs(go, topic=topic)
    assert (told["segment.bytes"]["source"], told["cleanup.policy"]["value"]) == ("DEFAULT_CONFIG", "compact")


def test_a_topic_s_configuration_is_replaced_by_the_older_request(go: FranzGo, topic: str) -> None:
    """AlterConfigs: what is not named goes back to its default."""
    assert go.one("alter-configs", topic=topic, config=["segment.bytes=3000000", "retention.ms=1000000"])["error"] == ""
    assert go.one("alter-configs", topic=topic, legacy=True, dry=True, config=["retention.bytes=5"])["error"] == ""
    assert configs(go, topic=topic)["segment.bytes"]["value"] == "3000000"
    assert go.one("alter-configs", topic=topic, legacy=True, config=["retention.ms=2000000"])["error"] == ""
    told = configs(go, topic=topic)
    assert (told["segment.bytes"]["source"], told["retention.ms"]["value"]) == ("DEFAULT_CONFIG", "2000000")


def test_an_altered_limit_holds_at_once(go: FranzGo, topic: str) -> None:
    text = Record(b"x" * 5000).line()
    assert go.one("produce", topic=topic, text=text)["error"] == ""
    assert go.one("alter-configs", topic=topic, config=["max.message.bytes=1000"])["error"] == ""
    assert go.one("produce", topic=topic, text=text)["error"] == "MESSAGE_TOO_LARGE"
    assert go.one("alter-configs", topic=topic, config=["!max.message.bytes"])["error"] == ""
    assert go.one("produce", topic=topic, text=text)["error"] == ""


@pytest.mark.parametrize("legacy", [False, True], ids=["incremental", "legacy"])
@pytest.mark.parametrize(("change", "error"), [("segment.bytes=few", "INVALID_CONFIG"), ("segment.bites=1", "INVALID_CONFIG")])
def test_a_configuration_that_cannot_be_is_refused_with_a_reason(go: FranzGo, topic: str, change: str, error: str, legacy: bool) -> None:
    refused = go.one("alter-configs", topic=topic, config=[change], legacy=legacy)
    assert refused["error"] == error
    assert refused["message"]


def test_a_broker_s_configuration_is_described_and_altered(go: FranzGo, broker: LowtideProcess) -> None:
    """What was given at the start is static; what is altered is dynamic until it is deleted; some of it can't be altered."""
    told = configs(go, resource=NODE_ID)
    assert told["log.dirs"]["source"] == "STATIC_BROKER_CONFIG"
    assert told["message.max.bytes"]["source"] == "DEFAULT_CONFIG"
    assert go.one("alter-configs", resource=NODE_ID, config=["log.retention.ms=700000000"])["error"] == ""
    told = configs(go, resource=NODE_ID)
    assert (told["log.retention.ms"]["value"], told["log.retention.ms"]["source"]) == ("700000000", "DYNAMIC_BROKER_CONFIG")
    assert go.one("alter-configs", resource=NODE_ID, config=["!log.retention.ms"])["error"] == ""
    assert configs(go, resource=NODE_ID)["log.retention.ms"]["source"] == "DEFAULT_CONFIG"
    refused = go.one("alter-configs", resource=NODE_ID, config=["log.dirs=elsewhere"])
    assert refused["error"] == "INVALID_REQUEST"
    assert refused["message"]


def test_what_has_a_configuration_is_listed(go: FranzGo, topic: str) -> None:
    listed = {(line["type"], line["name"]) for line in go.run("list-configs")}
    assert {("TOPIC", topic), ("BROKER", str(NODE_ID))} <= listed


def test_log_directories_are_told_with_what_is_in_them(go: FranzGo, broker: LowtideProcess, topic: str) -> None:
    """Two directories: each partition is in one of them, with the bytes of its file; without a topic all are told."""
    go.produce(topic, numbered(10))
    told = go.run("log-dirs", topic=topic, partitions="0-2")
    directories = [broker.directory, broker.directory.with_name("two")]
    assert [(line["broker"], line["directory"], line["error"], line["cordoned"]) for line in told] == [
        (NODE_ID, str(directory), "", False) for directory in directories
    ]
    assert all(0 < line["usable_bytes"] <= line["total_bytes"] for line in told)
    found = {row["partition"]: (Path(line["directory"]), row) for line in told for row in line["partitions"]}
    assert sorted(found) == [0, 1, 2]
    for partition, (directory, row) in found.items():
        size = sum(path.stat().st_size for path in (directory / f"{topic}-{partition}").glob("*.log"))
        assert (row["bytes"], row["lag"], row["future"]) == (size, 0, False)
    assert found[0][1]["bytes"] > 0
    everything = [row["topic"] for line in go.run("log-dirs") for row in line["partitions"]]
    assert everything.count(topic) == 3


def test_the_producers_of_a_partition_are_told(go: FranzGo, topic: str) -> None:
    go.produce(topic, numbered(5))
    [written] = {line["producer_id"] for line in go.consume(topic, 5)}
    told, empty = go.run("producers", topic=topic, partitions="0-1")
    assert told["producers"] == [
        {
            "id": written,
            "epoch": 0,
            "last_sequence": 4,
            "last_timestamp_ms": BASE_TIME_MS + 4000,
            "coordinator_epoch": -1,
            "transaction_start": -1,
        }
    ]
    assert (empty["producers"], empty["error"]) == ([], "")


def test_a_producer_and_a_consumer_go_on_after_the_broker_was_killed(program: Path, tmp_path: Path) -> None:
    """Both keep their connection open while it dies and comes back on its port; each record is there once and in order."""
    sent = numbered(12)
    with ExitStack() as stack:
        broker = stack.enter_context(LowtideProcess(tmp_path))
        go = FranzGo(program, broker.bootstrap)
        assert go.one("create-topic", topic="restarted")["error"] == ""
        producing = stack.enter_context(go.open("produce", topic="restarted", each=True))
        consuming = stack.enter_context(go.open("consume", topic="restarted", count=len(sent)))
        for n, one in enumerate(sent):
            if n in (4, 8):
                broker.kill()
            write(producing, one.line())
            if n in (4, 8):
                broker = stack.enter_context(LowtideProcess(tmp_path, listeners=f"PLAINTEXT://{broker.bootstrap}"))
            assert json.loads(read_line(producing))["offset"] == n
            assert json.loads(read_line(consuming))["offset"] == n
        got = go.consume("restarted", 12)
        assert [record(line) for line in got] == sent
        assert len({line["producer_id"] for line in got}) == 1


def test_an_unknown_command_is_no_success(go: FranzGo) -> None:
    """The control: what the program can't do fails the test that asks for it."""
    with pytest.raises(FranzGoError, match="list-offsets"):
        go.run("no-such-command")
    with pytest.raises(FranzGoError, match="no codec"):
        go.run("produce", codec="rle")
