"""The load generator against a scripted peer: it counts answers, detects errors, and follows offsets.

Sockets are pairs, not ports.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable

import pytest

from bench import pump as generator
from bench.errors import BenchError
from bench.frames import batch, fetch_frame
from bench.pump import FetchLane, Lane, drain, offset_behind, pump
from lowtide.protocol.records import iterate_batches

REQUEST = b"request!"
ANSWER = (6).to_bytes(4, "big") + b"\0\0\0\0\0\0"
REFUSED = (6).to_bytes(4, "big") + b"\0\0\0\3\0\0"
ERROR_POSITION = 6


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch):
    """`peers(serve)`: connections of the generator go to threads that run `serve` on the other end."""
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def use(serve: Callable[[socket.socket], None]) -> None:
        def connect(address: object) -> socket.socket:
            ours, theirs = socket.socketpair()
            opened.append(theirs)
            threads.append(threading.Thread(target=serve, args=(theirs,)))
            threads[-1].start()
            return ours

        monkeypatch.setattr(generator, "connect", connect)

    yield use
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for end in opened:
        end.close()


def answering(answer: bytes, *, piece: int = 1 << 16) -> Callable[[socket.socket], None]:
    """Returns a peer that answers every whole request, in pieces of so many bytes."""

    def serve(end: socket.socket) -> None:
        received = 0
        while data := end.recv(1000):
            before, received = received // len(REQUEST), received + len(data)
            out = answer * (received // len(REQUEST) - before)
            try:
                for start in range(0, len(out), piece):
                    end.sendall(out[start : start + piece])
            except OSError:
                return

    return serve


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize(("lanes", "depth"), [(1, 1), (3, 5), (10, 1)])
def test_every_request_is_answered_once(peers, lanes: int, depth: int, piece: int):
    """Answers may arrive whole or byte by byte."""
    peers(answering(ANSWER, piece=piece))
    load = pump(
        [Lane(("", 0), itertools.repeat(REQUEST)) for _ in range(lanes)],
        count=100,
        depth=depth,
        error_position=ERROR_POSITION,
    )
    assert load.count == len(load.latencies_us) == 100
    assert load.received_bytes == 100 * len(ANSWER)
    assert 0 < load.p50_us <= load.p99_us


def test_a_lane_without_requests_ends_the_load(peers):
    peers(answering(ANSWER))
    load = pump([Lane(("", 0), [REQUEST] * 7)], count=7, depth=2)
    assert load.count == 7


def test_requests_larger_than_the_kernel_accepts_at_once(peers):
    """The rest is sent when there is room."""
    size = 4 << 20

    def serve(end: socket.socket) -> None:
        for _ in range(2):
            left = size
            while left:
                left -= len(end.recv(min(left, 1 << 16)))
            end.sendall(ANSWER)

    peers(serve)
    assert pump([Lane(("", 0), itertools.repeat(bytes(size)))], count=2).count == 2


def test_answers_larger_than_the_buffer(peers):
    """The buffer grows."""
    answer = (300_000).to_bytes(4, "big") + bytes(300_000)
    peers(answering(answer))
    assert pump([Lane(("", 0), itertools.repeat(REQUEST))], count=3).received_bytes == 3 * len(answer)


def test_an_error_ends_the_load_and_is_named(peers):
    peers(answering(REFUSED))
    with pytest.raises(BenchError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        pump([Lane(("", 0), itertools.repeat(REQUEST))], count=3, error_position=ERROR_POSITION)


def test_a_closed_connection_ends_the_load(peers):
    peers(lambda end: end.shutdown(socket.SHUT_RDWR))
    with pytest.raises((BenchError, OSError)):
        pump([Lane(("", 0), itertools.repeat(REQUEST))], count=1)


def test_silence_ends_the_load(peers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator, "LIMIT_S", 0.05)
    peers(lambda end: end.recv(1000) and None)
    with pytest.raises(BenchError, match="no answer"):
        pump([Lane(("", 0), itertools.repeat(REQUEST))], count=1)


def log_of(batches: int, per_batch: int) -> bytes:
    """Batches with the offsets that a broker assigns."""
    made = batch(per_batch, 50, 0)
    return b"".join((number * per_batch).to_bytes(8, "big") + made[8:] for number in range(batches))


def fetch_peer(log: bytes, step: int, *, error: int = 0) -> Callable[[socket.socket], None]:
    """Returns a broker of one partition that answers `step` bytes from a batch on, possibly cut inside one."""
    frame = fetch_frame("t", 0)

    def serve(end: socket.socket) -> None:
        while request := end.recv(len(frame.request), socket.MSG_WAITALL):
            offset = int.from_bytes(request[frame.offset_position : frame.offset_position + 8], "big")
            start = max(position for position, header in iterate_batches(log) if header.base_offset <= offset)
            records = log[start : start + step]
            answer = bytearray(frame.records_position + 4)
            answer[:4] = (len(answer) - 4 + len(records)).to_bytes(4, "big")
            answer[frame.error_position : frame.error_position + 2] = error.to_bytes(2, "big")
            answer[frame.records_position :] = len(records).to_bytes(4, "big")
            try:
                end.sendall(bytes(answer) + records)
            except OSError:
                return

    return serve


@pytest.mark.parametrize("step", [400, 1000, 1 << 20])
def test_a_partition_is_read_to_its_end(peers, step: int):
    """Also when the last batch of an answer is cut, as brokers may do."""
    peers(fetch_peer(log_of(10, 3), step))
    load = drain([FetchLane(("", 0), fetch_frame("t", 0), end=30)])
    assert load.records == 30


def test_an_empty_partition_needs_no_request(peers):
    peers(lambda end: end.recv(1) and None)
    assert drain([FetchLane(("", 0), fetch_frame("t", 0), end=0)]).count == 0


def test_an_error_while_reading_is_named(peers):
    peers(fetch_peer(log_of(2, 3), 1 << 20, error=1))
    with pytest.raises(BenchError, match="OFFSET_OUT_OF_RANGE"):
        drain([FetchLane(("", 0), fetch_frame("t", 0), end=6)])


def test_an_answer_without_records_is_not_progress(peers):
    """Otherwise the load would never end."""
    peers(fetch_peer(log_of(2, 3), 0))
    with pytest.raises(BenchError, match="gave no record"):
        drain([FetchLane(("", 0), fetch_frame("t", 0), end=6)])


def test_a_gap_between_batches_is_detected():
    log = log_of(3, 3)
    size = len(log) // 3
    assert offset_behind(log, 0, len(log), 0) == 9
    assert offset_behind(log, 0, len(log), 4) == 9
    assert offset_behind(log, 0, len(log) - 1, 0) == 6
    with pytest.raises(BenchError, match="records from 3 to 5 are missing"):
        offset_behind(log[:size] + log[2 * size :], 0, 2 * size, 0)
