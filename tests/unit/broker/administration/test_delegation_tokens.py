"""Tokens on a broker under simulation, through their handlers.

The order of refusals, the times, the sweep, what is kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.administration.delegation_token_administrator import TokenAdministrator, new_token_id
from lowtide.broker.administration.spread import Spread
from lowtide.broker.handlers import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from lowtide.broker.lifecycle.listener_security import ImageTokens
from lowtide.broker.security.delegation_tokens import secret_of
from lowtide.broker.security.principal import ANONYMOUS, KafkaPrincipal, ShownBy
from lowtide.broker.security.scram import TokenOwner
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_delegation_token import CreatableRenewer, CreateDelegationTokenRequest
from lowtide.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from lowtide.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from lowtide.protocol.scram import ScramMechanism
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore

SECRET = {
    "delegation.token.secret.key": "geheim",
    "delegation.token.max.lifetime.ms": "10000",
    "delegation.token.expiry.time.ms": "4000",
}
SWEEP = {"delegation.token.expiry.check.interval.ms": "60000"}


class World:
    """One broker, asked by its handlers without a connection."""

    def __init__(self, loop: SimulatedLoop, settings: dict[str, str]) -> None:
        shared = SharedStore(loop, Random(1))
        self.machine = Machine(
            loop=loop,
            shared=shared,
            broker_id=1,
            random=Random(1),
            settings={"log.dirs": "/a", **SWEEP, **settings},
            chronicle=Chronicle(loop.time),
            effects=Counter(),
        )

    async def begin(self) -> None:
        self.machine.start()
        while self.machine.state is not State.UP:
            await asyncio.sleep(0.01)
        assert self.machine.broker is not None
        self.broker: Any = self.machine.broker.serving.coordinators.groups.broker
        administrator = TokenAdministrator(self.broker, Spread(self.broker, None))
        parts = (create_delegation_token, renew_delegation_token, expire_delegation_token, describe_delegation_token)
        requests = (
            CreateDelegationTokenRequest,
            RenewDelegationTokenRequest,
            ExpireDelegationTokenRequest,
            DescribeDelegationTokenRequest,
        )
        self.handlers = {
            request: part.handler(administrator).handle_later for request, part in zip(requests, parts, strict=True)
        }
        self.logins = ImageTokens(lambda: self.broker.metadata.image, secret_of("geheim"), self.broker.clock)

    async def ask(self, request: Any, name: str = "alice", shown_by: ShownBy = ShownBy.LOGIN) -> Any:
        principal = KafkaPrincipal("User", name)
        context: Any = SimpleNamespace(
            principal=principal, client_address="", connection=SimpleNamespace(shown_by=shown_by)
        )
        handle = self.handlers[type(request)]
        assert handle is not None
        return await handle(request, context)

    async def create(self, name: str = "alice", **fields: Any) -> Any:
        request = CreateDelegationTokenRequest(**({"renewers": [], "max_lifetime_ms": -1} | fields))
        return await self.ask(request, name)

    @property
    def count(self) -> int:
        return len(self.broker.metadata.image.tokens)


def on_a_broker(settings: dict[str, str], body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        world = World(loop, settings)
        await world.begin()
        await body(world)

    run_simulation(main, 1)


REQUESTS = [
    CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1),
    RenewDelegationTokenRequest(hmac=b"none", renew_period_ms=-1),
    ExpireDelegationTokenRequest(hmac=b"none", expiry_time_period_ms=-1),
    DescribeDelegationTokenRequest(owners=None),
]
GROUP = [CreatableRenewer(principal_type="Group", principal_name="x")]


def test_without_a_secret_all_is_refused_but_what_is_wrong_anyway_first() -> None:
    """In Kafka's order: who asks, for whom, which renewers, whether there are tokens at all."""

    async def body(world: World) -> None:
        for request in REQUESTS:
            for shown_by in (ShownBy.NOTHING, ShownBy.TOKEN):
                assert (
                    await world.ask(request, shown_by=shown_by)
                ).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert (await world.ask(request)).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert (await world.create(renewers=GROUP)).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE

    on_a_broker({}, body)


def test_times_are_bounded_by_the_keys() -> None:
    """Kafka's: a lifetime for all renewals, a period for each, and none is longer than allowed."""

    async def body(world: World) -> None:
        made = await world.create(max_lifetime_ms=60_000)
        issued = made.issue_timestamp_ms
        assert (made.expiry_timestamp_ms - issued, made.max_timestamp_ms - issued) == (4_000, 10_000)
        short = await world.create(max_lifetime_ms=3_000)
        assert short.expiry_timestamp_ms == short.max_timestamp_ms == short.issue_timestamp_ms + 3_000
        await asyncio.sleep(3.5)
        assert (await world.ask(RenewDelegationTokenRequest(hmac=short.hmac, renew_period_ms=-1))).error_code == (
            ErrorCode.DELEGATION_TOKEN_EXPIRED
        )
        for period, expected in ((-1, 4_000), (2**63 - 1, 4_000), (2_000, 2_000)):
            now = world.broker.clock.wall_ms()
            renewed = await world.ask(RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=period))
            assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, now + expected)
        later = await world.ask(ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=2**63 - 1))
        assert later.expiry_timestamp_ms == made.max_timestamp_ms

    on_a_broker(SECRET, body)


def test_a_token_that_has_ended_logs_nobody_in_and_is_swept() -> None:
    async def body(world: World) -> None:
        made = await world.create()
        for mechanism in ScramMechanism:
            assert world.logins.of(mechanism, made.token_id) is not None
        owner = world.logins.owner_of(made.token_id)
        assert owner == TokenOwner("alice", made.expiry_timestamp_ms - world.broker.clock.wall_ms())
        await asyncio.sleep(4)
        assert world.logins.of(ScramMechanism.SHA_256, made.token_id) is None
        assert world.logins.owner_of(made.token_id) is None
        assert world.count == 1
        late = await world.ask(ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=5))
        assert late.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
        await asyncio.sleep(60)
        assert world.count == 0
        again = await world.create()
        assert (
            await world.ask(ExpireDelegationTokenRequest(hmac=again.hmac, expiry_time_period_ms=-1))
        ).error_code == 0
        assert world.count == 0, "a removal does not wait for the sweep"

    on_a_broker(SECRET, body)


def test_those_may_change_and_see_a_token_that_it_concerns() -> None:
    bob = [CreatableRenewer(principal_type="User", principal_name="bob")]

    async def body(world: World) -> None:
        made = await world.create(owner_principal_type="User", owner_principal_name="alice", name="carol", renewers=bob)
        assert (made.principal_name, made.token_requester_principal_name) == ("alice", "carol")
        renewal = RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1)
        errors = {name: (await world.ask(renewal, name)).error_code for name in ("alice", "bob", "carol", "dave")}
        mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert errors == {"alice": 0, "bob": 0, "carol": mismatch, "dave": mismatch}
        wrong = RenewDelegationTokenRequest(hmac=made.hmac[:-1] + b"x", renew_period_ms=-1)
        assert (await world.ask(wrong)).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        (row,) = (await world.ask(DescribeDelegationTokenRequest(owners=None), "bob")).tokens
        assert (row.token_id, row.hmac, row.renewers[0].principal_name) == (made.token_id, made.hmac, "bob")
        assert (await world.ask(DescribeDelegationTokenRequest(owners=[]))).tokens == []
        of_dave = [DescribeDelegationTokenOwner(principal_type="User", principal_name="dave")]
        assert (await world.ask(DescribeDelegationTokenRequest(owners=of_dave))).tokens == []
        group = await world.create(owner_principal_type="Group", owner_principal_name="alice")
        assert group.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE

    on_a_broker(SECRET, body)


def test_neither_the_store_nor_the_log_has_the_password() -> None:
    async def body(world: World) -> None:
        made = await world.create()
        ((key, kept),) = world.broker.metadata.image.tokens.items()
        for secret in (made.hmac, b"geheim"):
            assert secret not in key
            assert repr(secret)[2:-1] not in repr(kept)
        assert "hmac" not in repr(made)
        other = ImageTokens(lambda: world.broker.metadata.image, secret_of("another"), world.broker.clock)
        assert other.of(ScramMechanism.SHA_256, made.token_id) is None
        none = ImageTokens(lambda: world.broker.metadata.image, None, world.broker.clock)
        assert none.of(ScramMechanism.SHA_256, made.token_id) is None
        assert world.logins.secret != none.secret == world.broker.metadata.image.scram.secret

    on_a_broker(SECRET, body)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_anonymous_clients_get_no_tokens(request_: Any) -> None:
    async def body(world: World) -> None:
        answer = await world.ask(request_, ANONYMOUS.name, ShownBy.NOTHING)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    on_a_broker(SECRET, body)


def test_no_id_of_a_token_looks_like_an_option() -> None:
    """The first six bits are its first letter; 62 is `-`."""

    class Drawn:
        values = [62 << 122, (62 << 122) + 1, 7]  # noqa: RUF012

        def getrandbits(self, bits: int) -> int:
            assert bits == 128
            return self.values.pop(0)

    random: Any = Drawn()
    assert new_token_id(random) == "AAAAAAAAAAAAAAAAAAAABw"
    assert Drawn.values == []
