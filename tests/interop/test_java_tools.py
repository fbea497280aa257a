"""Kafka's command line tools, unmodified, against a running Lowtide."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lowtide.protocol.api_keys import API, FIRST_OF_OURS, ApiKey

from . import load
from .kafka import dump
from .lowtide_process import LowtideProcess
from .tools import EACH_VERSION, JavaClient, Ran, Tools

pytestmark = pytest.mark.interop

KEEP_OLD = ("--config", "retention.ms=-1")
"""Records have timestamps from years ago: retention must not delete them."""


def create(tools: Tools, topic: str, partitions: int = 1, *more: str) -> None:
    tools.run("kafka-topics", "--create", "--topic", topic, "--partitions", str(partitions), *more)


def offsets(tools: Tools, topic: str, time: str) -> dict[int, int]:
    """Returns the output of kafka-get-offsets for each partition; one without such an offset is left out."""
    found = tools.run("kafka-get-offsets", "--topic", topic, "--time", time).lines
    assert {line.split(":")[0] for line in found} <= {topic}
    return {int(line.split(":")[1]): int(line.split(":")[2]) for line in found}


def delete_records(tools: Tools, folder: Path, topic: str, before: dict[int, int]) -> Ran:
    """Runs kafka-delete-records; it exits with 0 even if a partition fails."""
    rows = [{"topic": topic, "partition": partition, "offset": offset} for partition, offset in before.items()]
    file = folder / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    ran = tools.call("kafka-delete-records", "--offset-json-file", str(file))
    assert ran.exit_code == 0, ran
    return ran


@EACH_VERSION
def test_topics_are_created_listed_and_deleted(tools: Tools) -> None:
    create(tools, "topics", 3)
    again = tools.call("kafka-topics", "--create", "--topic", "topics")
    assert (again.exit_code, "Error while executing topic command : Topic 'topics' already exists" in again.out) == (
        1,
        True,
    )
    tools.run("kafka-topics", "--create", "--topic", "topics", "--if-not-exists")
    assert "topics" in tools.run("kafka-topics", "--list").lines
    assert offsets(tools, "topics", "latest") == {0: 0, 1: 0, 2: 0}
    tools.run("kafka-topics", "--delete", "--topic", "topics")
    assert "topics" not in tools.run("kafka-topics", "--list").lines


@pytest.mark.parametrize(
    ("wrong", "says"), [(("--replication-factor", "3"), "replica"), (("--config", "segment.bytes=12"), "segment.bytes")]
)
def test_an_impossible_configuration_is_refused_with_a_message(tools: Tools, wrong: tuple[str, str], says: str) -> None:
    refused = tools.call("kafka-topics", "--create", "--topic", "refused", *wrong)
    assert refused.exit_code == 1
    assert says in refused.out


def test_offsets_of_every_kind(tools: Tools, tmp_path: Path) -> None:
    """The tool distinguishes local and tiered storage; without tiered storage the whole log is local."""
    create(tools, "offsets", 2, *KEEP_OLD)
    written = load.produce(tools.bootstrap, "offsets", codecs=["lz4"])
    delete_records(tools, tmp_path, "offsets", {0: 100})
    for time, expected in {
        "earliest": {0: 100, 1: 0},
        "latest": {0: load.PER_CODEC, 1: 0},
        "max-timestamp": {0: load.PER_CODEC - 1},
        "earliest-local": {0: 100, 1: 0},
        "latest-tiered": {},
        "earliest-pending-upload": {},
        str(written[321].timestamp_ms): {0: 321},
        str(written[321].timestamp_ms + 1): {0: 322},
        str(written[10].timestamp_ms): {0: 100},
        str(written[-1].timestamp_ms + 1): {},
    }.items():
        assert offsets(tools, "offsets", time) == expected, time


@EACH_VERSION
def test_records_are_deleted(tools: Tools, tmp_path: Path) -> None:
    create(tools, "deleted", 3, *KEEP_OLD)
    for partition in range(2):
        load.produce(tools.bootstrap, "deleted", partition=partition, codecs=["none"])
    said = delete_records(tools, tmp_path, "deleted", {0: 123, 1: -1, 2: 1}).lines
    assert "partition: deleted-0\tlow_watermark: 123" in said
    assert f"partition: deleted-1\tlow_watermark: {load.PER_CODEC}" in said
    assert [line for line in said if "deleted-2" in line and "OffsetOutOfRangeException" in line]
    assert offsets(tools, "deleted", "earliest") == {0: 123, 1: load.PER_CODEC, 2: 0}


@EACH_VERSION
def test_log_directories_have_their_partitions(tools: Tools, broker: LowtideProcess) -> None:
    create(tools, "directories", 2, *KEEP_OLD)
    load.produce(tools.bootstrap, "directories", partition=1, codecs=["none"])
    said = tools.run("kafka-log-dirs", "--describe", "--topic-list", "directories").lines
    [described] = json.loads(said[-1])["brokers"]
    [directory] = described["logDirs"]
    assert (described["broker"], directory["logDir"], directory["error"]) == (0, str(broker.directory), None)
    replicas = {replica.pop("partition"): replica for replica in directory["partitions"]}
    size = (broker.directory / "directories-1" / f"{0:020}.log").stat().st_size
    assert size > load.PER_CODEC * load.VALUE_BYTES
    assert replicas == {
        "directories-0": {"size": 0, "offsetLag": 0, "isFuture": False},
        "directories-1": {"size": size, "offsetLag": 0, "isFuture": False},
    }


def test_console_producer_and_consumer(tools: Tools) -> None:
    """Keys, headers, nulls and text outside ASCII, written and read through a terminal."""
    create(tools, "console", 2)
    properties = [
        f"--reader-property={pair}" for pair in ("parse.key=true", "parse.headers=true", "null.marker=NOTHING")
    ]
    lines = ["a:1,b:2\tkey\tvalue", "c:3\tNOTHING\tblåbær", "NOTHING\tkey\tNOTHING"]
    tools.run(
        "kafka-console-producer",
        "--topic",
        "console",
        "--compression-codec",
        "zstd",
        *properties,
        stdin="\n".join(lines) + "\n",
    )
    show = [f"--formatter-property=print.{part}=true" for part in ("partition", "offset", "key", "headers")]
    read: list[str] = []
    for partition, count in offsets(tools, "console", "latest").items():
        if count > 0:
            place = ("--partition", str(partition), "--offset", "earliest", "--max-messages", str(count))
            read += tools.run("kafka-console-consumer", "--topic", "console", *place, *show).lines
    expected = ["a:1,b:2\tkey\tvalue", "c:3\tnull\tblåbær", "NO_HEADERS\tkey\tnull"]
    assert sorted(line.split("\t", 2)[2] for line in read) == sorted(expected)


def test_the_console_consumer_starts_at_its_configured_position(tools: Tools, tmp_path: Path) -> None:
    create(tools, "from-offset", 1, *KEEP_OLD)
    written = load.produce(tools.bootstrap, "from-offset", codecs=["gzip"])
    delete_records(tools, tmp_path, "from-offset", {0: 50})
    arguments = (
        "--topic",
        "from-offset",
        "--partition",
        "0",
        "--max-messages",
        "3",
        "--formatter-property=print.timestamp=true",
    )
    for start, first in (("77", 77), ("earliest", 50)):
        expected = [f"CreateTime:{entry.timestamp_ms}\t{entry.value.decode()}" for entry in written[first : first + 3]]
        assert tools.run("kafka-console-consumer", *arguments, "--offset", start).lines == expected


def test_the_tool_knows_every_version_that_is_served(tools: Tools) -> None:
    said = tools.run("kafka-broker-api-versions").out
    assert said.startswith(f"{tools.bootstrap} (id: 0 rack: null isFenced: false) -> (")
    served = re.findall(r"^\t\w+\((\d+)\): (\d+)(?: to (\d+))? \[usable: (\d+)\]", said, re.MULTILINE)
    # Brokers send envelopes; clients push to what is subscribed to.
    unlisted = {ApiKey.ENVELOPE, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    assert {int(row[0]) for row in served} == {key for key in API if key < FIRST_OF_OURS} - unlisted
    for key, low, high, usable in (
        (ApiKey(int(row[0])), int(row[1]), int(row[2] or row[1]), int(row[3])) for row in served
    ):
        lowest = (
            0 if key == ApiKey.PRODUCE else API[key].min_version
        )  # old versions of Produce are listed because of librdkafka
        assert (low, high) == (lowest, API[key].max_version), key
        assert low <= usable <= high


@EACH_VERSION
def test_the_cluster_id_is_the_one_on_disk(tools: Tools, broker: LowtideProcess) -> None:
    [said] = tools.run("kafka-cluster", "cluster-id").lines
    assert f"cluster.id={said.removeprefix('Cluster ID: ')}\n" in (broker.directory / "meta.properties").read_text()


def test_producer_performance(tools: Tools, java_client: JavaClient, jars: Path, broker: LowtideProcess) -> None:
    """Every record that the load generator counts is in the log, and is read by a consumer with large fetches."""
    create(tools, "load", 2)
    arguments = ("--num-records", "50000", "--record-size", "500", "--throughput", "-1")
    said = tools.run(
        "kafka-producer-perf-test", "--topic", "load", *arguments, "--command-property", "compression.type=lz4"
    ).lines
    assert said[-1].startswith("50000 records sent, ")
    assert sum(offsets(tools, "load", "latest").values()) == 50_000
    assert java_client.see("load")["load"] == [{"what": "all", "records": 50_000, "bytes": 50_000 * 500}]
    found = dump(jars, sorted(broker.directory.glob("load-?/*.log")), records=False)
    assert found.invalid == []
    assert sum(int(count) for count in re.findall(r" count: (\d+) ", found.text)) == 50_000


def test_consumer_performance(tools: Tools) -> None:
    create(tools, "read", 1, *KEEP_OLD)
    load.produce(tools.bootstrap, "read", codecs=["none"])
    arguments = ("--topic", "read", "--num-records", str(load.PER_CODEC), "--hide-header")
    ran = tools.call("kafka-consumer-perf-test", *arguments)
    assert ran.exit_code == 0, ran
    assert int(ran.lines[-1].split(", ")[4]) == load.PER_CODEC
