"""A broker with scripted answers, byte for byte: one thread, one connection after the other."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Answer = Callable[[int, int, int, bytes], "bytes | None"]
"""Maps API key, version, correlation id and request to the answer's frame, or None to close the connection."""


class ScriptedBroker:
    """Listens on its own port within the `with`."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[tuple[int, int]] = []
        """API key and version of every request."""
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (self._listening, *self._accepted):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        self._thread.join(30)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                self._accepted.append(accepted)
                with accepted, contextlib.suppress(EOFError):
                    while self._serve_one(accepted):
                        pass

    def _serve_one(self, accepted: socket.socket) -> bool:
        (size,) = struct.unpack(">i", _exactly(accepted, 4))
        request = _exactly(accepted, size)
        api_key, version, correlation_id = struct.unpack_from(">hhi", request)
        self.requests.append((api_key, version))
        answer = self._answer(api_key, version, correlation_id, request)
        if answer is None:
            return False
        accepted.sendall(answer)
        return True


def _exactly(accepted: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = accepted.recv(size - len(received))
        if not piece:
            raise EOFError
        received += piece
    return bytes(received)
