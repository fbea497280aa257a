"""Tokens to log in with: from a file, read again for each login, and from an endpoint, used for most of their time."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from pathlib import Path

import pytest

from lowtide.runtime import token_source
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.https import parse_url
from lowtide.runtime.tls import TlsSettings
from lowtide.runtime.token_source import (
    TOKEN_BYTES_MAX,
    Token,
    TokenError,
    Tokens,
    TokenSource,
    read_token,
    token_of,
    token_request,
)
from tests.https_server import HttpsServer, answer, https_server


def source(server: HttpsServer, **more: str) -> TokenSource:
    tls = TlsSettings(authorities_file=str(server.authorities))
    return TokenSource(url=parse_url(server.url), client_id="me", client_secret="geheim", tls=tls, **more)


def given(text: str, **more: object) -> bytes:
    return answer(json.dumps({"access_token": text, "token_type": "Bearer"} | more).encode())


async def test_a_file_is_read_for_each_login(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = Tokens(TokenSource(url=parse_url(f"file:{file}")), SystemClock())
    for text in ("a.b.c\n", " d.e.f"):
        file.write_text(text)
        assert await tokens.get() == text.strip() == token_of(TokenSource(url=parse_url(f"file:{file}")))


@pytest.mark.parametrize("content", [None, b"", b" \n", "é".encode(), b"x" * (TOKEN_BYTES_MAX + 1)])
async def test_a_file_that_has_no_token(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TokenError, match=f"^{file} ") as caught:
        await Tokens(TokenSource(url=parse_url(f"file:{file}")), SystemClock()).get()
    assert caught.value.is_final


def test_what_an_endpoint_is_asked() -> None:
    asked = TokenSource(url=parse_url("https://host/token"), client_id="me", client_secret="pass", scope="a b&c")
    request = token_request(asked)
    assert request.startswith(b"POST /token HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Basic bWU6cGFzcw==\r\n" in request
    assert request.endswith(b"\r\n\r\ngrant_type=client_credentials&scope=a+b%26c")


@pytest.mark.parametrize(
    ("content", "token"),
    [
        ('{"access_token":"a.b.c","expires_in":100}', Token("a.b.c", 80_000)),
        ('{"access_token":"a.b.c"}', Token("a.b.c")),
        ('{"id_token":"a.b.c","expires_in":"100"}', Token("a.b.c")),
        ('{"access_token":"a.b.c","expires_in":true}', Token("a.b.c")),
        ('{"access_token":"a.b.c","expires_in":-1}', Token("a.b.c")),
    ],
)
def test_an_answer(content: str, token: Token) -> None:
    assert read_token(content.encode()) == token


@pytest.mark.parametrize("content", [b"", b"x", b"[]", b"{}", b'{"access_token":7}', b'{"error":"geheim"}'])
def test_an_answer_without_a_token(content: bytes) -> None:
    with pytest.raises(TokenError, match="has no access_token$"):
        read_token(content)


async def test_an_endpoint_is_asked_once_for_many_logins(tmp_path: Path) -> None:
    with https_server(tmp_path, lambda _request: given("a.b.c", expires_in=3600)) as server:
        tokens = Tokens(source(server), SystemClock())
        assert await asyncio.gather(*(tokens.get() for _ in range(5))) == ["a.b.c"] * 5
        assert len(server.requests) == 1
        without_time = Tokens(source(server), SystemClock())
        server.reply = lambda _request: given("d.e.f")
        assert [await without_time.get(), await without_time.get()] == ["d.e.f"] * 2
        assert len(server.requests) == 3
        assert await asyncio.to_thread(token_of, source(server, scope="x")) == "d.e.f"
        assert server.requests[-1] == token_request(source(server, scope="x"))


@pytest.mark.parametrize(
    ("reply", "reason", "is_final"),
    [
        (answer(b"", "401 Unauthorized"), "answers with the status 401", True),
        (answer(b"", "503 Later"), "answers with the status 503", False),
        (b"", "no HTTP", False),
        (answer(b"{}"), "no access_token", False),
        (answer(b"x" * (TOKEN_BYTES_MAX + 1)), "more than", False),
    ],
)
async def test_an_endpoint_that_gives_no_token(tmp_path: Path, reply: bytes, reason: str, is_final: bool) -> None:
    with https_server(tmp_path, lambda _request: reply) as server:
        for way in (Tokens(source(server), SystemClock()).get(), asyncio.to_thread(token_of, source(server))):
            with pytest.raises(TokenError, match=reason) as caught:
                await way
            assert caught.value.is_final is is_final
            assert "geheim" not in str(caught.value)


async def test_an_endpoint_that_is_not_reached_or_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with https_server(tmp_path, lambda _request: given("a.b.c")) as server:
        strange = TokenSource(url=parse_url(server.url), client_id="me", client_secret="geheim")
        for way in (Tokens(strange, SystemClock()).get(), asyncio.to_thread(token_of, strange)):
            with pytest.raises(TokenError, match="certificate isn't trusted") as caught:
                await way
            assert caught.value.is_final
        known = source(server)
    for way in (Tokens(known, SystemClock()).get(), asyncio.to_thread(token_of, known)):
        with pytest.raises(TokenError, match="can't be used"):
            await way
    monkeypatch.setattr(token_source, "FETCH_TIMEOUT_MS", 50)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = parse_url(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        slow = TokenSource(url=url, client_id="me", client_secret="geheim")
        for way in (Tokens(slow, SystemClock()).get(), asyncio.to_thread(token_of, slow)):
            with pytest.raises(TokenError, match="didn't answer within 50 ms"):
                await way


def test_a_source_can_be_sent_to_other_processes_and_shows_no_secret() -> None:
    made = TokenSource(url=parse_url("https://host/token"), client_id="me", client_secret="geheim")
    assert pickle.loads(pickle.dumps(made)) == made
    assert "geheim" not in repr(made)
    assert len({made, made}) == 1
