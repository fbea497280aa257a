"""A proxy on loopback that closes connections in the middle of a transfer: requests arrive, their answers do not."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from types import TracebackType
from typing import Self

PIECE_BYTES = 64 * 1024


class CuttingProxy:
    """Forwards bytes. A connection is closed after about `cut_after_bytes`, `cuts` times in total."""

    def __init__(self, *, cuts: int, cut_after_bytes: int, seed: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.target_port = 0
        self.cuts_left = cuts
        self._cut_after_bytes = cut_after_bytes
        self._random = random.Random(seed)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (self._listening, *self._open):
            close(opened)
        for thread in self._threads:
            thread.join(30)

    def _spawn(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self.target_port), 30)
                self._open += [near, far]
                limit = self._random.randrange(self._cut_after_bytes // 2, self._cut_after_bytes * 2)
                self._spawn(self._pass, near, far, limit)
                self._spawn(self._pass, far, near, None)

    def _pass(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        """Forwards from one side to the other; bytes up to the limit still arrive."""
        carried = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                carried += len(piece)
                if limit is not None and carried >= limit and self.cuts_left > 0:
                    self.cuts_left -= 1
                    close(source)
                    target.sendall(piece)
                    break
                target.sendall(piece)
        close(source)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def close(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
    opened.close()
