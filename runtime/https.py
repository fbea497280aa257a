"""One HTTP request to one address, bounded in time and bytes: fetches key sets and tokens.

It follows no redirects and uses no proxies, so only the configured server answers. Plain HTTP is allowed only on this
machine. Whole answers are read, and then parsed by the standard library. aiohttp's client could do this, but importing
it takes 6 MB and more than 100 ms in every process that logs in with a token.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

from lowtide.runtime.addresses import is_loopback

_PORTS: Final = {"https": 443, "http": 80}
_CHUNK_BYTES: Final = 64 * 1024
_HEADERS_BYTES: Final = 64 * 1024
OK: Final = 200
_REFUSALS: Final = (400, 401, 403, 404, 405)


class UrlError(ValueError):
    """An invalid URL; a phrase that follows it."""


class HttpError(OSError):
    """No usable answer; a few words, without the answer. `status` is 0 without one."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether the server refused the request itself, so that repeating it is useless."""
        return self.status in _REFUSALS


class Url(NamedTuple):
    """What to fetch: a `file` with a path; `https`, or `http` on this machine, with host, port and target."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file of this machine; `target` is its path."""
        return self.scheme == "file"


def parse_url(text: str) -> Url:
    """Parses a URL.

    As in Kafka, `file:/path` and `file:///path` are the same, and paths aren't decoded. Errors: UrlError.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UrlError(f"can't be read: {error}") from None
    if not text.isascii() or not text.isprintable() or " " in text or parts.username is not None or parts.fragment:
        raise UrlError("has a user, a fragment, or characters that a URL can't have")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise UrlError("names no file: allowed is file:/path")
        return Url("file", "", 0, parts.path)
    if parts.scheme not in _PORTS or not host:
        raise UrlError("is neither https://host/path nor file:/path")
    if parts.scheme == "http" and host != "localhost" and not is_loopback(host):
        raise UrlError("is not encrypted: allowed is https, and http on this machine (127.0.0.1, ::1, localhost)")
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    return Url(parts.scheme, host, port or _PORTS[parts.scheme], target)


async def fetch(url: Url, tls: ssl.SSLContext | None, request: bytes, *, bytes_max: int) -> bytes:
    """Sends a request and returns the answer's body. Callers set a time limit. Errors: HttpError, OSError."""
    context = tls if url.scheme == "https" else None
    assert context is not None or url.scheme == "http", url
    reader, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
    try:
        writer.write(request)
        parts, size = [], 0
        while part := await reader.read(_CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > bytes_max + _HEADERS_BYTES:
                break
    finally:
        writer.transport.abort()
    return body(b"".join(parts), bytes_max)


def request_bytes(url: Url, *, form: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """Returns a request whose answer ends with the connection: GET, or POST of a form."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    lines = [f"{'GET' if form is None else 'POST'} {url.target} HTTP/1.1", f"Host: {host}:{url.port}"]
    fields = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "User-Agent": "lowtide",
    }
    if form is not None:
        fields |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(form))}
    lines += [f"{name}: {value}" for name, value in (fields | dict(headers or {})).items()]
    return "\r\n".join((*lines, "", "")).encode("ascii") + (form or b"")


def basic_authorization(user: str, password: str) -> str:
    """Returns the value of the header Authorization. Source: RFC 7617."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def body(answer: bytes, bytes_max: int) -> bytes:
    """Returns the body of a whole answer with the status 200. Errors: HttpError."""
    response = HTTPResponse(cast("Any", _Answer(answer)))
    try:
        response.begin()
        content = response.read(bytes_max + 1)
    except (HTTPException, ValueError, OSError) as error:
        raise HttpError(f"its answer is no HTTP, or is cut ({type(error).__name__})") from None
    if response.status != OK:
        raise HttpError(f"it answers with the status {response.status}", response.status)
    if len(content) > bytes_max:
        raise HttpError(f"its answer has more than {bytes_max} bytes")
    if response.length:
        raise HttpError("its answer is cut")
    return content


def reason_of(error: OSError) -> str:
    """Returns why there is no answer, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error) or type(error).__name__


class _Answer:
    """The socket from which the standard library reads an answer."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._answer)
