"""`lowtide-delete-records` beside Apache Kafka's `kafka-delete-records`: the same file against the same broker,
compared line by line.

And the other deletes of the command line, against a Kafka broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .conftest import free_ports
from .kafka import Kafka
from .tools import Ran, Tools

pytestmark = pytest.mark.interop

PARTITIONS = range(3)
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def node(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A running node of Apache Kafka."""
    kafka = Kafka(jars, tmp_path_factory.mktemp("node") / "kafka", free_ports(2))
    kafka.start()
    yield kafka
    kafka.stop()


@pytest.fixture(scope="module")
def kafkas(jars: Path, node: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Kafka's tools, against its own broker."""
    return Tools(jars, node.bootstrap, tmp_path_factory.mktemp("tools"))


@pytest.fixture
def topics(node: Kafka, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two equal topics: ten records in each of three partitions."""
    names = (f"{request.node.originalname}-theirs"[-80:], f"{request.node.originalname}-ours"[-80:])
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for made in admin.create_topics([NewTopic(name, num_partitions=len(PARTITIONS)) for name in names]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for name in names:
        for partition in PARTITIONS:
            for number in range(10):
                producer.produce(name, f"v{number}", partition=partition)
    assert producer.flush(30) == 0
    return names


def ours(node: Kafka, *arguments: object, module: str = "lowtide.cli.delete_records_tool") -> Ran:
    words = [sys.executable, "-m", module, *map(str, arguments), "--bootstrap-server", node.bootstrap]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def file_of(folder: Path, topic: str, *offsets: int) -> Path:
    file = folder / f"{topic}.json"
    rows = [{"topic": topic, "partition": partition, "offset": offset} for partition, offset in enumerate(offsets)]
    file.write_text(json.dumps({"partitions": rows, "version": 1}))
    return file


def alike(ran: Ran, topic: str) -> tuple[list[str], dict[str, str]]:
    """Returns the output without topic names and without the texts of errors."""
    head = [line for line in ran.lines if not line.startswith("partition: ")]
    rows = dict(
        line.removeprefix(f"partition: {topic}-").split("\t", 1) for line in ran.lines if line.startswith("partition: ")
    )
    return head, {partition: "error" if text.startswith("error: ") else text for partition, text in rows.items()}


def test_both_print_the_same(node: Kafka, kafkas: Tools, topics: tuple[str, str], tmp_path: Path) -> None:
    """Offsets, the high watermark, and an offset beyond it.

    Kafka's order is that of a hash table, ours that of the file.
    """
    theirs = kafkas.call("kafka-delete-records", "--offset-json-file", str(file_of(tmp_path, topics[0], 4, -1, 11)))
    mine = ours(node, "--offset-json-file", file_of(tmp_path, topics[1], 4, -1, 11))
    assert alike(theirs, topics[0]) == alike(mine, topics[1])
    assert alike(mine, topics[1])[1] == {"0": "low_watermark: 4", "1": "low_watermark: 10", "2": "error"}
    assert (theirs.exit_code, mine.exit_code) == (0, 1)  # Kafka's tool always ends with 0.


def test_an_invalid_file_is_refused_by_both(
    node: Kafka, kafkas: Tools, topics: tuple[str, str], tmp_path: Path
) -> None:
    """If Kafka's tool refuses, ours does too; and nothing is deleted."""
    file = tmp_path / "offsets.json"
    row = json.dumps({"topic": topics[1], "partition": 0, "offset": 4})
    for content in (
        f'{{"partitions": [{row}, {row}]}}',
        f'{{"partitions": [{row}], "version": 2}}',
        "no",
        '{"version": 1}',
    ):
        file.write_text(content)
        theirs = kafkas.call("kafka-delete-records", "--offset-json-file", str(file))
        mine = ours(node, "--offset-json-file", file)
        assert (theirs.exit_code, theirs.out, mine.exit_code, mine.out) == (1, "", 2, "")
        assert mine.err.startswith("lowtide-delete-records: offsets.json line 1")
    told = ours(
        node, "records", "delete", topics[1], "--offset", 5, "--dry-run", "--output", "json", module="lowtide.cli.main"
    )
    assert [each["log_start_offset"] for each in json.loads(told.out)["partitions"]] == [0, 0, 0]


def test_leader_only_is_refused_and_deletes_nothing(node: Kafka, topics: tuple[str, str], tmp_path: Path) -> None:
    """This Kafka does not have KIP-1343: an ordinary delete instead would have another meaning."""
    mine = ours(node, "--offset-json-file", file_of(tmp_path, topics[1], 4, 4, 4), "--leader-only")
    assert mine.exit_code == 1
    assert [line.split("\t")[1] for line in mine.lines[2:]] == [
        (
            "error: can't delete up to 4: sending: UNSUPPORTED_VERSION: "
            "leader_only needs DeleteRecords version 3, the broker has 2"
        )
    ] * 3


def test_the_commands_work_with_kafka(node: Kafka, topics: tuple[str, str]) -> None:
    """A sweep, and commands that describe a cluster."""
    swept = ours(
        node, "records", "sweep", topics[1], "--offset", 3, "--yes", "--output", "json", module="lowtide.cli.main"
    )
    assert (swept.exit_code, json.loads(swept.out)["records"]) == (0, 9)
    shown = ours(node, "records", "show", f"{topics[1]}:1", "-n", 1, "--output", "json", module="lowtide.cli.main")
    assert json.loads(shown.out)["value"] == "v3"
    for words in (
        ("cluster", "status"),
        ("topics", "describe", topics[1]),
        ("groups", "list"),
        ("log-dirs",),
        ("configs", "describe", "--broker", 1),
    ):
        assert ours(node, *words, module="lowtide.cli.main").exit_code == 0
