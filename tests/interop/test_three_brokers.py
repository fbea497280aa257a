"""The Java client and franz-go work while brokers of a cluster of three fail and return, and read at a follower while
records are deleted.

The programs are `java/Work.java`, `java/Closest.java` and `go/work.go`; both print the same lines, which are checked
here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from lowtide import LowtideCluster

from . import load
from .franz_go import FranzGo
from .tools import JavaClient

pytestmark = pytest.mark.interop

RACKS = ("north", "east", "south")
FOLLOWER = 2
"""The broker in the clients' rack."""

PARTITIONS = 3
REST_S = 0.5
"""The time for which the clients work between two faults of brokers."""

WORK_LIMIT_S = 120.0
SWITCHES_MAX = 6
"""Switches to the leader and back, if a delete coincides with a fetch."""

CONFIG = {
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    """Three brokers, each in its own rack."""
    with LowtideCluster(brokers=3, racks=RACKS, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def java_client(jars: Path, three: LowtideCluster, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """Our program with Kafka's Java client, against the three."""
    return JavaClient(jars, three.bootstrap, tmp_path_factory.mktemp("java-three"))


@pytest.fixture
def go(franz_go_program: Path, three: LowtideCluster) -> FranzGo:
    """Our program with franz-go, against the three."""
    return FranzGo(franz_go_program, three.bootstrap)


class Working:
    """A program that works until its input ends, and its output."""

    def __init__(self, command: list[str], limit_s: float = WORK_LIMIT_S) -> None:
        self.lines: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._killer = threading.Timer(limit_s, self._process.kill)
        self._killer.start()
        self._words = ""
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self._words = self._process.stderr.read()

    def until_started(self) -> None:
        """Waits until both consumers have read. Errors: AssertionError if it ends before."""
        while len(said(self.lines, "started")) < 2:
            if not self._next():
                self._listener.join()
                raise AssertionError(self._words)

    def end(self) -> None:
        """Stops it, and reads the rest of its output. Errors: AssertionError if it failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        while self._next():
            pass
        code = self._process.wait()
        self._listener.join()
        assert (code, said(self.lines, "failed")) == (0, []), self._words

    def close(self) -> None:
        """Ends the process if it still runs."""
        self._killer.cancel()
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _next(self) -> bool:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            self.lines.append(json.loads(line))
        return bool(line)


def partitions_of(cluster: LowtideCluster) -> list[Any]:
    """Returns the brokers' metadata of all partitions, including those of the groups' offsets."""
    topics = (
        AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        .list_topics(timeout=load.DEADLINE_S)
        .topics
    )
    return [row for topic in topics.values() for row in topic.partitions.values()]


def until(condition: Callable[..., bool]) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + load.DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(0.05)


def kill_each_in_turn(cluster: LowtideCluster) -> None:
    """Each is leader of a partition, one coordinates the group, one is the controller."""
    for broker_id in cluster.broker_ids:
        time.sleep(REST_S)
        cluster.kill_broker(broker_id)
        until(lambda broker_id=broker_id: all(row.leader not in {broker_id, -1} for row in partitions_of(cluster)))
        time.sleep(REST_S)
        cluster.start_broker(broker_id)
        until(lambda: all(len(row.isrs) == len(row.replicas) for row in partitions_of(cluster)))


def lowtide(cluster: LowtideCluster, *words: str) -> None:
    """Runs `lowtide cluster`. Errors: AssertionError with what it says."""
    command = [sys.executable, "-m", "lowtide.cli.main", "cluster", *words, "--bootstrap-server", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WORK_LIMIT_S, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)


def drain_each_in_turn(cluster: LowtideCluster, undo: Path) -> None:
    """Each gives its replicas away, stops, starts and gets them back; all groups' coordinators move too."""
    for broker_id in cluster.broker_ids:
        lowtide(cluster, "drain", str(broker_id), "--yes", "--undo", str(undo), "--throttle", "50000000")
        until(lambda broker_id=broker_id: all(broker_id not in row.replicas for row in partitions_of(cluster)))
        cluster.stop_broker(broker_id)
        time.sleep(REST_S)
        cluster.start_broker(broker_id)
        lowtide(cluster, "move", "--file", str(undo), "--yes")
        lowtide(cluster, "elect")
        time.sleep(REST_S)
        undo.unlink()


def said(lines: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """Returns the lines of this name."""
    return [line for line in lines if line["what"] == what]


def judge(lines: list[dict[str, Any]]) -> None:
    """No acknowledged record is lost or duplicated, reads are in order, and consumed records can be deleted."""
    written = {line["partition"]: line["offsets"] for line in said(lines, "written")}
    assert sorted(written) == list(range(PARTITIONS))
    for partition, offsets in written.items():
        assert len(offsets) > 100
        assert offsets == list(range(len(offsets))), f"partition {partition}: lost, duplicated or reordered"
    for by in ("assignment", "group"):
        read = {line["partition"]: line for line in said(lines, "read") if line["by"] == by}
        failed = [line["errors"] for line in said(lines, "commits that failed") if line["by"] == by]
        for partition, offsets in written.items():
            found = read[partition]["offsets"]
            assert read[partition]["values"] == found, f"{by}, partition {partition}: a record at another's offset"
            if failed == [[]]:
                assert found == offsets, f"{by}, partition {partition}: not everything once and in order"
            assert sorted(set(found)) == offsets, f"{by}, partition {partition}: not everything"
    assert {line["partition"]: line["offset"] for line in said(lines, "committed")} == {
        p: len(offsets) for p, offsets in written.items()
    }
    deleted: dict[int, list[int]] = defaultdict(
        list, {line["partition"]: line["lows"] for line in said(lines, "deleted")}
    )
    for partition, offsets in written.items():
        lows = deleted[partition]
        assert len(lows) > 5
        assert lows == sorted(lows)
        assert 0 < lows[-1] <= len(offsets)


def work_while_brokers_die(cluster: LowtideCluster, command: list[str]) -> None:
    work = Working(command)
    try:
        work.until_started()
        kill_each_in_turn(cluster)
        work.end()
    finally:
        work.close()
    judge(work.lines)


def test_the_java_client_continues_while_each_broker_fails_and_returns(
    three: LowtideCluster, java_client: JavaClient
) -> None:
    work_while_brokers_die(three, java_client.command("work"))


def test_franz_go_continues_while_each_broker_fails_and_returns(three: LowtideCluster, go: FranzGo) -> None:
    work_while_brokers_die(three, go.command("work", topic="go-work", timeout=f"{WORK_LIMIT_S}s"))


@pytest.fixture(scope="module")
def four() -> Iterator[LowtideCluster]:
    """Four brokers, so that one can give its replicas away."""
    with LowtideCluster(brokers=4, config={"min.insync.replicas": "2", "offsets.topic.num.partitions": "4"}) as cluster:
        yield cluster


def work_while_brokers_are_drained(cluster: LowtideCluster, command: list[str], undo: Path) -> None:
    """No client fails, and no commit does: unlike a death, it costs no group its member."""
    work = Working(command, 2 * WORK_LIMIT_S)
    try:
        work.until_started()
        drain_each_in_turn(cluster, undo)
        work.end()
    finally:
        work.close()
    judge(work.lines)
    assert [line["errors"] for line in said(work.lines, "commits that failed")] == [[], []]


def test_the_java_client_continues_while_each_broker_is_drained_and_returns(
    four: LowtideCluster, jars: Path, tmp_path: Path
) -> None:
    command = JavaClient(jars, four.bootstrap, tmp_path / "java").command("work")
    work_while_brokers_are_drained(four, command, tmp_path / "undo.json")


def test_franz_go_continues_while_each_broker_is_drained_and_returns(
    four: LowtideCluster, franz_go_program: Path, tmp_path: Path
) -> None:
    command = FranzGo(franz_go_program, four.bootstrap).command("work", topic="go-work", timeout=f"{2 * WORK_LIMIT_S}s")
    work_while_brokers_are_drained(four, command, tmp_path / "undo.json")


def test_a_java_consumer_at_a_follower_stays_there_while_records_behind_it_are_deleted(java_client: JavaClient) -> None:
    """A reset would move it to the end. It is sent to the leader only sometimes, and is sent back."""
    [read] = java_client.see("deletes-behind")["deletes-behind"]
    assert read["what"] == "read", read
    assert read["offsets"] == list(range(len(read["offsets"])))
    assert len(read["offsets"]) > 5 * read["deletes"]
    assert read["preferred"][-1] == FOLLOWER
    assert len(read["preferred"]) <= 2 * read["deletes"] + SWITCHES_MAX


def test_a_java_consumer_at_a_follower_is_reset_once_when_its_position_is_deleted(java_client: JavaClient) -> None:
    lines = java_client.see("delete-ahead")["delete-ahead"]
    assert [line["what"] for line in lines] == ["read", "read"], lines
    assert {line["reset"]: line["offset"] for line in lines} == {"earliest": 25, "latest": 35}
    for line in lines:
        assert line["preferred"][-1] == FOLLOWER
        assert len(line["preferred"]) <= SWITCHES_MAX


def test_franz_go_at_a_follower_stays_there_while_records_behind_it_are_deleted(go: FranzGo) -> None:
    read = go.one("closest", topic="go-closest", rack=RACKS[FOLLOWER - 1])
    assert read["offsets"] == list(range(len(read["offsets"])))
    assert len(read["offsets"]) > 5 * read["deletes"]
    fetched = {int(node): count for node, count in read["fetches"].items()}
    assert fetched[FOLLOWER] >= read["deletes"]
    assert sum(count for node, count in fetched.items() if node != FOLLOWER) <= 2 * read["deletes"] + SWITCHES_MAX


@pytest.mark.parametrize("reset", ["start", "end"])
def test_franz_go_at_a_follower_goes_to_the_log_start_when_its_position_is_deleted(go: FranzGo, reset: str) -> None:
    """With any reset policy a consumer continues at the first existing record.

    It asks the leader once.
    """
    read = go.one("closest-ahead", topic=f"go-closest-ahead-{reset}", rack=RACKS[FOLLOWER - 1], reset=reset)
    assert read["offset"] == 25
    assert sum(read["fetches"].values()) <= SWITCHES_MAX, read["fetches"]


def lines_of(count: int = 200) -> list[dict[str, Any]]:
    """Returns the output of a program that worked without a fault."""
    offsets = list(range(count))
    rows: list[dict[str, Any]] = []
    for partition in range(PARTITIONS):
        rows.append({"what": "written", "partition": partition, "offsets": offsets})
        rows += [
            {"what": "read", "by": by, "partition": partition, "offsets": list(offsets), "values": list(offsets)}
            for by in ("assignment", "group")
        ]
        rows.append({"what": "committed", "partition": partition, "offset": count})
        rows.append({"what": "deleted", "partition": partition, "lows": [3, 9, 30, 60, 90, 120, 150]})
    return [*rows, *({"what": "commits that failed", "by": by, "errors": []} for by in ("assignment", "group"))]


FAULTS: dict[str, tuple[str, str, Any]] = {
    "a record that was written twice": ("written", "offsets", [*range(100), *range(101, 201)]),
    "a record that was not read": ("read", "offsets", [*range(100), *range(101, 200)]),
    "a record that was read twice": ("read", "offsets", [*range(101), *range(100, 200)]),
    "a record at another's offset": ("read", "values", [1, 0, *range(2, 200)]),
    "an offset that was not committed": ("committed", "offset", 199),
    "a log start that went back": ("deleted", "lows", [3, 9, 30, 60, 50, 120, 150]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_detects(fault: str) -> None:
    """The control case."""
    judge(lines_of())
    what, name, value = FAULTS[fault]
    lines = lines_of()
    next(line for line in lines if line["what"] == what and line["partition"] == 1)[name] = value
    with pytest.raises(AssertionError):
        judge(lines)
