"""The load generator in C against a scripted peer: it counts answers, sends every byte, and ends at errors."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.compiled_pump import CompiledLane, CompiledPump
from bench.errors import BenchError

REQUEST = bytes(range(250))
ANSWER = (6).to_bytes(4, "big") + b"\0\0\0\0\0\0"
REFUSED = (6).to_bytes(4, "big") + b"\0\0\0\3\0\0"
ERROR_POSITION = 6

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="without a compiler there is no such generator")


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory) -> CompiledPump:
    return CompiledPump(tmp_path_factory.mktemp("pump"))


class Peer:
    """A listener whose connections are served by threads. `serve` has a connection; what it raises is in `failed`."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.lane = CompiledLane(self._listener.getsockname()[:2], REQUEST)
        self.failed: list[Exception] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._run, args=(end,)))
            self._threads[-1].start()

    def _run(self, end: socket.socket) -> None:
        with end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._serve(end)
            except Exception as error:
                self.failed.append(error)

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def peer() -> Iterator[Callable[[Callable[[socket.socket], None]], Peer]]:
    peers: list[Peer] = []

    def start(serve: Callable[[socket.socket], None]) -> Peer:
        peers.append(Peer(serve))
        return peers[-1]

    yield start
    for each in peers:
        each.close()


def answering(answer: bytes, counts: list[int], *, piece: int = 1 << 16) -> Callable[[socket.socket], None]:
    """Returns a peer that checks every byte, answers in pieces of this size, and counts the requests."""

    def serve(end: socket.socket) -> None:
        received = bytearray()
        count = 0
        try:
            while data := end.recv(1000):
                received += data
                while len(received) >= len(REQUEST):
                    assert received[: len(REQUEST)] == REQUEST
                    del received[: len(REQUEST)]
                    count += 1
                    for start in range(0, len(answer), piece):
                        end.sendall(answer[start : start + piece])
        finally:
            counts.append(count)

    return serve


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize(("lanes", "depth"), [(1, 1), (3, 5), (10, 1), (2, 64)])
def test_every_request_is_answered_once(pump: CompiledPump, peer, lanes: int, depth: int, piece: int) -> None:
    """Answers may arrive whole or byte by byte."""
    counts: list[int] = []
    server = peer(answering(ANSWER, counts, piece=piece))
    load = pump([server.lane] * lanes, count=300, depth=depth, error_position=ERROR_POSITION)
    server.close()
    assert not server.failed
    assert load.count == sum(counts) == 300
    assert 0 < load.p50_us <= load.p99_us


def test_a_request_larger_than_the_kernel_takes_at_once(pump: CompiledPump, peer) -> None:
    """The rest of it is sent when there is room."""
    frame = bytes(range(256)) * 255
    received = bytearray()

    def serve(end: socket.socket) -> None:
        while len(received) < 64 * len(frame):
            received.extend(end.recv(1 << 16))
        end.sendall(ANSWER * 64)

    server = peer(serve)
    load = pump([server.lane._replace(frame=frame)], count=64, depth=64, error_position=ERROR_POSITION)
    assert load.count == 64
    assert bytes(received) == frame * 64


def test_an_error_of_the_broker_ends_the_load(pump: CompiledPump, peer) -> None:
    server = peer(answering(REFUSED, []))
    with pytest.raises(BenchError, match="answered with error 3"):
        pump([server.lane], count=10, depth=1, error_position=ERROR_POSITION)


def test_a_connection_that_is_closed_ends_the_load(pump: CompiledPump, peer) -> None:
    def serve(end: socket.socket) -> None:
        end.recv(len(REQUEST))

    with pytest.raises(BenchError, match="closed a connection"):
        pump([peer(serve).lane], count=10, depth=1, error_position=ERROR_POSITION)


def test_an_answer_that_nobody_asked_for_ends_the_load(pump: CompiledPump, peer) -> None:
    def serve(end: socket.socket) -> None:
        end.recv(len(REQUEST))
        end.sendall(ANSWER * 2)
        end.recv(len(REQUEST))

    with pytest.raises(BenchError, match="without a request"):
        pump([peer(serve).lane], count=10, depth=1, error_position=ERROR_POSITION)


def test_no_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BenchError, match="needs a compiler"):
        CompiledPump(tmp_path)
