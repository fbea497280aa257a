"""Requests of Kafka's protocol over a blocking socket, for tests that send what no client library sends."""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

from lowtide.protocol.client.versions import exchange_of
from lowtide.protocol.headers import read_response_header, request_header
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.protocol.schema import ApiMessage

TIMEOUT_S = 10


class Frames:
    """Speaks frames: what a client library would not send, and all that a broker answers."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, message: ApiMessage, version: int) -> Any:
        """The answer. Errors: ConnectionError where there is none."""
        exchange = exchange_of(type(message), version)
        body = request_header(exchange.key, version, 7, "c") + exchange.request.encode(message)
        self.send(body)
        length = self._file.read(4)
        if not length:
            raise ConnectionError("closed without an answer")
        (size,) = struct.unpack(">i", length)
        frame = memoryview(self._file.read(size))
        _, position = read_response_header(frame, 0, size, flexible=exchange.answer_is_flexible)
        return exchange.decode(frame, position, size)

    def send(self, body: bytes) -> None:
        """Sends a frame, of which nothing is checked."""
        self._socket.sendall(struct.pack(">i", len(body)) + body)

    def present(self, token: str) -> Any:
        """The answer to a token."""
        assert self.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code == 0
        return self.ask(SaslAuthenticateRequest(auth_bytes=f"n,,\x01auth=Bearer {token}\x01\x01".encode()), 2)

    def is_closed(self) -> bool:
        return self._file.read(1) == b""
