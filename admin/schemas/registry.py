"""Asks a schema registry for schemas, over Confluent's REST interface.

It blocks: tasks of Spark use it, and the console in a thread. All is bounded: the time, the attempts, the bytes of an
answer, the schemas kept, and the files that a schema refers to.

An id that the registry does not know is an answer. All else that fails is an error, and says nothing about records: the
registry can't be reached, refuses the login, or is none.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from lowtide.runtime.tls import TlsError, TlsSettings, client_context

TIMEOUT_SECONDS: Final = 10.0
ATTEMPTS: Final = 4
FIRST_WAIT_SECONDS: Final = 0.25
"""Before the second attempt; it doubles then."""
MAX_ANSWER_BYTES: Final = 8 << 20
MAX_SCHEMAS: Final = 1_000
MAX_REFERENCES: Final = 200

_UNKNOWN_SCHEMA: Final = 40403
_UNKNOWN: Final = frozenset({40401, 40402, _UNKNOWN_SCHEMA})
"""Confluent's codes: no such subject, version or schema."""

_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_REASON_LENGTH: Final = 200

_URL: Final = "url"
_LOGIN: Final = "basic.auth.user.info"
_TOKEN: Final = "bearer.auth.token"  # noqa: S105 - the name of a setting
_TLS: Final[dict[str, str]] = {
    "ssl.ca.location": "authorities_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
}
SETTINGS: Final = (_URL, _LOGIN, _TOKEN, *_TLS)
"""The settings, with the names that Confluent's client for Python gives them."""


class RegistryError(OSError):
    """The registry gave no usable answer."""


class UnsupportedSchemaError(ValueError):
    """A schema whose values can't be read."""


class UnknownReferenceError(ValueError):
    """A schema refers to one that the registry does not know, or to too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Another schema that a schema uses, under a name: a file that is imported, or a named type."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema as it was registered."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[Reference, ...] = ()


class Registry:
    """The client. It keeps what it was told: the schema of an id never changes."""

    def __init__(self, settings: Iterable[tuple[str, str]], wait: Callable[[float], None] = time.sleep) -> None:
        """Reads the settings. `wait` waits before an attempt is repeated. Errors: ValueError, with the setting."""
        given = dict(settings)
        for key in given:
            if key not in SETTINGS:
                raise ValueError(f"the registry has no setting {key}: it has {', '.join(SETTINGS)}")
        self._servers = [_server(one.strip(), given) for one in given.get(_URL, "").split(",") if one.strip()]
        if not self._servers:
            raise ValueError(f"the URL of the schema registry is missing: set {_URL}")
        self._wait = wait
        self._openers = _opener({field: given[key] for key, field in _TLS.items() if key in given})
        self._schemas: dict[int, RegisteredSchema | None] = {}

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Returns a schema; None if the registry does not know the id. Errors: RegistryError."""
        if schema_id not in self._schemas:
            found = self._schema(f"/schemas/ids/{schema_id}", frozenset({_UNKNOWN_SCHEMA}))
            while len(self._schemas) >= MAX_SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[schema_id] = found
        return self._schemas[schema_id]

    def references_of(self, schema: RegisteredSchema) -> dict[str, str]:
        """Returns the texts of all schemas that a schema refers to, also indirectly, by their names.

        A schema comes after those that it refers to. Errors: RegistryError, UnknownReferenceError.
        """
        texts: dict[str, str] = {}
        self._collect(schema, texts, set())
        return texts

    def _collect(self, schema: RegisteredSchema, texts: dict[str, str], begun: set[str]) -> None:
        for one in schema.references:
            if one.name in begun:
                continue
            begun.add(one.name)
            if len(begun) > MAX_REFERENCES:
                raise UnknownReferenceError(f"it refers to more than {MAX_REFERENCES} others")
            path = f"/subjects/{quote(one.subject, safe='')}/versions/{one.version}"
            found = self._schema(path, _UNKNOWN)
            if found is None:
                raise UnknownReferenceError(
                    f"version {one.version} of the subject {one.subject!r}, to which it refers, is unknown"
                )
            self._collect(found, texts, begun)
            texts[one.name] = found.text

    def _schema(self, path: str, unknown: frozenset[int]) -> RegisteredSchema | None:
        answer = self._answer(path, unknown)
        if answer is None:
            return None
        try:
            return RegisteredSchema(
                kind=str(answer.get("schemaType") or "AVRO"),
                text=_text(answer["schema"]),
                references=tuple(
                    Reference(name=_text(one["name"]), subject=_text(one["subject"]), version=int(one["version"]))
                    for one in answer.get("references") or ()
                ),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RegistryError(f"{self._servers[0].shown}{path}: the answer is not that of a registry") from error

    def _answer(self, path: str, unknown: frozenset[int]) -> Any:
        """Returns what the first server that works answers. Errors: RegistryError, that of the last attempt."""
        for attempt in range(ATTEMPTS):
            for index, server in enumerate(self._servers):
                try:
                    return self._asked(server, path, unknown)
                except _RepeatableError as error:
                    if attempt == ATTEMPTS - 1 and index == len(self._servers) - 1:
                        raise RegistryError(str(error)) from error
            self._wait(FIRST_WAIT_SECONDS * 2**attempt)
        raise AssertionError

    def _asked(self, server: _Server, path: str, unknown: frozenset[int]) -> Any:
        url = f"{server.shown}{path}"
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", **server.headers}
        request = urllib.request.Request(server.url + path, headers=headers)  # noqa: S310 - its scheme is checked
        try:
            with self._openers.open(request, timeout=TIMEOUT_SECONDS) as response:
                content = response.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                return _refused(url, error.code, error.read(MAX_ANSWER_BYTES), unknown)
        except urllib.error.URLError as error:
            raise _RepeatableError(f"{url}: {_short(error.reason)}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _RepeatableError(f"{url}: {_short(error) or type(error).__name__}") from error
        if len(content) > MAX_ANSWER_BYTES:
            raise RegistryError(f"{url}: the answer has more than {MAX_ANSWER_BYTES} bytes")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RegistryError(f"{url}: the answer is not JSON") from error


class _RepeatableError(Exception):
    """The next attempt may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    url: str
    shown: str
    """The URL for messages."""
    headers: dict[str, str]


def _server(text: str, given: dict[str, str]) -> _Server:
    """Reads one URL, with a login in it or in the settings. Errors: ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the URL of the schema registry must begin with http:// or https:// and have a host")
    place = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    login = given.get(_LOGIN)
    if login is None and parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    headers = {}
    if login is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    elif _TOKEN in given:
        headers["Authorization"] = f"Bearer {given[_TOKEN]}"
    return _Server(url=url, shown=url, headers=headers)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry the login elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener(tls: dict[str, Any]) -> urllib.request.OpenerDirector:
    try:
        context = client_context(TlsSettings(**tls))
    except TlsError as error:
        raise ValueError(f"the schema registry: {error}") from error
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())


def _refused(url: str, status: int, content: bytes, unknown: frozenset[int]) -> None:
    """Returns if the registry does not know what was asked for. Errors: RegistryError, _RepeatableError."""
    try:
        body = json.loads(content)
        code, reason = body.get("error_code"), body.get("message", "")
    except (AttributeError, ValueError, RecursionError):
        code, reason = None, ""
    if status == _NOT_FOUND and code in unknown:
        return
    _fail(f"{url}: status {status} {_short(reason)}".rstrip(), is_final=status < _SERVER_ERROR and status != _TOO_MANY)


def _fail(text: str, *, is_final: bool) -> NoReturn:
    raise RegistryError(text) if is_final else _RepeatableError(text)


def _short(reason: object) -> str:
    text = " ".join(str(reason).split())
    return text if len(text) <= _REASON_LENGTH else f"{text[:_REASON_LENGTH]}…"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
