"""Kafka's own tools for operators, with three brokers of which one is sometimes down."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lowtide import LowtideCluster

from .tools import Tools

pytestmark = pytest.mark.interop

DEADLINE_S = 60.0
SLOW = "20000"
"""Bytes a second: a throttle under which a move takes longer than the tools."""

FAST = "100000000"
CONFIG = {"auto.leader.rebalance.enable": "false"}


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tools(jars: Path, three: LowtideCluster, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """They use the first broker, which is never down."""
    return Tools(jars, three.address(1), tmp_path_factory.mktemp("jvm"))


def until(condition: Callable[..., bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {DEADLINE_S} s"


@contextmanager
def away(cluster: LowtideCluster, broker_id: int) -> Iterator[None]:
    """Without a broker for a while."""
    cluster.stop_broker(broker_id)
    try:
        yield
    finally:
        cluster.start_broker(broker_id)


def described(tools: Tools, topic: str, *more: str) -> dict[int, dict[str, str]]:
    """Returns the output of kafka-topics by partition number, `Leader`, `Replicas`, `Isr` and so on."""
    found: dict[int, dict[str, str]] = {}
    for line in tools.run("kafka-topics", "--describe", "--topic", topic, *more).lines:
        named = (part.partition(":") for part in line.split("\t"))
        fields = {name.strip(): value.strip() for name, _, value in named}
        if "Partition" in fields:
            found[int(fields["Partition"])] = fields
    return found


def ids(text: str) -> list[int]:
    return sorted(map(int, text.split(",")))


def fill(cluster: LowtideCluster, topic: str, megabytes: float, partition: int = 0) -> int:
    """Produce; the number of records. A batch has at most a hundred kilobytes."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 100_000, "acks": "all"})
    count = int(megabytes * 100)
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            topic,
            b"%d " % number + bytes(10_000),
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(30) == 0
    assert failed == []
    return count


def wishes(folder: Path, topic: str, replicas: list[int], partition: int = 0) -> str:
    """Returns a file for kafka-reassign-partitions."""
    row = {"topic": topic, "partition": partition, "replicas": replicas, "log_dirs": ["any"] * len(replicas)}
    file = folder / "reassignment.json"
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    return str(file)


def dynamic(tools: Tools, kind: str, name: str) -> str:
    return tools.run("kafka-configs", "--describe", "--entity-type", kind, "--entity-name", name).out


def test_topics_while_a_broker_is_down(three: LowtideCluster, tools: Tools) -> None:
    """Topics are described, grown and created with a stopped broker, and in sync when it returns."""
    tools.run(
        "kafka-topics",
        "--create",
        "--topic",
        "before",
        "--replica-assignment",
        "1:2:3",
        "--config",
        "min.insync.replicas=3",
    )
    with away(three, 3):
        tools.run("kafka-topics", "--alter", "--topic", "before", "--partitions", "4")
        tools.run("kafka-topics", "--create", "--topic", "meanwhile", "--partitions", "3", "--replication-factor", "3")
        for topic, count in (("before", 4), ("meanwhile", 3)):
            rows = described(tools, topic, "--under-replicated-partitions")
            assert sorted(rows) == list(range(count))
            assert all((ids(row["Replicas"]), ids(row["Isr"])) == ([1, 2, 3], [1, 2]) for row in rows.values())
            assert all(int(row["Leader"]) in {1, 2} for row in rows.values())
        assert sorted(described(tools, "before", "--under-min-isr-partitions")) == [0, 1, 2, 3]
        assert described(tools, "before", "--unavailable-partitions") == {}
    until(lambda: not described(tools, "before", "--under-replicated-partitions"))
    until(lambda: not described(tools, "meanwhile", "--under-replicated-partitions"))
    for topic in ("before", "meanwhile"):
        tools.run("kafka-topics", "--delete", "--topic", topic)


def test_a_partition_is_moved_under_a_throttle(three: LowtideCluster, tools: Tools, tmp_path: Path) -> None:
    """Slowly until the throttle is raised; --verify removes the throttle at the end."""
    tools.run("kafka-topics", "--create", "--topic", "moves", "--replica-assignment", "1:2")
    count = fill(three, "moves", 4)
    file = wishes(tmp_path, "moves", [3, 2])
    started = tools.run("kafka-reassign-partitions", "--reassignment-json-file", file, "--execute", "--throttle", SLOW)
    assert "Successfully started partition reassignment for moves-0" in started.out
    assert f"The inter-broker throttle limit was set to {SLOW} B/s" in started.out
    listed = tools.run("kafka-reassign-partitions", "--list").out
    assert "moves-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
    going = tools.run("kafka-reassign-partitions", "--reassignment-json-file", file, "--verify")
    assert "Reassignment of partition moves-0 is still in progress." in going.out
    assert "follower.replication.throttled.replicas=0:3" in dynamic(tools, "topics", "moves")
    assert f"follower.replication.throttled.rate={SLOW}" in dynamic(tools, "brokers", "3")
    again = tools.call("kafka-reassign-partitions", "--reassignment-json-file", file, "--execute")
    assert (again.exit_code, "Cannot execute because there is an existing partition assignment" in again.out) == (
        1,
        True,
    )
    tools.run(
        "kafka-reassign-partitions", "--reassignment-json-file", file, "--execute", "--additional", "--throttle", FAST
    )
    until(lambda: "No partition reassignments found." in tools.run("kafka-reassign-partitions", "--list").out)
    done = tools.run("kafka-reassign-partitions", "--reassignment-json-file", file, "--verify")
    assert "Reassignment of partition moves-0 is completed." in done.out
    assert "throttled" not in dynamic(tools, "topics", "moves") + dynamic(tools, "brokers", "3") + dynamic(
        tools, "brokers", "1"
    )
    row = described(tools, "moves")[0]
    assert (row["Replicas"], ids(row["Isr"])) == ("3,2", [2, 3])
    assert tools.run("kafka-get-offsets", "--topic", "moves").lines == [f"moves:0:{count}"]
    tools.run("kafka-topics", "--delete", "--topic", "moves")


def test_a_move_is_cancelled(three: LowtideCluster, tools: Tools, tmp_path: Path) -> None:
    """The replicas are the initial ones, copied records are removed, and so is the throttle."""
    tools.run("kafka-topics", "--create", "--topic", "stays", "--replica-assignment", "1:2")
    fill(three, "stays", 4)
    file = wishes(tmp_path, "stays", [3, 1])
    tools.run("kafka-reassign-partitions", "--reassignment-json-file", file, "--execute", "--throttle", SLOW)
    copy = Path(three.data_directory) / "broker-3" / "stays-0"
    until(copy.exists)
    cancelled = tools.run("kafka-reassign-partitions", "--reassignment-json-file", file, "--cancel")
    assert "Successfully cancelled partition reassignment for: stays-0" in cancelled.out
    assert "No partition reassignments found." in tools.run("kafka-reassign-partitions", "--list").out
    row = described(tools, "stays")[0]
    assert (row["Leader"], row["Replicas"], ids(row["Isr"])) == ("1", "1,2", [1, 2])
    assert "throttled" not in dynamic(tools, "topics", "stays") + dynamic(tools, "brokers", "3")
    until(lambda: not copy.exists())
    tools.run("kafka-topics", "--delete", "--topic", "stays")


def test_a_plan_is_proposed_and_executed(tools: Tools, tmp_path: Path) -> None:
    tools.run("kafka-topics", "--create", "--topic", "spread", "--replica-assignment", "1:2,1:2,1:2")
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "spread"}]}))
    asked = ("--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3", "--generate")
    plan.write_text(
        tools.run("kafka-reassign-partitions", *asked).out.partition("Proposed partition reassignment configuration\n")[
            2
        ]
    )
    tools.run("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
    wanted = {
        row["partition"]: ",".join(map(str, row["replicas"])) for row in json.loads(plan.read_text())["partitions"]
    }
    assert {replica for replicas in wanted.values() for replica in replicas.split(",")} == {"1", "2", "3"}
    until(lambda: {number: row["Replicas"] for number, row in described(tools, "spread").items()} == wanted)
    tools.run("kafka-topics", "--delete", "--topic", "spread")


def test_leaders_are_elected(three: LowtideCluster, tools: Tools) -> None:
    """The preferred one, once; any live one if no other can lead."""
    tools.run("kafka-topics", "--create", "--topic", "led", "--replica-assignment", "2:1")
    tools.run("kafka-topics", "--create", "--topic", "lost", "--replica-assignment", "2")
    with away(three, 2):
        assert [described(tools, topic)[0]["Leader"] for topic in ("led", "lost")] == ["1", "none"]
        none = tools.call("kafka-leader-election", "--election-type", "unclean", "--topic", "lost", "--partition", "0")
        assert (none.exit_code, "EligibleLeadersNotAvailableException" in none.out + none.err) == (1, True), none
    until(lambda: ids(described(tools, "led")[0]["Isr"]) == [1, 2])
    elected = tools.run("kafka-leader-election", "--election-type", "preferred", "--topic", "led", "--partition", "0")
    assert "Successfully completed leader election (PREFERRED) for partitions led-0" in elected.out
    assert [described(tools, topic)[0]["Leader"] for topic in ("led", "lost")] == ["2", "2"]
    again = tools.run("kafka-leader-election", "--election-type", "preferred", "--topic", "led", "--partition", "0")
    assert "Valid replica already elected for partitions led-0" in again.out
    for topic in ("led", "lost"):
        tools.run("kafka-topics", "--delete", "--topic", topic)


def test_brokers_are_configured_one_by_one_and_together(tools: Tools) -> None:
    tools.run(
        "kafka-configs",
        "--alter",
        "--entity-type",
        "brokers",
        "--entity-name",
        "2",
        "--add-config",
        "max.connections=1234",
    )
    tools.run(
        "kafka-configs",
        "--alter",
        "--entity-type",
        "brokers",
        "--entity-default",
        "--add-config",
        "max.connections=4321",
    )
    own = [dynamic(tools, "brokers", str(broker_id)) for broker_id in (1, 2, 3)]
    assert ["  max.connections=1234 " in text for text in own] == [False, True, False]
    assert "DEFAULT_BROKER_CONFIG:max.connections=4321" in own[1]
    for broker_id in ("1", "3"):
        everything = tools.run(
            "kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", broker_id
        ).out
        assert "  max.connections=4321 " in everything
    for entity in (("--entity-name", "2"), ("--entity-default",)):
        tools.run("kafka-configs", "--alter", "--entity-type", "brokers", *entity, "--delete-config", "max.connections")
    assert not any("max.connections=" in dynamic(tools, "brokers", str(broker_id)) for broker_id in (1, 2, 3))


def test_the_wanted_number_of_replicas_in_sync_is_set_on_all_brokers_together(tools: Tools) -> None:
    change = ("--alter", "--entity-type", "brokers")
    refused = tools.call("kafka-configs", *change, "--entity-name", "2", "--add-config", "min.insync.replicas=2")
    assert (refused.exit_code, "cannot be altered while ELR is enabled" in refused.out + refused.err) == (1, True), (
        refused
    )
    tools.run("kafka-configs", *change, "--entity-default", "--add-config", "min.insync.replicas=2")
    for broker_id in ("1", "2", "3"):
        all_keys = ("--describe", "--all", "--entity-type", "brokers", "--entity-name", broker_id)
        until(lambda all_keys=all_keys: "  min.insync.replicas=2 " in tools.run("kafka-configs", *all_keys).out)
    tools.run("kafka-configs", *change, "--entity-default", "--delete-config", "min.insync.replicas")


def test_records_are_deleted_and_directories_described_on_all_brokers(
    three: LowtideCluster, tools: Tools, tmp_path: Path
) -> None:
    """Partitions with different leaders in one request; all replicas have the same size."""
    tools.run("kafka-topics", "--create", "--topic", "deleted", "--replica-assignment", "1:2:3,2:3:1,3:1:2")
    counts = [fill(three, "deleted", 0.1, partition) for partition in range(3)]
    file = tmp_path / "offsets.json"
    rows = [{"topic": "deleted", "partition": number, "offset": offset} for number, offset in enumerate((3, -1, 0))]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    said = tools.run("kafka-delete-records", "--offset-json-file", str(file)).out
    for number, start in enumerate((3, counts[1], 0)):
        assert f"partition: deleted-{number}\tlow_watermark: {start}" in said
    offsets = {
        time: sorted(tools.run("kafka-get-offsets", "--topic", "deleted", "--time", time).lines)
        for time in ("earliest", "latest")
    }
    assert offsets["earliest"] == ["deleted:0:3", f"deleted:1:{counts[1]}", "deleted:2:0"]
    assert offsets["latest"] == [f"deleted:{number}:{count}" for number, count in enumerate(counts)]
    told = tools.run("kafka-log-dirs", "--describe", "--topic-list", "deleted", "--broker-list", "1,2,3").lines[-1]
    sizes = {
        row["broker"]: {each["partition"]: each["size"] for folder in row["logDirs"] for each in folder["partitions"]}
        for row in json.loads(told)["brokers"]
    }
    assert sorted(sizes) == [1, 2, 3]
    assert all(sorted(of_one) == ["deleted-0", "deleted-1", "deleted-2"] for of_one in sizes.values())
    assert len({of_one["deleted-2"] for of_one in sizes.values()}) == 1
    tools.run("kafka-topics", "--delete", "--topic", "deleted")


def test_the_controller_is_described_as_the_leader_of_the_metadata(three: LowtideCluster, tools: Tools) -> None:
    """All brokers act on its latest revision; the addresses are those of the brokers."""
    status = dict(line.split(":", 1) for line in tools.run("kafka-metadata-quorum", "describe", "--status").lines)
    leader = status["LeaderId"].strip()
    assert leader in {"1", "2", "3"}
    assert (status["MaxFollowerLag"].strip(), status["CurrentVoters"].count('"id"')) == ("0", 1)
    addresses = status["CurrentVoters"] + status["CurrentObservers"]
    assert all(f"://{three.address(broker_id)}" in addresses for broker_id in (1, 2, 3))
    rows = [line.split() for line in tools.run("kafka-metadata-quorum", "describe", "--replication").lines[1:]]
    assert {row[0]: (row[3], row[-1]) for row in rows} == {str(each): ("0", "Observer") for each in (1, 2, 3)} | {
        leader: ("0", "Leader")
    }
    tools.run("kafka-metadata-quorum", "describe", "--replication", "--human-readable")


def features(tools: Tools) -> dict[str, tuple[str, str]]:
    """Returns the highest level that is supported of each feature, and the one that the cluster uses."""
    rows = [dict(re.findall(r"(\w+): (\S+)", line)) for line in tools.run("kafka-features", "describe").lines]
    return {row["Feature"]: (row["SupportedMaxVersion"], row["FinalizedVersionLevel"]) for row in rows}


def test_features_are_described_lowered_and_raised(tools: Tools) -> None:
    """All or none; what the brokers agree on by themselves is refused with a reason."""
    before = features(tools)
    assert before["metadata.version"] == ("4.4-IV2", "4.4-IV2")
    assert before["eligible.leader.replicas.version"] == ("1", "1")
    assert (before["transaction.version"], before["group.version"]) == (("2", "2"), ("1", "1"))
    rehearsed = tools.run("kafka-features", "downgrade", "--feature", "transaction.version=1", "--dry-run")
    assert "transaction.version can be downgraded to 1." in rehearsed.out
    assert features(tools) == before
    assert (
        "transaction.version was downgraded to 1."
        in tools.run("kafka-features", "downgrade", "--feature", "transaction.version=1").out
    )
    assert "group.version was disabled." in tools.run("kafka-features", "disable", "--feature", "group.version").out
    lowered = before | {"transaction.version": ("2", "1"), "group.version": ("1", "0")}
    until(lambda: features(tools) == lowered)
    both = ("--feature", "transaction.version=2", "--feature", "group.version=1", "--feature", "metadata.version=33")
    tools.run("kafka-features", "upgrade", *both)
    until(lambda: features(tools) == before)
    tools.run("kafka-features", "downgrade", "--feature", "share.version=1", "--feature", "streams.version=0")
    until(lambda: (features(tools)["share.version"][1], features(tools)["streams.version"][1]) == ("1", "0"))
    tools.run("kafka-features", "upgrade", "--release-version", "4.4")
    until(lambda: features(tools) == before)
    for action, feature in (
        ("downgrade", "metadata.version=32"),
        ("disable", "eligible.leader.replicas.version"),
        ("upgrade", "share.version=9"),
    ):
        refused = tools.call("kafka-features", action, "--feature", feature)
        assert (refused.exit_code, "Could not" in refused.out, "1 out of 1 operation(s) failed." in refused.err) == (
            1,
            True,
            True,
        ), refused


def test_a_broker_that_is_gone_is_unregistered(three: LowtideCluster, tools: Tools) -> None:
    """It is listed as fenced until then; a live one is refused with a message."""
    with away(three, 3):
        fenced = tools.run("kafka-cluster", "list-endpoints", "--include-fenced-brokers").lines
        assert {line.split()[0]: line.split()[4] for line in fenced[1:]} == {
            "1": "unfenced",
            "2": "unfenced",
            "3": "fenced",
        }
        assert "Broker 3 is no longer registered." in tools.run("kafka-cluster", "unregister", "--id", "3").out
        refused = tools.call("kafka-topics", "--create", "--topic", "none", "--replication-factor", "3")
        assert (refused.exit_code, "only 2 broker(s) take new ones" in refused.out) == (1, True), refused
        listed = tools.run("kafka-cluster", "list-endpoints", "--include-fenced-brokers").lines
        assert {line.split()[0] for line in listed[1:]} == {"1", "2"}
    alive = tools.call("kafka-cluster", "unregister", "--id", "3")
    assert (alive.exit_code, "Broker 3 is alive" in alive.out + alive.err) == (1, True), alive
