"""No secret leaves a broker: not by its log, by its answers, by an error at its start, nor by files that others may
read.

Every secret of this broker has the same marker in it; what the broker writes and answers is searched for it (the class
of CVE-2023-24619).
"""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.clients.certificate_files import alter_broker

from .serving import ServeProcess, run_to_end, serve_command

MARKER = "m4rk3r-0f-a-s3cr3t"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
USERS = f'{PLAIN} username="b" password="{MARKER}" user_b="{MARKER}" user_alice="{MARKER}-a"'
LISTENERS = "listeners=SASL_PLAINTEXT://127.0.0.1:0"
SETTINGS = (
    LISTENERS,
    "inter.broker.listener.name=SASL_PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    f"{JAAS}={USERS};",
)


def client(port: int, user: str, password: str, mechanism: str = "PLAIN") -> AdminClient:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0, **login})


def add_user(directory: Path) -> str:
    """Before the first start; returns what the command prints."""
    command = [sys.executable, "-m", "lowtide.cli.main", "users", "add", "carol", "--log-dirs", str(directory)]
    ended = subprocess.run(command, input=f"{MARKER}-carol\n", capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def open_to_others(directory: Path) -> Iterator[Path]:
    for path in (directory, *directory.rglob("*")):
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            yield path


def is_refused(port: int, user: str, mechanism: str) -> None:
    with pytest.raises(KafkaException):
        client(port, user, f"{MARKER}-wrong", mechanism).list_topics(timeout=3)


async def test_a_broker_keeps_its_secrets(tmp_path: Path) -> None:
    """Secrets of the configuration, also of changes while it runs, of logins, and of users in its store."""
    said = add_user(tmp_path / "data")
    async with ServeProcess(tmp_path / "data", *SETTINGS) as broker:
        admin = client(broker.port, "alice", f"{MARKER}-a")
        alter_broker(admin, {JAAS: f'{USERS} user_dave="{MARKER}-d";'})
        with pytest.raises(KafkaException) as refused:
            alter_broker(admin, {JAAS: f'{USERS} user_eve="{MARKER}-e'})
        assert client(broker.port, "dave", f"{MARKER}-d").list_topics(timeout=30).brokers
        (described,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "0")]).values()
        configs = described.result(30)
        assert configs[JAAS].value is None
        assert client(broker.port, "carol", f"{MARKER}-carol", "SCRAM-SHA-512").list_topics(timeout=30).brokers
        wrong = [("alice", "PLAIN"), ("nobody", "PLAIN"), ("carol", "SCRAM-SHA-512")]
        await asyncio.gather(*(asyncio.to_thread(is_refused, broker.port, *login) for login in wrong))
        assert await broker.terminate() == 0
    said += f"{refused.value} {broker.lines} {broker.noise} {[(entry.name, entry.value) for entry in configs.values()]}"
    assert "login refused" in said
    assert MARKER not in said
    assert not list(open_to_others(tmp_path / "data"))
    assert not [
        path
        for path in (tmp_path / "data").rglob("*")
        if path.is_file() and f"{MARKER}-carol".encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    "settings",
    [
        (LISTENERS, f"{JAAS}=no.such.LoginModule required password={MARKER};"),
        pytest.param((LISTENERS, f'{JAAS}={PLAIN} user_b="{MARKER}'), marks=pytest.mark.slow),
        pytest.param(
            ("listeners=SSL://127.0.0.1:0", "ssl.keystore.location=/no/such/file", f"ssl.keystore.password={MARKER}"),
            marks=pytest.mark.slow,
        ),
        (
            "listeners=SSL://127.0.0.1:0",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.key={MARKER}",
            f"ssl.keystore.certificate.chain={MARKER}",
        ),
    ],
    ids=["another login module", "a string without its end", "no key store", "a key that is none"],
)
def test_a_refused_start_shows_no_secret(tmp_path: Path, settings: tuple[str, ...]) -> None:
    ended = run_to_end(serve_command(tmp_path / "data", "sasl.enabled.mechanisms=PLAIN", *settings))
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert MARKER not in ended.stdout + ended.stderr


WITHOUT_UMASK = ("sh", "-c", 'umask 0; exec "$@"', "sh")


def write_and_delete(port: int) -> None:
    """Leaves segments, indexes, snapshots, the journal of log starts, and offsets of a group."""
    settings = {"bootstrap.servers": f"127.0.0.1:{port}"}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("t", 2, 1, config={"segment.bytes": "1048576"})])["t"].result(30)
    producer = Producer(settings | {"enable.idempotence": True})
    for number in range(300):
        producer.produce("t", b"x" * 10_000, partition=number % 2)
        producer.poll(0)
        if number % 10 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    admin.delete_records([TopicPartition("t", 0, 120)])[TopicPartition("t", 0)].result(30)
    consumer = Consumer(settings | {"group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 1, 5)], asynchronous=False)
    consumer.close()


async def test_no_other_user_of_the_machine_reads_what_a_broker_writes(tmp_path: Path) -> None:
    """Whatever the umask is.

    At its start a broker takes their rights to what an older version, or Apache Kafka, has left.
    """
    above = tmp_path / "new"
    audited = "lowtide.audit.log=file", "lowtide.audit.file=audit.log"
    settings = "listeners=PLAINTEXT://127.0.0.1:0", "offsets.topic.num.partitions=1", *audited
    for _ in range(2):
        async with ServeProcess(above / "data", *settings, within=WITHOUT_UMASK) as broker:
            if not (above / "data" / "t-0").exists():
                await asyncio.to_thread(write_and_delete, broker.port)
            assert not list(open_to_others(above))
            assert await broker.terminate() == 0
        assert not list(open_to_others(above))
    for path in (above / "data").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (above / "data").chmod(0o755)
    async with ServeProcess(above / "data", *settings) as broker:
        left = [path.relative_to(above / "data") for path in open_to_others(above / "data")]
        assert all(len(path.parts) == 2 for path in left), left  # In a folder that they can't enter.
        assert await broker.terminate() == 0
