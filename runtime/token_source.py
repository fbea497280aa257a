"""Gets a client's tokens for OAUTHBEARER: from a file, or from an endpoint with an id and a secret.

A file is read for each login, so that renewals take effect. A token from an endpoint is used for most of its lifetime
(RFC 6749, client credentials).

Guards: no message and no `repr` shows a secret or a token.

Sources: KIP-768, KIP-1139; Kafka's `FileJwtRetriever`, `ClientCredentialsJwtRetriever`,
`ExpiringCredentialRefreshingLogin`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

import msgspec

from lowtide.runtime.clock import Clock
from lowtide.runtime.filesystem import FileSystem, OsFileSystem
from lowtide.runtime.https import HttpError, Url, basic_authorization, body, fetch, reason_of, request_bytes
from lowtide.runtime.json_text import decode_json
from lowtide.runtime.tls import TlsError, TlsSettings, client_context

TOKEN_BYTES_MAX: Final = 64 * 1024
"""Design limit of a file or an answer with a token."""

FETCH_TIMEOUT_MS: Final = 10_000
"""For one answer of the endpoint, from connecting to the last byte."""

USED_SHARE: Final = 0.8
"""The part of a token's lifetime until another is fetched: Kafka's `sasl.login.refresh.window.factor`."""

_CHUNK_BYTES: Final = 64 * 1024


class TokenError(OSError):
    """No token; a few words. `is_final`: another attempt would fail too."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class TokenSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of tokens. Can be pickled; files are read where tokens are needed."""

    url: Url
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    tls: TlsSettings = TlsSettings()
    """For the endpoint."""

    def __repr__(self) -> str:
        return f"TokenSource({self.url}, {self.client_id!r})"


class Token(NamedTuple):
    """A token, and how long it may be reused; None: get a new one for each login."""

    text: str
    usable_ms: int | None = None


class Tokens:
    """The tokens of one source, for one event loop."""

    def __init__(self, source: TokenSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._current = ""
        self._until_ms = 0
        self._turn = asyncio.Lock()
        """One fetch at a time: waiting callers use its result."""

    async def get(self) -> str:
        """Returns a token for a login. Errors: TokenError."""
        if self._source.url.is_file:
            return file_token(self._source, OsFileSystem()).text
        async with self._turn:
            if self._clock.monotonic_ms() >= self._until_ms:
                token = await _fetched(self._source)
                self._current = token.text
                self._until_ms = self._clock.monotonic_ms() + (token.usable_ms or 0)
            return self._current


def token_of(source: TokenSource) -> str:
    """Returns a token for a login; blocks. Errors: TokenError."""
    return file_token(source, OsFileSystem()).text if source.url.is_file else _fetched_blocking(source).text


def file_token(source: TokenSource, files: FileSystem) -> Token:
    """Returns the token in a file, without surrounding white space. Errors: TokenError."""
    path = source.url.target
    try:
        size = files.file_size(path)
        content = files.read_bytes(path) if size <= TOKEN_BYTES_MAX else b""
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise TokenError(f"{path} is no token: it has other characters than ASCII", is_final=True) from None
    except OSError as error:
        raise TokenError(f"{path} can't be read: {error.strerror}", is_final=True) from None
    if not text:
        raise TokenError(
            f"{path} is no token: it has {size} bytes, and may have from 1 to {TOKEN_BYTES_MAX}", is_final=True
        )
    return Token(text)


def token_request(source: TokenSource) -> bytes:
    """Returns the request to the endpoint."""
    scope = f"&scope={quote_plus(source.scope)}" if source.scope else ""
    headers = {"Authorization": basic_authorization(source.client_id, source.client_secret)}
    return request_bytes(source.url, form=f"grant_type=client_credentials{scope}".encode(), headers=headers)


def read_token(content: bytes) -> Token:
    """Returns the token in the endpoint's answer. Errors: TokenError."""
    try:
        answer: Any = decode_json(content)
    except ValueError:
        answer = None
    text = (answer.get("access_token") or answer.get("id_token")) if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise TokenError("the endpoint's answer has no access_token")
    seconds = answer.get("expires_in")
    is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    return Token(text, int(seconds * USED_SHARE * 1000) if is_time else None)


async def _fetched(source: TokenSource) -> Token:
    """Fetches a token. Errors: TokenError."""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_MS / 1000):
            return read_token(
                await fetch(source.url, _context(source), token_request(source), bytes_max=TOKEN_BYTES_MAX)
            )
    except OSError as error:
        raise _token_error(error) from None


def _fetched_blocking(source: TokenSource) -> Token:
    """Fetches a token; blocks. Errors: TokenError."""
    try:
        with _connected(source) as connected:
            connected.sendall(token_request(source))
            received = b""
            while len(received) < 2 * TOKEN_BYTES_MAX and (part := connected.recv(_CHUNK_BYTES)):
                received += part
        return read_token(body(received, TOKEN_BYTES_MAX))
    except OSError as error:
        raise _token_error(error) from None


def _connected(source: TokenSource) -> socket.socket:
    """Connects to the endpoint; blocks. Errors: OSError, TokenError."""
    context = _context(source)
    connected = socket.create_connection((source.url.host, source.url.port), FETCH_TIMEOUT_MS / 1000)
    try:
        return connected if context is None else context.wrap_socket(connected, server_hostname=source.url.host)
    except BaseException:
        connected.close()
        raise


def _context(source: TokenSource) -> ssl.SSLContext | None:
    """Returns the TLS context, None for plain HTTP. Errors: TokenError."""
    try:
        return client_context(source.tls) if source.url.scheme == "https" else None
    except TlsError as error:
        raise TokenError(str(error), is_final=True) from None


def _token_error(error: OSError) -> TokenError:
    if isinstance(error, TokenError):
        return error
    if isinstance(error, TimeoutError):
        return TokenError(f"the endpoint didn't answer within {FETCH_TIMEOUT_MS} ms")
    is_final = isinstance(error, ssl.SSLCertVerificationError) or (isinstance(error, HttpError) and error.is_refusal)
    return TokenError(f"the endpoint can't be used: {reason_of(error)}", is_final=is_final)
