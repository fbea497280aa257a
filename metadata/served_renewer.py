"""Renews a lease in a store that another process serves, by calls that block, for a thread beside the event loop (`lease_keeper`).

It has a connection of its own, for the answers of the other one are read by the loop. Renewing is all that it does.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

from lowtide.metadata.served_frames import (
    HEAD,
    MAX_ANSWER_BYTES,
    Answer,
    FrameError,
    KeepAliveRequest,
    error_of,
    length_of,
    read_answer,
    request_frame,
)
from lowtide.metadata.store import LeaseId, UnavailableError

RENEWAL_TIMEOUT_S: Final = 0.5
"""How long the server may take for an answer."""


class ServedRenewer:
    """A `Renewer`. One thread uses it; any may close it."""

    def __init__(self, connection: socket.socket) -> None:
        """Use one end of a socket pair, which is taken over."""
        self._connection = connection
        self._connection.settimeout(RENEWAL_TIMEOUT_S)
        self._requests = 0
        self._received = bytearray()

    def renew(self, lease: LeaseId) -> None:
        """See `Renewer`. Errors: UnavailableError, LeaseGoneError."""
        self._requests += 1
        try:
            self._connection.sendall(request_frame(KeepAliveRequest(self._requests, lease)))
            while (answer := self._next_answer()).number != self._requests:
                pass  # Of an earlier renewal, which was given up.
            error = error_of(answer)
        except (OSError, FrameError) as failed:
            message = f"lease {lease} was not renewed: {failed}"
            raise UnavailableError(message) from failed
        if error is not None:
            raise error

    def close(self) -> None:
        """See `Renewer`."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _next_answer(self) -> Answer:
        """The next one. What came of it stays where the time ends in its middle. Errors: OSError, FrameError."""
        length = length_of(self._take(HEAD.size), MAX_ANSWER_BYTES)
        content = self._take(HEAD.size + length)[HEAD.size :]
        del self._received[: HEAD.size + length]
        return read_answer(content)

    def _take(self, size: int) -> bytes:
        """The first `size` bytes that are received and not yet used up."""
        while len(self._received) < size:
            piece = self._connection.recv(65536)
            if not piece:
                raise FrameError("the connection has ended")
            self._received += piece
        return bytes(self._received[:size])
