"""A connection that sends a request and waits, to prepare workloads and to check their results.

It is the core of all our clients over its own socket, without the first exchange of a session: a figure about
connections must not include requests that only Lowtide's clients send. All brokers support the versions that it uses.
"""

from __future__ import annotations

import functools
import socket
from types import TracebackType
from typing import Any, Self

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.client.connection import ClientConnection
from lowtide.protocol.client.versions import exchange_of
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import read_response_header

from .errors import BenchError
from .frames import CLIENT_ID, KEYS, VERSIONS

Address = tuple[str, int]

_SETUP_VERSIONS = VERSIONS | {
    ApiKey.API_VERSIONS: 0,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_TOPICS: 1,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.SYNC_GROUP: 1,
    ApiKey.OFFSET_FETCH: 1,
}
_SIZE_BYTES = 4
_LIMIT_S = 120.0


class Client:
    """A connection, used in `with`. All methods raise OSError if it is lost or slow."""

    def __init__(self, address: Address, *, limit_s: float = _LIMIT_S) -> None:
        self.socket = connect(address, limit_s=limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    @functools.cached_property
    def _core(self) -> ClientConnection[None]:
        """The protocol core, created on first use: thousands of clients only send bytes."""
        return ClientConnection(CLIENT_ID, keeps_records=True)

    def ask(self, request: Any, version: int | None = None) -> Any:
        """Sends a request, and returns the answer, as messages. Errors: ProtocolError."""
        chosen = _SETUP_VERSIONS[KEYS[type(request)]] if version is None else version
        self.socket.sendall(self._core.request(request, chosen, None))
        while not (answers := self._core.receive(self._received(self._core.get_buffer()))):
            if self._core.broken is not None:
                raise ProtocolError(self._core.broken)
        return answers[0][1]

    def ask_bytes(self, request: bytes) -> bytes:
        """Sends an encoded request, and returns its answer without the size prefix."""
        self.socket.sendall(request)
        return self._read(int.from_bytes(self._read(_SIZE_BYTES), "big"))

    def _read(self, count: int) -> bytes:
        whole = bytearray(count)
        filled = 0
        while filled < count:
            filled += self._received(memoryview(whole)[filled:])
        return bytes(whole)

    def _received(self, room: memoryview) -> int:
        count = self.socket.recv_into(room)
        if not count:
            raise ConnectionError("the broker closed the connection")
        return count


def decode(key: ApiKey, version: int, answer: bytes) -> Any:
    """Returns the message in an answer."""
    exchange = exchange_of(API[key].request, version)
    _, position = read_response_header(answer, 0, len(answer), flexible=exchange.answer_is_flexible)
    return exchange.decode(answer, position, len(answer))


def connect(address: Address, *, limit_s: float = _LIMIT_S) -> socket.socket:
    """Opens a connection without Nagle's delay. Errors: OSError."""
    connection = socket.create_connection(address, limit_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def check(error: int, what: str) -> None:
    """Errors: BenchError for an error code."""
    if error:
        raise BenchError(f"{what} was answered with error {error}")
