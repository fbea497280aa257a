"""The simplest server: it sends a fixed answer for every fixed number of bytes.

`python -m bench.responder REQUEST ANSWER` (sizes). It parses no request, so its rate with the load generator is the
generator's own limit. It prints its port and ends when its standard input does.
"""

from __future__ import annotations

import selectors
import socket
import sys

_RECEIVE_BYTES = 1 << 20
_SIZE_BYTES = 4


def respond(listener: socket.socket, request_bytes: int, answer: bytes) -> None:
    """Serves until standard input ends."""
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    buffer = bytearray(_RECEIVE_BYTES)
    surplus: dict[int, int] = {}
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting.register(connection, selectors.EVENT_READ)
                surplus[connection.fileno()] = 0
                continue
            assert isinstance(key.fileobj, socket.socket)
            received = key.fileobj.recv_into(buffer)
            if not received:
                waiting.unregister(key.fileobj)
                key.fileobj.close()
                continue
            count, surplus[key.fd] = divmod(surplus[key.fd] + received, request_bytes)
            if count:
                key.fileobj.sendall(answer * count)


def answer_of(size: int) -> bytes:
    """Returns a frame of this size, with its length prefix."""
    return (size - _SIZE_BYTES).to_bytes(_SIZE_BYTES, "big") + bytes(size - _SIZE_BYTES)


def main() -> None:
    """Reads the command line, prints the port, and serves."""
    request_bytes, answer_bytes = map(int, sys.argv[1:])
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    respond(listener, request_bytes, answer_of(answer_bytes))


if __name__ == "__main__":
    main()
