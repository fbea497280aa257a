"""The logins of listeners follow the configuration: unchanged ones keep their objects, and their token keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.config.broker_config import BrokerConfig, load_config
from lowtide.broker.config.key import ConfigError
from lowtide.broker.lifecycle.listener_logins import ListenerLogins
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.broker.security.exchange import LoginSuccess
from lowtide.metadata.image import MetadataImage
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.tasks import TaskRegistry
from tests.issuer import Issuer, key_set

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ENABLED, USERS = "listener.name.in.sasl.enabled.mechanisms", "listener.name.in.plain.sasl.jaas.config"


class World:
    """Logins of one listener, and what they need of a broker."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys.json"
        self.tasks = TaskRegistry(lambda _name, _error: None)
        base: Any = SimpleNamespace(
            configs=SimpleNamespace(current=self.config({})),
            log=quiet_logger(),
            ports=SimpleNamespace(clock=SystemClock(), random=None),
            tasks=self.tasks,
        )
        self.logins = ListenerLogins(base, MetadataImage)

    def config(self, changes: dict[str, str]) -> BrokerConfig:
        url = f"file:{self.keys}"
        settings = {
            "listeners": "IN://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "listener.security.protocol.map": "IN:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "lowtide.sasl.oauthbearer.allowed.urls": url,
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.allow.unverified.issuer": "true",
            "sasl.oauthbearer.jwks.endpoint.url": url,
            ENABLED: "PLAIN,SCRAM-SHA-256",
            USERS: f'{PLAIN} user_alice="pencil";',
        }
        return load_config(settings=settings | changes)

    def is_right(self, mechanism: str, token: bytes) -> bool:
        return isinstance(self.logins.by_listener["IN"].mechanisms[mechanism].begin().step(token), LoginSuccess)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_only_what_is_changed_is_made_again(world: World) -> None:
    await world.logins.load()
    sasl = world.logins.by_listener["IN"]
    before = dict(sasl.mechanisms)
    world.logins.follow(world.config({}))
    assert sasl.mechanisms == before
    world.logins.follow(
        world.config({USERS: f'{PLAIN} user_alice="pen";', ENABLED: "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN"})
    )
    assert list(sasl.mechanisms) == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
    assert sasl.mechanisms["SCRAM-SHA-256"] is before["SCRAM-SHA-256"]
    assert world.is_right("PLAIN", b"\0alice\0pen")
    assert not world.is_right("PLAIN", b"\0alice\0pencil")


async def test_keys_of_tokens_are_fetched_while_they_are_needed(world: World) -> None:
    """Also where no request asked for it: the metadata may be brought back from a copy."""
    await world.logins.load()
    issuer = Issuer()
    with_tokens = world.config({ENABLED: "OAUTHBEARER"})
    with pytest.raises(ConfigError, match="the listener IN has no keys to verify tokens by"):
        await world.logins.prepare(with_tokens, ())
    assert not world.tasks
    world.keys.write_bytes(key_set(issuer))
    token = f"n,,\x01auth=Bearer {issuer.token(aud=None)}\x01\x01".encode()
    for is_prepared in (True, False):
        if is_prepared:
            (await world.logins.prepare(with_tokens, ()))()
        world.logins.follow(with_tokens)
        async with asyncio.timeout(30):
            while not world.is_right("OAUTHBEARER", token):
                assert not is_prepared
                await asyncio.sleep(0.01)
        assert len(world.tasks) == 1
        world.logins.follow(world.config({}))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while world.tasks:
                await asyncio.sleep(0.01)
    await world.tasks.cancel_all()
