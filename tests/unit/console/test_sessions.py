"""Sessions: found by their cookies only, bounded in number and age, and logins that fail are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

from lowtide.admin.errors import AuthenticationFailedError
from lowtide.admin.settings import ClientSettings
from lowtide.console.sessions import (
    AGE_MS_MAX,
    IDLE_MS,
    SESSIONS_MAX,
    SESSIONS_OF_USER_MAX,
    ConsolePorts,
    NoRoomError,
    Sessions,
)
from lowtide.console.settings import ConsoleSettings, LoginKind
from lowtide.runtime.failed_logins import FAILURE_BURST
from lowtide.runtime.tasks import TaskRegistry

ADDRESS = "192.0.2.1"
NAME_AND_PASSWORD = (ADDRESS, "alice", "right", "SCRAM-SHA-512")


class FakeClock:
    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class FakeClient:
    """Lets in who has the right password."""

    def __init__(self, settings) -> None:
        self.settings = settings
        self.closed = False

    async def describe_cluster(self):
        if self.settings.sasl.password != "right":
            raise AuthenticationFailedError("no")

    async def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, login: LoginKind = LoginKind.PASSWORD, token: str | None = None) -> None:
        self.clock = FakeClock()
        self.clients: list[FakeClient] = []
        self.tasks = TaskRegistry(lambda name, error: None)
        settings = ConsoleSettings(
            client=ClientSettings.of({"bootstrap.servers": "a:1"}), login=login, token=token, make_client=self.make
        )
        self.sessions = Sessions(settings, ConsolePorts(self.clock, Random(7), self.tasks))

    def make(self, settings) -> FakeClient:
        self.clients.append(FakeClient(settings))
        return self.clients[-1]


async def test_a_session_has_a_client_that_is_its_user():
    world = World()
    cookie, session = await world.sessions.log_in(*NAME_AND_PASSWORD)
    assert world.sessions.found(cookie) is session
    assert (session.client.settings.sasl.username, session.client.settings.sasl.password) == ("alice", "right")
    assert len(cookie) == 64
    for other in (None, "", cookie[:-1], cookie + "0", "x" * 10_000):
        assert world.sessions.found(other) is None


async def test_cookies_differ():
    world = World()
    cookies = {(await world.sessions.log_in(*NAME_AND_PASSWORD))[0] for _ in range(5)}
    assert len(cookies) == 5


async def test_a_wrong_password_has_no_session():
    world = World()
    with pytest.raises(AuthenticationFailedError):
        await world.sessions.log_in(ADDRESS, "alice", "wrong", "PLAIN")
    assert world.clients[0].closed


async def test_failed_logins_are_bounded_in_time():
    world = World()
    for _ in range(FAILURE_BURST):
        with pytest.raises(AuthenticationFailedError):
            await world.sessions.log_in(ADDRESS, "alice", "wrong", "PLAIN")
    with pytest.raises(NoRoomError):
        await world.sessions.log_in(*NAME_AND_PASSWORD)
    assert len(world.clients) == FAILURE_BURST
    world.clock.now_ms += 1_000
    await world.sessions.log_in(*NAME_AND_PASSWORD)


async def test_wrong_passwords_of_one_user_do_not_keep_out_others():
    world = World()
    for _ in range(FAILURE_BURST):
        with pytest.raises(AuthenticationFailedError):
            await world.sessions.log_in(ADDRESS, "mallory", "wrong", "PLAIN")
    await world.sessions.log_in(*NAME_AND_PASSWORD)


@pytest.mark.parametrize("step_ms", [IDLE_MS + 1, IDLE_MS // 2])
async def test_a_session_ends_by_disuse_or_age(step_ms):
    """Half an hour without use, or twelve hours with it."""
    world = World()
    cookie, session = await world.sessions.log_in(*NAME_AND_PASSWORD)
    while world.sessions.found(cookie) is not None:
        world.clock.now_ms += step_ms
        assert world.clock.now_ms <= AGE_MS_MAX + 2 * step_ms
    assert (world.clock.now_ms > AGE_MS_MAX) == (step_ms < IDLE_MS)
    await asyncio.sleep(0)
    assert session.client.closed  # type: ignore[attr-defined]


async def test_a_user_has_a_few_sessions_and_the_oldest_gives_way():
    world = World()
    cookies = []
    for _ in range(SESSIONS_OF_USER_MAX + 1):
        cookies.append((await world.sessions.log_in(*NAME_AND_PASSWORD))[0])
        world.clock.now_ms += 1
    assert [world.sessions.found(cookie) is not None for cookie in cookies] == [False] + [True] * SESSIONS_OF_USER_MAX


async def test_all_sessions_are_bounded_and_the_least_recently_used_gives_way():
    world = World()
    cookies = []
    for number in range(SESSIONS_MAX + 1):
        cookies.append((await world.sessions.log_in(ADDRESS, f"user-{number}", "right", "PLAIN"))[0])
        world.clock.now_ms += 1
    assert [world.sessions.found(cookie) is not None for cookie in cookies] == [False] + [True] * SESSIONS_MAX


async def test_users_with_many_sessions_give_way_to_one_with_none():
    world = World()
    first = (await world.sessions.log_in(*NAME_AND_PASSWORD))[0]
    for number in range(SESSIONS_MAX):
        world.clock.now_ms += 1
        await world.sessions.log_in(ADDRESS, f"user-{number % 4}", "right", "PLAIN")
    assert world.sessions.found(first) is not None


async def test_logging_out_ends_it():
    world = World()
    cookie, session = await world.sessions.log_in(*NAME_AND_PASSWORD)
    world.sessions.log_out(cookie)
    world.sessions.log_out(cookie)
    world.sessions.log_out(None)
    assert world.sessions.found(cookie) is None
    await asyncio.sleep(0)
    assert session.client.closed  # type: ignore[attr-defined]


async def test_the_token_of_the_address_opens_it():
    world = World(LoginKind.TOKEN, "secret")
    assert world.sessions.found(None) is None
    assert world.sessions.open_by_token(ADDRESS, "other") is None
    assert world.sessions.open_by_token(ADDRESS, "\u00e9") is None
    cookie, session = world.sessions.open_by_token(ADDRESS, "secret") or ("", None)
    assert world.sessions.found(cookie) is session


async def test_without_a_token_none_is_the_right_one():
    world = World(LoginKind.TOKEN)
    assert world.sessions.open_by_token(ADDRESS, "") is None


async def test_where_no_login_is_needed_all_share_one():
    world = World(LoginKind.NONE)
    assert world.sessions.found(None) is world.sessions.found("anything")
    assert len(world.clients) == 1
    await world.sessions.close()
    assert world.clients[0].closed


async def test_a_password_with_each_request_has_one_session():
    """And no cookie finds it: otherwise passwords could be tried without a login that fails."""
    world = World()
    first, second = await asyncio.gather(*(world.sessions.of_password(ADDRESS, "alice", "right") for _ in range(2)))
    assert first is second
    assert len(world.clients) == 1
    assert world.sessions.found("5 alice right") is None
    with pytest.raises(AuthenticationFailedError):
        await world.sessions.of_password(ADDRESS, "alice", "wrong")
    with pytest.raises(NoRoomError):
        for _ in range(FAILURE_BURST):
            with suppress(AuthenticationFailedError):
                await world.sessions.of_password(ADDRESS, "alice", "wrong")
