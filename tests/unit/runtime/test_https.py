"""One HTTP request, bounded: which URLs are possible, what is sent, and which answers count."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from lowtide.runtime.https import HttpError, Url, UrlError, basic_authorization, body, fetch, parse_url, request_bytes
from lowtide.runtime.tls import TlsSettings, client_context
from tests.https_server import HttpsServer, answer, https_server

LIMIT = 10


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("file:/a/b.json", Url("file", "", 0, "/a/b.json")),
        ("file:///a/b%20c", Url("file", "", 0, "/a/b%20c")),
        ("https://Host.example", Url("https", "host.example", 443, "/")),
        ("https://host:8443/x/y?z=1&q", Url("https", "host", 8443, "/x/y?z=1&q")),
        ("https://[::1]:1/x", Url("https", "::1", 1, "/x")),
        ("http://127.0.0.1:8080/x", Url("http", "127.0.0.1", 8080, "/x")),
        ("http://localhost/x", Url("http", "localhost", 80, "/x")),
    ],
)
def test_urls(text: str, url: Url) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "neither"),
        ("keys.json", "neither"),
        ("ldap://host/x", "neither"),
        ("jar:file:/x", "neither"),
        ("https:///x", "neither"),
        ("file:x", "names no file"),
        ("file://host/x", "names no file"),
        ("http://host/x", "not encrypted"),
        ("http://127.0.0.1.example/x", "not encrypted"),
        ("http://10.0.0.1/x", "not encrypted"),
        ("https://u:p@host/x", "has a user"),
        ("https://host/x#y", "fragment"),
        ("https://host/x y", "characters"),
        ("https://host/x\r\nEvil: 1", "characters"),
        ("https://hést/x", "characters"),
        ("https://host:99999/x", "can't be read"),
        ("https://[::1/x", "can't be read"),
    ],
)
def test_urls_that_are_not_possible(text: str, reason: str) -> None:
    with pytest.raises(UrlError, match=reason):
        parse_url(text)


def test_a_request() -> None:
    get = request_bytes(parse_url("https://[::1]:8443/keys?a=b"))
    assert get.startswith(b"GET /keys?a=b HTTP/1.1\r\nHost: [::1]:8443\r\n")
    assert get.endswith(b"\r\n\r\n")
    assert b"\r\nConnection: close\r\n" in get
    post = request_bytes(
        parse_url("https://host/token"), form=b"a=b", headers={"Authorization": basic_authorization("id", "se:cret")}
    )
    assert b"\r\nContent-Length: 3\r\n" in post
    assert post.endswith(b"\r\nAuthorization: Basic aWQ6c2U6Y3JldA==\r\n\r\na=b")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("whole", "content"),
    [
        (answer(b"hello"), b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (answer(b"x" * LIMIT), b"x" * LIMIT),
    ],
)
def test_answers(whole: bytes, content: bytes) -> None:
    assert body(whole, LIMIT) == content


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"SSH-2.0",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
        answer(b"x" * (LIMIT + 1)),
        answer(b"", "404 Not Found"),
        answer(b"", "302 Found", "Location: https://elsewhere.example/"),
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\nhello",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000 + b"\r\n\r\nhello",
    ],
)
def test_answers_that_do_not_count(whole: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        body(whole, LIMIT)
    assert "hel" not in str(caught.value)


def ask(server: HttpsServer, context: ssl.SSLContext | None) -> bytes:
    url = parse_url(server.url)
    return asyncio.run(fetch(url, context, request_bytes(url), bytes_max=LIMIT))


def test_a_server_is_asked(tmp_path: Path) -> None:
    with https_server(tmp_path, lambda _request: answer(b"hello")) as server:
        trusting = client_context(TlsSettings(authorities_file=str(server.authorities)))
        assert ask(server, trusting) == b"hello"
        assert server.requests == [request_bytes(parse_url(server.url))]
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(server, client_context(TlsSettings()))
        server.reply = lambda _request: answer(b"x" * 1_000_000)
        with pytest.raises(HttpError, match="more than|cut"):
            ask(server, trusting)


def test_a_server_of_this_machine_is_asked_in_plain_text(tmp_path: Path) -> None:
    with https_server(tmp_path, lambda _request: answer(b"hello"), encrypted=False) as server:
        assert ask(server, None) == b"hello"
