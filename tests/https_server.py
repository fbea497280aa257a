"""An HTTPS server on loopback with a certificate of its own authority; it answers what it is set to."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

HEAD_END = b"\r\n\r\n"
REQUEST_BYTES_MAX = 1 << 16


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer with the length of its body."""
    return "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")).encode() + body


class HttpsServer:
    """One thread, one connection after the other. `requests` has what was received."""

    def __init__(self, folder: Path, reply: Callable[[bytes], bytes], *, encrypted: bool = True) -> None:
        self.reply = reply
        self.requests: list[bytes] = []
        self.authorities = folder / "authorities.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authorities))
        self._context: ssl.SSLContext | None = None
        if encrypted:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"{'https' if encrypted else 'http'}://127.0.0.1:{self.port}/keys"
        self._thread = threading.Thread(target=self._serve, name="https server")
        self._thread.start()

    def close(self) -> None:
        """Accept no more."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            with accepted:
                try:
                    self._serve_one(accepted)
                except OSError:
                    continue

    def _serve_one(self, accepted: socket.socket) -> None:
        accepted.settimeout(20)
        connected = accepted if self._context is None else self._context.wrap_socket(accepted, server_side=True)
        with connected:
            received = b""
            while not _is_whole(received) and len(received) < REQUEST_BYTES_MAX:
                part = connected.recv(REQUEST_BYTES_MAX)
                if not part:
                    return
                received += part
            self.requests.append(received)
            connected.sendall(self.reply(received))
            if isinstance(connected, ssl.SSLSocket):
                connected.unwrap()


def _is_whole(received: bytes) -> bool:
    head, end, body = received.partition(HEAD_END)
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    return bool(end) and len(body) >= length


@contextmanager
def https_server(folder: Path, reply: Callable[[bytes], bytes], *, encrypted: bool = True) -> Iterator[HttpsServer]:
    """The server while it is needed."""
    server = HttpsServer(folder, reply, encrypted=encrypted)
    try:
        yield server
    finally:
        server.close()
