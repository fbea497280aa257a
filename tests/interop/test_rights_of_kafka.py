"""Checks the table of rights (`tests/unit/broker/guards/rights.json`) on Apache Kafka with its StandardAuthorizer.

Each row is requested in every version that Kafka serves, with the rules of each case of `rights.cases`. Kafka's own
components log in, so anonymous clients have no special rights.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.admin import Acl, AclFilter, AdminClient, NewTopic
from lowtide.admin.errors import AdminError
from lowtide.broker.authorizer.resources import Operation
from lowtide.cli.acls import _typed
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import FIRST_OF_OURS, ApiKey
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.simulation.client import WireClient
from tests.free_ports import free_ports
from tests.unit.broker.guards.rights import (
    ALLOW,
    KEYS,
    OWNER,
    ROWS,
    WHO,
    Asker,
    Case,
    bits_of_operation,
    bits_shown,
    cases,
    everything,
    prepare,
    request_of,
    rules_of_operation,
    versions_of,
    wrong_in,
)

from .kafka import CLUSTER_ID, TOOL_TIMEOUT_S, Kafka, java

pytestmark = pytest.mark.interop

ROOT = "root"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = " ".join(f'user_{name}="{name}s"' for name in (ROOT, "carol", OWNER))
PROPERTIES = f"""
listeners=PLAINTEXT://127.0.0.1:{{plain}},CONTROLLER://127.0.0.1:{{controller}},LOGINS://127.0.0.1:{{logins}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{plain}},LOGINS://127.0.0.1:{{logins}}
listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGINS:SASL_PLAINTEXT
inter.broker.listener.name=LOGINS
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.logins.plain.sasl.jaas.config={LOGIN} username="{ROOT}" password="{ROOT}s" {USERS};
listener.name.controller.plain.sasl.jaas.config={LOGIN} username="{ROOT}" password="{ROOT}s" {USERS};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users={Asker.SUPER_USER.value}
delegation.token.secret.key=the secret of all brokers
group.initial.rebalance.delay.ms=0
"""
ATTEMPTS = 8
"""Kafka answers a change of rules before its controller acts on it."""

PAUSE_S = 0.1
ANSWER_S = 10
OF_THE_CONTROLLER = frozenset({ApiKey.ENVELOPE})
"""Kafka takes these on the listener of its controller alone."""

CHANGES_TOPICS = frozenset({"CreateTopics", "DeleteTopics", "Metadata"})


class ClosedKafka:
    """A Kafka node with an authorizer: a listener without logins, one with, and the controller's, with logins."""

    def __init__(self, jars: Path, folder: Path) -> None:
        plain, self.controller, self.logins = free_ports(3)
        self.node = Kafka(jars, folder, (plain, self.controller))
        self.plain = plain
        properties = folder / "server.properties"
        with properties.open("a") as file:
            file.write(PROPERTIES.format(plain=plain, controller=self.controller, logins=self.logins))
        shutil.rmtree(self.node.directory)
        command = java(jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
        subprocess.run(command, check=True, capture_output=True, timeout=TOOL_TIMEOUT_S)

    @property
    def as_root(self) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.logins}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": ROOT,
            "sasl.password": f"{ROOT}s",
        }


@pytest.fixture(scope="module")
def closed(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedKafka]:
    made = ClosedKafka(jars, tmp_path_factory.mktemp("kafka") / "node")
    made.node.start()
    yield made
    made.node.stop()


class World:
    """The node, a client that administers it, and the clients that ask."""

    def __init__(self, node: ClosedKafka, admin: AdminClient) -> None:
        self.node = node
        self.admin = admin
        self.ids: dict[str, bytes] = {}
        self.names: dict[str, str] = {}
        self.served: dict[int, range] = {}
        self.clients: dict[tuple[str, int], WireClient] = {}

    async def log_in(self, principal: str, port: int) -> WireClient:
        client = await WireClient.connect("127.0.0.1", port)
        name = principal.removeprefix("User:")
        if principal != Asker.ANONYMOUS.value:
            assert (await client.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)).error_code == 0
            token = f"\0{name}\0{name}s".encode()
            assert (await client.request(SaslAuthenticateRequest(auth_bytes=token), 2)).error_code == 0
        return client

    async def topics(self) -> None:
        """See that the topic `t` is there, and `new` is not: a row may have deleted or created them."""
        await self.admin.delete_topics(["new"])
        while (found := (await self.admin.list_topics()).get("t")) is None:
            await self.admin.create_topics([NewTopic(name="t", partitions=1)])
            await asyncio.sleep(PAUSE_S)
        self.ids["t"] = found.topic_id

    async def begin(self) -> None:
        await self.topics()
        await self.allow(everything(ALLOW))
        client = await self.log_in(WHO, self.node.logins)
        await prepare(client)
        answer = await client.request(ApiVersionsRequest(client_software_name="tests", client_software_version="1"), 3)
        self.served = {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}
        self.served |= {key: range(1) for key in OF_THE_CONTROLLER}
        client.close()
        owner = await self.log_in(f"User:{OWNER}", self.node.logins)
        made = await owner.request(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
        assert made.error_code == 0
        self.names["id:token"] = made.token_id
        owner.close()

    async def end(self) -> None:
        for client in self.clients.values():
            client.close()
        await self.admin.close()

    async def allow(self, rules: list[AclRecord]) -> None:
        """Have these rules, and no others, in the broker. Its controller may lag."""
        wanted = {Acl(*_typed(rule)) for rule in rules}
        there = set(await self.admin.describe_acls())
        if there - wanted:
            await self.admin.delete_acls([AclFilter.exactly(acl) for acl in there - wanted])
        if wanted - there:
            await self.admin.create_acls(wanted - there)
        async with asyncio.timeout(ANSWER_S):
            while set(await self.admin.describe_acls()) != wanted:
                await asyncio.sleep(0.01)

    async def ask(self, row: dict[str, Any], version: int, asker: Asker) -> Any:
        """Returns the answer to a row. A connection that Kafka closes is opened again."""
        port = self.node.logins if asker is not Asker.ANONYMOUS else self.node.plain
        port = self.node.controller if KEYS[row["api"]] in OF_THE_CONTROLLER else port
        place = asker.value, port
        if place not in self.clients or self.clients[place].lost:
            self.clients[place] = await self.log_in(asker.value, port)
        request = request_of(row, self.ids)
        if isinstance(request, DeleteTopicsRequest):
            request.timeout_ms = 5_000  # Kafka looks at nothing in no time.
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self.clients[place].request(request, version)
        except TimeoutError:
            self.clients[place].close()
            raise

    async def found(self, row: dict[str, Any], version: int, case: Case) -> str:
        """Returns the differences from the table; empty if there are none."""
        wrong = ""
        for _ in range(ATTEMPTS):
            if row["api"] in CHANGES_TOPICS:
                await self.topics()
            try:
                wrong = wrong_in(row, self.names, case, await self.ask(row, version, case.asker))
            except (OSError, TimeoutError, AdminError, AssertionError) as error:
                wrong = f"{type(error).__name__}: {error}"
            if not wrong:
                break
            await asyncio.sleep(PAUSE_S)
        return wrong


def is_possible(row: dict[str, Any], case: Case) -> bool:
    """Returns whether such a client is possible: one that does not log in can't reach Kafka's controller listener."""
    return case.asker is not Asker.ANONYMOUS or KEYS[row["api"]] not in OF_THE_CONTROLLER


async def try_row(world: World, row: dict[str, Any]) -> list[str]:
    """Returns the differences from the table."""
    served = world.served.get(KEYS[row["api"]], range(0))
    versions, wrong = [each for each in versions_of(row) if each in served], []
    await world.topics()
    for case in cases(row, world.names) if versions else ():
        if is_possible(row, case):
            await world.allow(case.rules)
            for version in versions:
                if found := await world.found(row, version, case):
                    wrong.append(f"{row['api']} v{version} {row['needs']}, {case.name}: {found}")
    return wrong


@pytest.fixture(scope="module")
def kafka_world(closed: ClosedKafka) -> Iterator[tuple[asyncio.Runner, World]]:
    """The world, and the loop on which its clients are."""

    async def begun() -> World:
        world = World(closed, AdminClient(closed.as_root))
        await world.begin()
        return world

    with asyncio.Runner() as runner:
        world = runner.run(begun())
        yield runner, world
        runner.run(world.end())


@pytest.mark.parametrize("api", sorted({row["api"] for row in ROWS if KEYS[row["api"]] < FIRST_OF_OURS}))
def test_kafka_decides_as_the_table_says(kafka_world: tuple[asyncio.Runner, World], api: str) -> None:
    runner, world = kafka_world

    async def all_rows() -> list[str]:
        found = [await try_row(world, row) for row in ROWS if row["api"] == api]
        return [line for lines in found for line in lines]

    assert runner.run(all_rows()) == []


def test_kafka_shows_the_same_operations(kafka_world: tuple[asyncio.Runner, World]) -> None:
    runner, world = kafka_world

    async def compare() -> None:
        await world.topics()
        for operation in list(Operation)[2:]:
            rules = rules_of_operation(operation)
            await world.allow(rules)
            client = await world.log_in(WHO, world.node.logins)
            shown = await bits_shown(client)
            client.close()
            assert shown == bits_of_operation(operation), operation

    runner.run(compare())
