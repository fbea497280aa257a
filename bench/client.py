"""One connection that asks and waits: for preparing a workload and for checking what it left, not for load."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import read_response_header
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.create_topics import CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.list_offsets import ListOffsetsRequest
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest
from lowtide.protocol.messages.sync_group import SyncGroupRequest

from .errors import BenchError
from .frames import VERSIONS, request_frame

Address = tuple[str, int]

_KEYS = {spec.request: key for key, spec in API.items()}
_SETUP_VERSIONS = VERSIONS | {
    _KEYS[ApiVersionsRequest]: 0,
    _KEYS[CreateTopicsRequest]: 2,
    _KEYS[DeleteTopicsRequest]: 1,
    _KEYS[ListOffsetsRequest]: 1,
    _KEYS[FindCoordinatorRequest]: 1,
    _KEYS[JoinGroupRequest]: 3,
    _KEYS[SyncGroupRequest]: 1,
    _KEYS[OffsetFetchRequest]: 1,
}
_SIZE_BYTES = 4
_LIMIT_S = 120.0


class Client:
    """Used in `with`. Every method: OSError when the connection is lost or slow."""

    def __init__(self, address: Address, *, limit_s: float = _LIMIT_S) -> None:
        self.socket = connect(address, limit_s=limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()

    def ask(self, request: Any) -> Any:
        """Send a request and return the answer, as messages."""
        key = _KEYS[type(request)]
        version = _SETUP_VERSIONS[key]
        return decode(key, version, self.ask_bytes(request_frame(request, version)))

    def ask_bytes(self, request: bytes) -> bytes:
        """Send a request and return its answer without the size in front."""
        self.socket.sendall(request)
        return self._read(int.from_bytes(self._read(_SIZE_BYTES), "big"))

    def _read(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            piece = self.socket.recv(count - len(received))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            received += piece
        return bytes(received)


def decode(key: ApiKey, version: int, answer: bytes) -> Any:
    """The message in an answer."""
    _, position = read_response_header(answer, 0, len(answer), flexible=response_header_is_flexible(key, version))
    return codec_for(API[key].response, version).decode(answer, position, len(answer))


def connect(address: Address, *, limit_s: float = _LIMIT_S) -> socket.socket:
    """A connection without Nagle's delay. Errors: OSError."""
    connection = socket.create_connection(address, limit_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def check(error: int, what: str) -> None:
    """Errors: BenchError when a broker answered an error."""
    if error:
        raise BenchError(f"{what} was answered with error {error}")
