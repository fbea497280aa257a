"""What each request needs: `rights.json`, tried in every version on a simulated broker, with every kind of rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.authorizer.standard_authorizer import StandardAuthorizer
from lowtide.broker.security.principal import ANONYMOUS, ShownBy, parse_principal
from lowtide.metadata.acl_image import AclImage
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore

from .rights import (
    ALLOW,
    OWNER,
    ROWS,
    TABLE,
    Asker,
    bits_of_operation,
    bits_shown,
    cases,
    everything,
    prepare,
    request_of,
    rules_of_operation,
    served_without_a_row,
    versions_of,
    wrong_in,
)

SETTINGS = {
    "log.dirs": "/a",
    "delegation.token.secret.key": "secret",
    "default.replication.factor": "3",  # A topic that Metadata would create can't be: it stays unknown.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": Asker.SUPER_USER.value,
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def test_the_table_has_every_request_in_every_version() -> None:
    """What is served and isn't here was not thought of."""
    assert served_without_a_row() == set()
    names = {"".join(word.capitalize() for word in key.name.split("_")) for key in ApiKey}
    assert {row["api"] for row in TABLE} <= names, "a name that no request has"


class Closed:
    """A broker with an authorizer under simulation, whose rules a test sets."""

    def __init__(self, loop: SimulatedLoop) -> None:
        shared, chronicle = SharedStore(loop, Random(1)), Chronicle(loop.time)
        self.machine = Machine(
            loop=loop,
            shared=shared,
            broker_id=1,
            random=Random(1),
            settings=SETTINGS,
            chronicle=chronicle,
            effects=Counter(),
        )
        self.ids: dict[str, bytes] = {}
        self.names: dict[str, str] = {}
        self.clients: dict[Asker, WireClient] = {}

    async def begin(self) -> None:
        """With a topic, a group and a transactional id."""
        self.machine.start()
        while self.machine.state is not State.UP:
            await asyncio.sleep(0.01)
        assert self.machine.broker is not None
        context = self.machine.broker.serving.coordinators.groups.broker
        authorizer = context.authorizer
        assert isinstance(authorizer, StandardAuthorizer)
        self.authorizer: Any = authorizer
        self.authorizer.use = lambda _acls, **_changed: None  # The image has no rules: those of the test stay.
        self.clients = {asker: await self._client(asker.value) for asker in Asker}
        self.allow(everything(ALLOW))
        client = self.clients[Asker.USER]
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        made = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False), 7)
        self.ids["t"] = made.topics[0].topic_id
        await prepare(client)
        owner = await self._client(f"User:{OWNER}")
        token = await owner.request(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
        owner.close()
        assert token.error_code == 0
        self.names["id:token"] = token.token_id

    async def _client(self, principal: str) -> WireClient:
        """A client, as if it had shown that it is that principal."""
        before, client = self._connections(), await WireClient.connect(*self.machine.address)
        (connection,) = [each for each in self._connections() if each not in before]
        connection.principal = parse_principal(principal)
        connection.shown_by = ShownBy.NOTHING if connection.principal == ANONYMOUS else ShownBy.LOGIN
        return client

    def _connections(self) -> list[Any]:
        assert self.machine.broker is not None
        return list(self.machine.broker.serving.host.connections)

    def allow(self, rules: list[AclRecord]) -> None:
        StandardAuthorizer.use(self.authorizer, {repr(rule).encode(): AclImage(rule, 1) for rule in rules})


async def try_all(loop: SimulatedLoop, rows: list[dict[str, Any]], versions: slice) -> list[str]:
    """What isn't as the table says, in these of the versions of each row."""
    closed = Closed(loop)
    await closed.begin()
    wrong = []
    for row in rows:
        for version in versions_of(row)[versions]:
            for case in cases(row, closed.names):
                closed.allow(case.rules)
                answer = await closed.clients[case.asker].request(request_of(row, closed.ids), version)
                found = wrong_in(row, closed.names, case, answer)
                if found:
                    wrong.append(f"{row['api']} v{version}, {case.name}: {found}")
    return wrong


NEWEST, OLDER = slice(-1, None), slice(0, -1)
APIS = sorted({row["api"] for row in ROWS})
WITH_OLDER = sorted({row["api"] for row in ROWS if versions_of(row)[OLDER]})


@pytest.mark.parametrize(
    ("api", "versions"),
    [
        *(pytest.param(api, NEWEST, id=api) for api in APIS),
        *(pytest.param(api, OLDER, id=f"{api}, older versions", marks=pytest.mark.slow) for api in WITH_OLDER),
    ],
)
def test_each_request_is_answered_as_kafka_does(api: str, versions: slice) -> None:
    """With no right, all rights, all but one, by prefix, denied, as a super user, of all users, and without a login."""

    def main(loop: SimulatedLoop) -> Coroutine[Any, Any, list[str]]:
        return try_all(loop, [row for row in ROWS if row["api"] == api], versions)

    assert run_simulation(main, 1) == []


def test_clients_are_shown_the_operations_that_they_may_do() -> None:
    async def main(loop: SimulatedLoop) -> None:
        closed = Closed(loop)
        await closed.begin()
        for operation in list(Operation)[2:]:
            closed.allow(rules_of_operation(operation))
            assert await bits_shown(closed.clients[Asker.USER]) == bits_of_operation(operation), operation
        closed.allow([])
        assert await bits_shown(closed.clients[Asker.SUPER_USER]) == bits_of_operation(Operation.ALL)

    run_simulation(main, 1)
