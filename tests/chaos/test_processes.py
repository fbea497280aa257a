"""`lowtide serve --processes`: clients see ordinary brokers, and a killed process loses no acknowledged data."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lowtide.runtime.filesystem import OsFileSystem
from tests.etcd import EtcdProcess, missing
from tests.free_ports import free_ports

from .several_processes import HOST, SeveralProcesses

WAIT_S = 120
QUIET = {"log_level": 0}
MESSAGES = "kafka_server_brokertopicmetrics_messagesin_total"


def create(bootstrap: str, topic: str, partitions: int, factor: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=factor)])[topic].result(WAIT_S)


def leaders(bootstrap: str, topic: str) -> set[int]:
    found = AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(topic, timeout=WAIT_S)
    return {partition.leader for partition in found.topics[topic].partitions.values()}


class RecordWriter:
    """A producer, and what of its records was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[bytes] = set()
        self.failed: list[KafkaError] = []
        self._count = 0
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "message.timeout.ms": WAIT_S * 1000,
        }
        self.producer = Producer({**settings, **QUIET})

    def write(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % self._count
            self._count += 1
            self.producer.produce(self.topic, value, key=value, on_delivery=self._on_delivery)
            self.producer.poll(0)

    def write_until(self, condition: Callable[..., object]) -> None:
        """Under load until it holds."""
        while not condition():
            self.write(20)
            self.producer.poll(0.01)

    def flush(self) -> None:
        assert self.producer.flush(WAIT_S) == 0

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value())
        else:
            self.failed.append(error)


def read(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """Returns all that is in a topic, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        values: dict[int, list[bytes]] = {number: [] for number in partitions}
        ends: set[int] = set()
        while len(ends) < len(partitions):
            message = consumer.poll(WAIT_S)
            assert message is not None
            if message.error() is None:
                values[message.partition()].append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
        return values
    finally:
        consumer.close()


def assert_all_there(bootstrap: str, written: RecordWriter) -> None:
    """Each record that was acknowledged, once, and those of a partition in the order in which they were sent."""
    by_partition = read(bootstrap, written.topic)
    values = [value for each in by_partition.values() for value in each]
    assert written.acknowledged <= set(values)
    assert len(values) == len(set(values)), "a record is there twice"
    for each in by_partition.values():
        assert each == sorted(each, key=int), "records are there in another order"


@pytest.mark.slow
def test_clients_see_ordinary_brokers(tmp_path: Path) -> None:
    """Leaders on each process, a group, an orderly stop, and all of it there at the next start."""
    with SeveralProcesses(tmp_path, 2) as several:
        several.wait_until_all_serve()
        create(several.bootstrap, "t", 4)
        assert leaders(several.bootstrap, "t") == {1, 2}
        written = RecordWriter(several.bootstrap, "t")
        written.write(200)
        written.flush()
        consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=several.bootstrap.split(","),
            group_id="k",
            auto_offset_reset="earliest",
            consumer_timeout_ms=WAIT_S * 1000,
        )
        assert {next(consumer).value for _ in range(200)} == written.acknowledged
        consumer.commit()
        consumer.close()
        assert several.stop() == 0
        assert [line for line in several.lines if line["level"] in ("error", "critical")] == []
        assert several.noise == []
        assert {line["node_id"] for line in several.found("ready")} == {1, 2}, "each line has its broker"
        several.launch()
        several.wait_until_all_serve()
        assert_all_there(several.bootstrap, written)
        assert several.stop(signal.SIGINT) == 0


def test_a_broker_is_killed(tmp_path: Path) -> None:
    """The other process leads at once, the supervisor restarts the killed one, and clients see no error."""
    with SeveralProcesses(tmp_path, 2, "broker.session.timeout.ms=60000") as several:
        several.wait_until_all_serve()
        create(several.bootstrap, "alone", 4)
        create(several.bootstrap, "copied", 4, factor=2)
        both = [RecordWriter(several.bootstrap, topic) for topic in ("alone", "copied")]
        for written in both:
            written.write(100)
            written.flush()
        bootstrap = several.bootstrap
        several.kill_broker(2)
        both[1].write(200)
        both[1].flush()  # Long before its session would end, and also while it is away.
        both[0].write_until(lambda: len(several.found("all brokers ready")) >= 2)
        for written in both:
            written.flush()
            assert written.failed == []
            assert_all_there(several.bootstrap, written)
        assert several.bootstrap == bootstrap, "it is reached where it was"
        (shared,) = several.found(
            "all replicas of a partition are on this machine: they survive a failed process, not a failed machine"
        )
        assert shared["partition"].startswith("copied-")
        (line,) = several.found("broker ended, it is restarted")
        assert (line["broker"], line["ended"]) == (2, "signal 9")
        assert several.stop() == 0


def half_acknowledged(several: SeveralProcesses) -> RecordWriter:
    """Returns a new topic, some records that were acknowledged, and some on their way."""
    several.wait_until_all_serve()
    create(several.bootstrap, "t", 4)
    written = RecordWriter(several.bootstrap, "t")
    written.write(500)
    written.flush()
    written.write(500)
    return written


@pytest.mark.slow
def test_the_supervisor_is_killed(tmp_path: Path) -> None:
    """Its brokers stop by themselves, in order. The next start waits for them, and has all acknowledged records."""
    with SeveralProcesses(tmp_path, 2) as several:
        written = half_acknowledged(several)
        several.kill_supervisor()
        first = several.lines
        several.join()
        assert [line["reason"] for line in first if line["event"] == "stopping" and "node_id" in line], (
            "they stop in order"
        )
        several.launch()
        several.wait_until_all_serve()
        assert_all_there(several.bootstrap, written)
        assert not several.found("recovered"), "none was cut off"
        assert several.stop() == 0


@pytest.mark.slow
def test_a_start_waits_for_brokers_of_a_killed_supervisor(tmp_path: Path) -> None:
    """A process that still stops has its directory locked: the next start reports that and waits."""
    folder = tmp_path / "lowtide-processes" / "2"
    folder.mkdir(parents=True)
    lock = OsFileSystem().lock(f"{folder}/.lock")
    with SeveralProcesses(tmp_path, 2) as several:
        several.wait_for(lambda: several.found("waiting for an earlier broker that still uses a log directory"))
        assert not several.found("starting")
        assert not (tmp_path / "lowtide-metadata.sqlite").exists()
        lock.release()
        several.wait_until_all_serve()
        assert several.stop() == 0


@pytest.mark.slow
def test_all_processes_are_killed(tmp_path: Path) -> None:
    """All processes are killed at once, as in a power cut, except that the system still writes its dirty pages."""
    with SeveralProcesses(tmp_path, 2) as several:
        written = half_acknowledged(several)
        several.kill_supervisor()
        for broker in several.pids:
            several.kill_broker(broker)
        several.join()
        several.launch()
        several.wait_until_all_serve()
        assert_all_there(several.bootstrap, written)
        assert several.stop() == 0


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_stops_in_order(tmp_path: Path) -> None:
    """The terminal sends the signal to the supervisor's process group, which does not include the brokers."""
    with SeveralProcesses(tmp_path, 2) as several:
        several.wait_until_all_serve()
        os.killpg(several.process.pid, signal.SIGINT)
        assert several.ended() == 0
        assert several.noise == []


def taken_after_a_free_one() -> tuple[int, socket.socket]:
    """Returns a free port, and a socket that listens on the one after it."""
    while True:
        (port,) = free_ports(1)
        taken = socket.socket()
        try:
            taken.bind((HOST, port + 1))
        except OSError:
            taken.close()
            continue
        taken.listen()
        return port, taken


@pytest.mark.slowest
def test_a_broker_that_cannot_start_stops_the_first_start(tmp_path: Path) -> None:
    """With its own sentence, and a code that says so; none of the others stays."""
    port, taken = taken_after_a_free_one()
    with taken, SeveralProcesses(tmp_path, 2, f"listeners=PLAINTEXT://{HOST}:{port}") as several:
        assert several.ended() == 2
        (line,) = several.noise
        assert line.startswith("lowtide serve: broker 2: ")
        assert several.found("a broker refused to start, all brokers stop")[0]["broker"] == 2


@pytest.mark.slow
def test_a_broker_that_does_not_stay_up_is_no_harm_to_the_others(tmp_path: Path) -> None:
    """It is tried again, each time later; after some times the supervisor says so for the last time.

    Repaired, it serves again.
    """
    with SeveralProcesses(tmp_path, 2) as several:
        several.wait_until_all_serve()
        create(several.bootstrap, "t", 4)
        properties = tmp_path / "lowtide-processes" / "2" / "meta.properties"
        text = properties.read_text()
        properties.write_text(text.replace("node.id=2", "node.id=7"))
        several.kill_broker(2)
        last = "broker keeps failing, it is restarted without further messages; the others continue"
        several.wait_for(lambda: several.found(last))
        assert len(several.found("broker ended, it is restarted")) == 5
        delays = [line["delay_ms"] for line in several.found("broker ended, it is restarted")]
        assert delays == [100, 200, 400, 800, 1600]
        (one,) = [line["address"] for line in several.found("broker ready") if line["broker"] == 1]
        assert AdminClient({"bootstrap.servers": one, **QUIET}).list_topics(timeout=WAIT_S).brokers.keys() == {1}
        properties.write_text(text)
        several.wait_until_all_serve(2)
        assert several.stop() == 0


@pytest.mark.slowest
def test_one_process_becomes_three_and_three_become_one(tmp_path: Path) -> None:
    """One broker's directory is that of the first of three.

    Back is refused until the others' partitions are elsewhere.
    """
    with SeveralProcesses(tmp_path, None) as alone:
        alone.wait_for(lambda: alone.found("ready"))
        address = alone.found("ready")[0]["address"]
        create(address, "t", 3)
        of_one = RecordWriter(address, "t")
        of_one.write(100)
        of_one.flush()
        assert alone.stop() == 0
    with SeveralProcesses(tmp_path, 3) as several:
        several.wait_until_all_serve()
        assert_all_there(several.bootstrap, of_one)
        create(several.bootstrap, "u", 3)
        assert leaders(several.bootstrap, "u") == {1, 2, 3}
        of_three = RecordWriter(several.bootstrap, "u")
        of_three.write(100)
        of_three.flush()
        assert several.stop() == 0
        with SeveralProcesses(tmp_path, 2) as fewer:
            assert fewer.ended() == 2
            (line,) = fewer.noise
            assert "broker 3 has " in line
            assert "brokers 1 to 2 are to be started; start with --processes 3" in line
        with SeveralProcesses(tmp_path, None) as alone:
            assert alone.ended() == 2
            (line,) = alone.noise
            assert "as brokers 2 have others, and only broker 1 is to be started; start with --processes 3" in line
            assert "`lowtide cluster replace 3 1`" in line
        several.launch()
        several.wait_until_all_serve()
        for broker in ("2", "3"):
            command = [sys.executable, "-m", "lowtide.cli.main", "cluster", "replace", broker, "1", "--yes"]
            done = subprocess.run(
                [*command, "--bootstrap-server", several.bootstrap], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (done.stdout, done.stderr)
        assert several.stop() == 0
    with SeveralProcesses(tmp_path, None) as alone:
        alone.wait_for(lambda: alone.found("ready"))
        address = alone.found("ready")[0]["address"]
        for written in (of_one, of_three):
            assert_all_there(address, written)
        assert leaders(address, "u") == {1}
        assert alone.stop() == 0


def visit(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.slow
def test_one_address_has_the_metrics_of_all(tmp_path: Path) -> None:
    """Each sample with the id of its broker; one that is away is missing, and then the machine is not ready."""
    with SeveralProcesses(tmp_path, 2, f"http.listeners=http://{HOST}:0", "http.trust.local=true") as several:
        several.wait_until_all_serve()
        create(several.bootstrap, "t", 4)
        written = RecordWriter(several.bootstrap, "t")
        written.write(100)
        written.flush()
        (url,) = next(line["http"] for line in several.found("ready") if line["node_id"] == 1)
        assert [line["http"] for line in several.found("ready") if line["node_id"] == 2] == [[]]
        samples = [sample for family in parse_text(visit(f"{url}/metrics")[1]) for sample in family.samples]
        assert len({(sample.name, frozenset(sample.labels.items())) for sample in samples}) == len(samples)
        received = {
            sample.labels["node_id"]: sample.value
            for sample in samples
            if sample.name == MESSAGES and sample.labels.get("topic") == "t"
        }
        assert set(received) == {"1", "2"}
        assert sum(received.values()) == 100
        assert visit(f"{url}/health/ready")[0] == 200
        properties = tmp_path / "lowtide-processes" / "2" / "meta.properties"
        text = properties.read_text()
        properties.write_text(text.replace("node.id=2", "node.id=7"))
        several.kill_broker(2)
        several.wait_for(lambda: several.found("broker ended, it is restarted"))
        status, said = visit(f"{url}/health/ready")
        assert (status, json.loads(said)["reasons"]) == (503, ["other brokers of this machine do not serve: 2"])
        status, _page = visit(f"{url}/metrics?again")
        assert status == 200
        properties.write_text(text)
        several.wait_until_all_serve(2)
        assert visit(f"{url}/health/ready")[0] == 200
        assert several.stop() == 0


@pytest.mark.slowest
def test_replicas_are_on_different_machines(tmp_path: Path) -> None:
    """Two supervisors with one etcd are two machines: replicas are spread over both, and either may die."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with EtcdProcess(tmp_path / "etcd") as etcd:
        metadata = ("--metadata", f"etcd://{etcd.endpoint}")
        of_one = ("node.id=10", "broker.rack=one", "broker.session.timeout.ms=6000")
        of_other = ("node.id=20", "broker.rack=other", "broker.session.timeout.ms=6000")
        with (
            SeveralProcesses(tmp_path / "one", 2, *of_one, options=metadata) as one,
            SeveralProcesses(tmp_path / "other", 2, *of_other, options=metadata) as other,
        ):
            one.wait_until_all_serve()
            other.wait_until_all_serve()
            create(other.bootstrap, "t", 8, factor=2)
            partitions = (
                AdminClient({"bootstrap.servers": other.bootstrap, **QUIET})
                .list_topics("t", timeout=WAIT_S)
                .topics["t"]
                .partitions
            )
            assert all({broker // 10 for broker in each.replicas} == {1, 2} for each in partitions.values())
            assert {broker for each in partitions.values() for broker in each.replicas} == {10, 11, 20, 21}
            written = RecordWriter(other.bootstrap, "t")
            written.write(200)
            written.flush()
            one.kill_supervisor()
            one.join()
            written.write(200)
            written.flush()
            assert written.failed == []
            one.launch()
            one.wait_until_all_serve()
            assert_all_there(one.bootstrap, written)
            assert other.stop() == 0
            assert one.stop() == 0
