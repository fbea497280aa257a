"""Renews a lease in a served store with blocking calls, from a thread beside the event loop (`lease_keeper`).

It has its own connection, because the loop reads the answers of the other one.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

from lowtide.metadata.served_frames import (
    HEAD,
    MAX_ANSWER_BYTES,
    FrameError,
    KeepAliveRequest,
    ServedAnswer,
    error_of,
    length_of,
    read_answer,
    request_frame,
)
from lowtide.metadata.store import LeaseId, UnavailableError

RENEWAL_TIMEOUT_S: Final = 0.5
"""How long an answer may take."""


class ServedRenewer:
    """A `Renewer`. One thread uses it; any thread may close it."""

    def __init__(self, connection: socket.socket) -> None:
        """Uses and owns one end of a socket pair."""
        self._connection = connection
        self._connection.settimeout(RENEWAL_TIMEOUT_S)
        self._requests = 0
        self._received = bytearray()

    def renew(self, lease: LeaseId) -> None:
        self._requests += 1
        try:
            self._connection.sendall(request_frame(KeepAliveRequest(self._requests, lease)))
            while (answer := self._next_answer()).number != self._requests:
                pass  # The answer to an earlier, abandoned renewal.
            error = error_of(answer)
        except (OSError, FrameError) as failed:
            raise UnavailableError(f"lease {lease} was not renewed: {failed}") from failed
        if error is not None:
            raise error

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _next_answer(self) -> ServedAnswer:
        """Returns the next answer. A part that arrived before a timeout is kept. Errors: OSError, FrameError."""
        length = length_of(self._take(HEAD.size), MAX_ANSWER_BYTES)
        content = self._take(HEAD.size + length)[HEAD.size :]
        del self._received[: HEAD.size + length]
        return read_answer(content)

    def _take(self, size: int) -> bytes:
        """Returns the first `size` received bytes that are not yet used."""
        while len(self._received) < size:
            piece = self._connection.recv(65536)
            if not piece:
                raise FrameError("the connection has ended")
            self._received += piece
        return bytes(self._received[:size])
