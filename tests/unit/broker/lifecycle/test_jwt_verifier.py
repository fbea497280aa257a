"""Token keys are fetched at the start, when they are due and when one is missing. A failed fetch changes nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.config.oauth_settings import KeySource, OAuthSettings
from lowtide.broker.lifecycle import jwt_verifier
from lowtide.broker.lifecycle.jwt_verifier import KEY_SET_BYTES_MAX, TokenVerifier, token_verifier
from lowtide.broker.security.exchange import LoginFailure, LoginSuccess
from lowtide.broker.security.jwt_claims import TokenHolder, TokenRules
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.https import parse_url
from lowtide.runtime.tls import TlsSettings
from tests.https_server import answer, https_server
from tests.issuer import AUDIENCE, ISSUER, Issuer, forgeries, key_set

HOUR_MS = 3_600_000
LIMIT_S = 20
OLD, NEW = Issuer("old"), Issuer("new")


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(f"{event} {values}")

    info = warning


def verifier(url: str, refresh_ms: int = HOUR_MS, authorities: Path | None = None) -> tuple[TokenVerifier, Log]:
    log = Log()
    source = KeySource(
        url=parse_url(url),
        text=url,
        tls=TlsSettings(authorities_file=None if authorities is None else str(authorities)),
        refresh_ms=refresh_ms,
        retry_backoff_ms=50,
        retry_backoff_ms_max=100,
    )
    rules = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)
    return TokenVerifier("OUTSIDE", OAuthSettings(source, rules), SystemClock(), log), log


async def until(holds: Callable[..., bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_tokens_are_checked_by_the_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(OLD))
    made, log = verifier(f"file:{file}")
    assert made.check(OLD.token()) == LoginFailure("the keys of its issuer are not available yet")
    await made.load()
    assert len(log.lines) == 1
    holder = made.check(OLD.token())
    assert isinstance(holder, TokenHolder)
    assert holder.name == "alice"
    for what, token in forgeries(OLD).items():
        assert isinstance(made.check(token), LoginFailure), what


@pytest.mark.parametrize("content", [None, b"", b'{"keys":[]}', b" " * (KEY_SET_BYTES_MAX + 1)])
async def test_a_file_that_cannot_be_used_ends_the_start(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    made, _ = verifier(f"file:{file}")
    with pytest.raises(OSError, match=f"the listener OUTSIDE has no keys to verify tokens by: file:{file}: "):
        await made.load()


async def test_an_endpoint_that_is_out_of_reach_does_not_end_the_start(tmp_path: Path) -> None:
    with https_server(tmp_path, lambda _request: answer(b"", "503 Later")) as server:
        made, log = verifier(server.url, authorities=server.authorities)
        await made.load()
        assert isinstance(made.check(OLD.token()), LoginFailure)
        assert "all tokens are refused" in log.lines[0]
        assert "status 503" in log.lines[0]
        running = asyncio.create_task(made.run())
        await until(lambda: len(server.requests) > 3)
        assert len(log.lines) == 1, "one line for one failure, however often it is tried"
        server.reply = lambda _request: answer(key_set(OLD))
        await until(lambda: isinstance(made.check(OLD.token()), TokenHolder))
        assert len(log.lines) == 2
        running.cancel()


async def test_keys_are_fetched_when_they_are_due_and_stay_when_that_fails(tmp_path: Path) -> None:
    with https_server(tmp_path, lambda _request: answer(key_set(OLD))) as server:
        made, log = verifier(server.url, 100, server.authorities)
        await made.load()
        running = asyncio.create_task(made.run())
        for reply in (answer(b"", "500 Broken"), answer(b"{}"), b"", answer(key_set(OLD))[:-5]):
            server.reply = lambda _request, reply=reply: reply  # type: ignore[misc]
            asked = len(server.requests)
            await until(lambda asked=asked: len(server.requests) > asked + 1)
            assert isinstance(made.check(OLD.token()), TokenHolder)
        assert any("the previous ones stay in use" in line for line in log.lines)
        server.reply = lambda _request: answer(key_set(NEW))
        await until(lambda: isinstance(made.check(NEW.token()), TokenHolder))
        assert isinstance(made.check(OLD.token()), LoginFailure), "a key that is withdrawn verifies nothing any more"
        running.cancel()


async def test_an_unknown_key_has_the_set_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt_verifier, "FETCH_INTERVAL_MS_MIN", 0)
    with https_server(tmp_path, lambda _request: answer(key_set(OLD))) as server:
        made, _ = verifier(server.url, authorities=server.authorities)
        await made.load()
        running = asyncio.create_task(made.run())
        assert isinstance(made.check(NEW.token()), LoginFailure)
        await until(lambda: len(server.requests) == 2)
        server.reply = lambda _request: answer(key_set(OLD, NEW))
        assert isinstance(made.check(NEW.token()), LoginFailure), "the id is remembered"
        assert isinstance(made.check(Issuer("third").token()), LoginFailure)
        await until(lambda: isinstance(made.check(NEW.token()), TokenHolder))
        assert len(server.requests) == 3
        running.cancel()


async def test_an_endpoint_of_an_unknown_authority_or_without_an_answer_gives_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with https_server(tmp_path, lambda _request: answer(key_set(OLD))) as server:
        made, log = verifier(server.url)
        await made.load()
        assert "certificate isn't trusted" in log.lines[0]
        assert server.requests == []
    monkeypatch.setattr(jwt_verifier, "FETCH_TIMEOUT_MS", 50)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made, log = verifier(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        await made.load()
    assert "no answer within 50 ms" in log.lines[0]
    made, log = verifier(f"https://127.0.0.1:{server.port}/", authorities=tmp_path / "nothing.pem")
    await made.load()
    assert "can't be read as PEM" in log.lines[0]


async def test_a_listener_that_expects_no_issuer_or_audience_warns(tmp_path: Path) -> None:
    """An issuer of many customers signs for all with the same keys."""
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(OLD))
    for rules, expected in (
        (TokenRules(), ["issuer", "audience"]),
        (TokenRules(audiences=(AUDIENCE,), issuer=ISSUER), []),
    ):
        made, log = verifier(f"file:{file}")
        base: Any = SimpleNamespace(ports=SimpleNamespace(clock=SystemClock()), log=log)
        verifies = token_verifier("OUTSIDE", OAuthSettings(made.settings.keys, rules), base)
        await verifies.load()
        lines = [line for line in log.lines if "are not checked" in line]
        assert len(lines) == len(expected[:1])
        assert all(f"sasl.oauthbearer.expected.{name}" in lines[0] for name in expected)
        token = OLD.token(aud=AUDIENCE if not expected else None)
        assert isinstance(verifies.begin().step(f"n,,\x01auth=Bearer {token}\x01\x01".encode()), LoginSuccess)
