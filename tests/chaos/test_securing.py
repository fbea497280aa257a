"""A cluster becomes secure under load, by the steps of docs/securing.md.

No acknowledged record is lost, none is there twice, and what is deleted in between stays deleted.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.broker.config.broker_config import Setting, load_config
from lowtide.broker.config.sources import from_properties
from tests.etcd import EtcdProcess, missing
from tests.free_ports import free_ports

from .serving import ServeProcess

PAGE = (Path(__file__).parents[2] / "docs/securing.md").read_text(encoding="utf-8")
IDS = (1, 2, 3)
TOPIC, PARTITIONS, GROUP = "moved", 3, "movers"
LIMIT_S = 120.0
QUICK = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "10000",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
MORE = 200
"""Records that are acknowledged after each step."""

DELETED = 50
"""Records of the first partition that are deleted after the first step."""


def blocks(title: str) -> list[str]:
    """Returns the indented blocks below a heading of the page."""
    section = PAGE.partition(f"\n## {title}")[2].partition("\n## ")[0]
    return [
        re.sub(r"^    ", "", block, flags=re.MULTILINE)
        for block in re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    ]


def settings_of(step: int) -> dict[str, Setting]:
    """Returns what a step adds to the settings of a broker."""
    return from_properties(blocks(f"Step {step}:")[0], f"step {step}")


def test_each_step_of_the_page_is_a_configuration() -> None:
    given: dict[str, Setting] = {}
    for step in (1, 2, 3, 4):
        given |= settings_of(step)
        config = load_config(given=given)
        assert config.inter_broker_listener == ("PLAINTEXT" if step == 1 else "SASL_SSL")
        assert [each.name for each in config.listeners] == (["SASL_SSL"] if step == 4 else ["PLAINTEXT", "SASL_SSL"])


class Clients:
    """A producer and a consumer of a group, each in its thread, with the same settings."""

    def __init__(self, settings: dict[str, str], sent: list[int]) -> None:
        """`sent` has the numbers that were sent before; the producer adds its own."""
        self._settings = settings
        self._sent = sent
        self.acknowledged: set[int] = set()
        self.errors: list[str] = []
        self.read: set[int] = set()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Everything that was sent has its result then."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in self._threads)

    async def until_more(self) -> None:
        """Waits until this many more records are acknowledged, and the group reads them."""
        acknowledged, read = len(self.acknowledged) + MORE, len(self.read) + MORE
        async with asyncio.timeout(LIMIT_S):
            while len(self.acknowledged) < acknowledged or len(self.read) < read:
                assert not self.errors, self.errors[:3]
                await asyncio.sleep(0.05)

    def _produce(self) -> None:
        producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
        while not self._stop.is_set():
            number = len(self._sent)
            self._sent.append(number)
            producer.produce(TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self._on_delivery)
            producer.poll(0)
            self._stop.wait(0.002)
        assert producer.flush(LIMIT_S) == 0

    def _on_delivery(self, error: object, message: Message) -> None:
        if error is None:
            self.acknowledged.add(int(message.value()))
        else:
            self.errors.append(str(error))

    def _consume(self) -> None:
        group = {"group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": 10_000, "log_level": 0}
        consumer = Consumer({**self._settings, **group})
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            self.read.update(int(each.value()) for each in consumer.consume(500, 0.2) if each.error() is None)
        consumer.close()


class RollingCluster:
    """Three brokers with an etcd, which take over new settings one after the other."""

    def __init__(self, folder: Path, etcd: EtcdProcess) -> None:
        self.folder = folder
        self._etcd = etcd
        ports = free_ports(2 * len(IDS))
        self._open, self._secure = ports[: len(IDS)], ports[len(IDS) :]
        self._given = {**QUICK, "listeners": "PLAINTEXT://broker-1:9092"}
        self._brokers: dict[int, ServeProcess] = {}
        self.past: list[ServeProcess] = []
        self.open = ",".join(f"127.0.0.1:{port}" for port in self._open)
        self.secure = ",".join(f"127.0.0.1:{port}" for port in self._secure)

    def lowtide(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Returns a command of the page, run to its end."""
        command = [sys.executable, "-m", "lowtide.cli.main", *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    async def start(self) -> None:
        for broker_id in IDS:
            await self._launch(broker_id)
        for broker in self._brokers.values():
            await broker.wait_ready()

    async def roll(self, step: int, *how_to_reach: str) -> None:
        """Applies a step of the page to one broker after the other, each time with all replicas in sync."""
        self._given |= {key: value.text for key, value in settings_of(step).items()}
        for broker_id in IDS:
            old = self._brokers[broker_id]
            self.past.append(old)
            assert await old.terminate() == 0
            await self._launch(broker_id)
            await self._brokers[broker_id].wait_ready()
            until = time.monotonic() + LIMIT_S
            while (status := await asyncio.to_thread(self.lowtide, "cluster", "status", *how_to_reach)).returncode != 0:
                assert time.monotonic() < until, (status.stdout, status.stderr, self.tail())

    async def kill(self) -> None:
        for broker in self._brokers.values():
            await broker.kill()

    def tail(self, lines: int = 12) -> str:
        """Returns the last lines of each broker's log, for a message."""
        return "\n".join(
            f"{number}: {line}" for number, broker in self._brokers.items() for line in broker.lines[-lines:]
        )

    def faults(self) -> list[str]:
        return [fault for broker in [*self.past, *self._brokers.values()] for fault in broker.faults]

    async def _launch(self, broker_id: int) -> None:
        index = broker_id - 1
        password = self.folder / "broker.password"
        replaced = {
            "broker-1:9092": f"127.0.0.1:{self._open[index]}",
            "broker-1:9093": f"127.0.0.1:{self._secure[index]}",
            "/etc/lowtide": str(self.folder),
            "…": password.read_text().strip() if password.exists() else "",
        }
        settings = [f"node.id={broker_id}"]
        for key, text in self._given.items():
            for written, here in replaced.items():
                text = text.replace(written, here)
            settings.append(f"{key}={text}")
        data = self.folder.parent / f"broker-{broker_id}"
        self._brokers[broker_id] = ServeProcess(data, *settings, metadata=f"etcd://{self._etcd.endpoint}")
        await self._brokers[broker_id].launch()


@contextmanager
def working(settings: dict[str, str], sent: list[int]) -> Iterator[Clients]:
    clients = Clients(settings, sent)
    clients.start()
    try:
        yield clients
    finally:
        clients.stop()


def delete(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for result in admin.delete_records([TopicPartition(TOPIC, 0, DELETED)]).values():
        assert result.result(LIMIT_S).low_watermark == DELETED


def everything(settings: dict[str, str]) -> list[list[int]]:
    """Returns the numbers in each partition, in their order."""
    consumer = Consumer({**settings, "group.id": "check", "enable.auto.commit": False, "enable.partition.eof": False})
    found = []
    for partition in range(PARTITIONS):
        place = TopicPartition(TOPIC, partition, OFFSET_BEGINNING)
        start, end = consumer.get_watermark_offsets(place, LIMIT_S)
        consumer.assign([place])
        values: list[int] = []
        until = time.monotonic() + LIMIT_S
        while len(values) < end - start:
            values += [int(each.value()) for each in consumer.consume(1000, 0.5)]
            assert time.monotonic() < until, f"partition {partition} ends at {end}, and {len(values)} were read"
        found.append(values)
    consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
async def test_a_cluster_becomes_secure_under_load(tmp_path: Path) -> None:
    folder = tmp_path / "secure"
    sent: list[int] = []
    with EtcdProcess(tmp_path / "etcd") as etcd:
        cluster = RollingCluster(folder, etcd)
        try:
            await cluster.start()
            admin = AdminClient({"bootstrap.servers": cluster.open, "log_level": 0})
            for result in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
                await asyncio.to_thread(result.result, LIMIT_S)
            await steps(cluster, sent)
        finally:
            await cluster.kill()


async def steps(cluster: RollingCluster, sent: list[int]) -> None:
    """The page, from its first command to the last check."""
    folder, at_open = cluster.folder, ("-b", cluster.open)
    properties = ("--command-config", str(folder / "client/admin.properties"))
    assert cluster.lowtide("certificates", str(folder), "-b", cluster.secure).returncode == 0
    passwords = {user: (folder / f"{user}.password").read_text() for user in ("admin", "broker")} | {
        "app": "app-password\n"
    }
    for user, password in passwords.items():
        added = cluster.lowtide("users", "add", user, *at_open, text=password)
        assert added.returncode == 0, added.stderr
    login = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(folder / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
    }
    app = {"bootstrap.servers": cluster.secure, **login, "sasl.username": "app", "sasl.password": "app-password"}

    with working({"bootstrap.servers": cluster.open}, sent) as open_clients:
        await open_clients.until_more()
        for step in (1, 2, 3):
            await cluster.roll(step, *at_open)
            await open_clients.until_more()
            if step == 1:
                await asyncio.to_thread(delete, cluster.open)
    with working(app, sent) as clients:
        await clients.until_more()
        for words in re.findall(r"^\$ lowtide (acls .*) --command-config", "".join(blocks("Step 3:")), re.MULTILINE):
            allowed = cluster.lowtide(*words.split(), *properties)
            assert allowed.returncode == 0, allowed.stderr
        await clients.until_more()
        await cluster.roll(4, *properties)
        await clients.until_more()

    assert open_clients.errors == clients.errors == []
    assert open_clients.acknowledged | clients.acknowledged == set(sent)
    wanted = [list(range(first, len(sent), PARTITIONS)) for first in range(PARTITIONS)]
    assert everything(app) == [wanted[0][DELETED:], *wanted[1:]]
    assert cluster.faults() == []
    stranger = AdminClient({**app, "sasl.password": "guessed", "log_level": 0, "error_cb": lambda _error: None})
    with pytest.raises(KafkaException):
        await asyncio.to_thread(stranger.list_topics, timeout=3)
