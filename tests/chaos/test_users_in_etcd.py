"""SCRAM users of two brokers with an etcd: `lowtide users`, and brokers that log in to each other."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Producer

from lowtide.admin import AdminClient, NewTopic
from lowtide.admin.errors import AdminError
from lowtide.broker.config.keys_security import STANDARD_AUTHORIZER
from tests.etcd import EtcdProcess, missing

from .serving import ServeProcess

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

MECHANISM = "SCRAM-SHA-512"
LINE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PASSWORDS = {"broker": "between them", "admin": "geheim", "alice": "pencil"}
SECOND = "federhalter"
"""The later password of alice."""
LIMIT_S = 60.0


class World:
    """An etcd, certificates, and the commands of an operator."""

    def __init__(self, folder: Path, etcd: EtcdProcess) -> None:
        self.folder = folder
        self.store = f"etcd://{etcd.endpoint}"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
        words = [f"{key}={value}" for key, value in self.login("admin").items()]
        (folder / "admin.properties").write_text("\n".join(words))

    def login(self, user: str, password: str = "") -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.folder / "ca.pem"),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password or PASSWORDS[user],
        }

    def broker(self, number: int) -> ServeProcess:
        settings = {
            "node.id": str(number),
            "listeners": "SASL_SSL://127.0.0.1:0",
            "inter.broker.listener.name": "SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                f'{LINE} username="broker" password="{PASSWORDS["broker"]}";'
            ),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:broker;User:admin",
            "connection.failed.authentication.delay.ms": "0",
        }
        given = [f"{name}={value}" for name, value in settings.items()]
        return ServeProcess(self.folder / str(number), *given, metadata=self.store)

    async def users(self, *words: str, password: str = "", at: ServeProcess | None = None) -> str:
        """Runs `lowtide users`, on the etcd or on a broker. Returns what it prints."""
        where = ["--metadata", self.store]
        if at is not None:
            where = [
                "--bootstrap-server",
                f"127.0.0.1:{at.port}",
                "--command-config",
                str(self.folder / "admin.properties"),
            ]
        command = [sys.executable, "-m", "lowtide.cli.main", "users", *words, *where]
        ended = await asyncio.to_thread(
            subprocess.run, command, input=password, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert ended.returncode == 0, ended.stderr
        assert not any(secret in ended.stdout + ended.stderr for secret in (*PASSWORDS.values(), password) if secret)
        return ended.stdout

    async def may_log_in(self, broker: ServeProcess, user: str, password: str = "") -> bool:
        settings: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{broker.port}"} | self.login(user, password)
        try:
            async with AdminClient(settings) as client:
                await client.list_topics(timeout=LIMIT_S)
        except AdminError:
            return False
        return True

    async def logins(self, brokers: list[ServeProcess], user: str, password: str = "") -> list[bool]:
        """Returns the brokers where a user can log in."""
        return [await self.may_log_in(each, user, password) for each in brokers]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with EtcdProcess(tmp_path / "etcd") as etcd:
        yield World(tmp_path, etcd)


@pytest.mark.slow
async def test_users_in_etcd(world: World) -> None:
    """Users exist before the first start; a change holds on all brokers once answered, and survives SIGKILL."""
    for user in ("broker", "admin"):
        await world.users("add", user, password=PASSWORDS[user])
    async with world.broker(1) as one, world.broker(2) as two:
        async with AdminClient({"bootstrap.servers": f"127.0.0.1:{one.port}"} | world.login("admin")) as admin:
            await admin.create_topics(
                [NewTopic(name="t", partitions=2, replication_factor=2, configs={"min.insync.replicas": "2"})]
            )
            await replicates(world, one)
            assert not await world.may_log_in(one, "alice")
            await world.users("add", "alice", password=PASSWORDS["alice"], at=one)
            assert await world.logins([one, two], "alice") == [True, True]
            listed = json.loads(await world.users("list", "--output", "json", at=two))["users"]
            assert {row["user"]: row["mechanism"] for row in listed} == dict.fromkeys(PASSWORDS, MECHANISM)
            await world.users("add", "alice", password=SECOND, at=two)
            assert await world.logins([one, two], "alice") == [False, False]
            assert await world.logins([one, two], "alice", SECOND) == [True, True]
            await two.kill()
        async with world.broker(2) as again:
            await replicates(world, one)
            assert await world.may_log_in(again, "alice", SECOND)
            await world.users("remove", "alice", at=again)
            assert await world.logins([one, again], "alice", SECOND) == [False, False]
            assert "alice" not in await world.users("list")
            assert not [line for each in (one, two, again) for line in (*each.lines, *each.noise) if has_secret(line)]


async def replicates(world: World, broker: ServeProcess) -> None:
    """Records reach both brokers: they have logged in to each other."""
    address = f"127.0.0.1:{broker.port}"
    async with AdminClient({"bootstrap.servers": address} | world.login("admin")) as admin, asyncio.timeout(LIMIT_S):
        while True:
            topic = (await admin.describe_topics(["t"]))["t"]
            assert not isinstance(topic, Exception)
            if all(len(partition.isr) == 2 and partition.leader is not None for partition in topic.partitions.values()):
                break
            await asyncio.sleep(0.1)
    producer = Producer({"bootstrap.servers": address, "acks": "all"} | world.login("admin"))
    errors: list[Any] = []
    for partition in range(2):
        producer.produce("t", b"record", partition=partition, on_delivery=lambda error, _: errors.append(error))
    await asyncio.to_thread(producer.flush, LIMIT_S)
    assert errors == [None, None]


def has_secret(line: object) -> bool:
    return any(secret in repr(line) for secret in (*PASSWORDS.values(), SECOND))
