"""The load generator: one thread, non-blocking sockets, requests encoded beforehand.

Per request it does two system calls, or fewer if several requests or answers travel together, and a few bytecodes: with
a responder that only echoes (`bench/floor.py`) it is several times as fast as a broker. Every answer is checked: the
error code of each, and when records are read, that their offsets follow each other. Any error ends the load.

Latency is from passing the request to the kernel until the answer is read; with more requests in flight it is mostly
waiting behind each other.

Unlike our other clients it does not use the core (`protocol.client`) under load: that decodes every answer, which takes
as long as a broker needs for a small request, so the generator would be measured. Requests are encoded with the same
codecs before the clock runs.
"""

from __future__ import annotations

import gc
import itertools
import select
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lowtide.protocol.errors import ErrorCode

from .client import Address, connect
from .errors import BenchError
from .figures import percentile
from .frames import FetchFrame

LIMIT_S = 60.0
"""A broker without an answer for this long counts as stuck."""

_ANSWER_BYTES = 1 << 16
_FETCH_ANSWER_BYTES = (1 << 20) + (1 << 16)
_SIZE_BYTES = 4
_READABLE, _WRITABLE = select.POLLIN, select.POLLOUT
_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_BATCH = struct.Struct(">qi11xi")
"""Base offset, length, last offset delta: the fields of a batch's header that define its end."""

_BATCH_HEADER_BYTES = 61
_LENGTH_FROM = 12
"""A batch's length counts from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The results of a load."""

    count: int
    """Requests answered."""

    seconds: float
    """The time from the first request to the last answer."""

    latencies_us: Sequence[float]
    """The latency of each request, sorted."""

    generator_cpu_s: float
    received_bytes: int
    records: int = 0
    """Records read, if records were read."""

    @property
    def p50_us(self) -> float:
        """Half of the answers took no longer."""
        return percentile(self.latencies_us, 0.5)

    @property
    def p99_us(self) -> float:
        """99 % of the answers took no longer."""
        return percentile(self.latencies_us, 0.99)

    @property
    def generator_busy(self) -> float:
        """The share of the time in which the generator worked, in percent. Near 100, it was the limit."""
        return self.generator_cpu_s / self.seconds * 100


class Lane:
    """One connection, with its unsent and received bytes."""

    __slots__ = ("buffer", "fd", "filled", "frames", "sent_ns", "socket", "unsent", "view")

    def __init__(self, address: Address, frames: Iterable[bytes] = (), *, buffer_bytes: int = _ANSWER_BYTES) -> None:
        self.socket = connect(address)
        self.socket.setblocking(False)
        self.fd = self.socket.fileno()
        self.frames = iter(frames)
        self.sent_ns: deque[int] = deque()
        """The send time of each unanswered request."""
        self.unsent = memoryview(b"")
        self.buffer = bytearray(buffer_bytes)
        self.view = memoryview(self.buffer)
        self.filled = 0

    def send(self, count: int, now_ns: int) -> int:
        """Sends up to `count` more requests.

        Returns their number; `unsent` has the bytes that the kernel did not accept.
        """
        requests = list(itertools.islice(self.frames, count))
        if not requests:
            return 0
        self.sent_ns.extend([now_ns] * len(requests))
        try:
            taken = self.socket.send(requests[0]) if len(requests) == 1 else self.socket.sendmsg(requests)
        except BlockingIOError:
            taken = 0
        if taken != sum(map(len, requests)):
            self.unsent = memoryview(b"".join(requests))[taken:]
        return len(requests)

    def flush(self) -> None:
        """Sends the bytes that the kernel did not accept."""
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            return

    def receive(self) -> int:
        """Reads the bytes that have arrived. Returns their number."""
        if self.filled == len(self.buffer):
            self._grow(2 * len(self.buffer))
        try:
            received = self.socket.recv_into(self.view[self.filled :])
        except BlockingIOError:
            return 0
        if not received:
            raise BenchError("the broker closed a connection under load")
        self.filled += received
        return received

    def reserve(self, size: int) -> None:
        """Makes room for an answer of `size` bytes."""
        if size > len(self.buffer):
            self._grow(size)

    def drop(self, count: int) -> None:
        """Drops the first received bytes."""
        left = self.filled - count
        if left:
            self.buffer[:left] = self.buffer[count : self.filled]
        self.filled = left

    def _grow(self, size: int) -> None:
        self.view.release()
        self.buffer.extend(bytes(size - len(self.buffer)))
        self.view = memoryview(self.buffer)

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()


class Readiness:
    """epoll where there is one, else poll."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        poll = self._epoll or select.poll()
        self.register: Callable[[int, int], None] = poll.register
        self.modify: Callable[[int, int], None] = poll.modify
        self._poll = poll.poll
        self._limit = LIMIT_S if self._epoll is not None else LIMIT_S * 1000

    def wait(self) -> list[tuple[int, int]]:
        """The ready sockets. Errors: BenchError if none is ready for a long time."""
        events = self._poll(self._limit)
        if not events:
            raise BenchError(f"no answer for {LIMIT_S:.0f} s")
        return events

    def close(self) -> None:
        """Closes the descriptor."""
        if self._epoll is not None:
            self._epoll.close()


@contextmanager
def _undisturbed(lanes: Sequence[Lane]) -> Iterator[Readiness]:
    """Switches off garbage collection during a load, and closes everything at the end."""
    readiness = Readiness()
    for lane in lanes:
        readiness.register(lane.fd, _READABLE)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield readiness
    finally:
        if collecting:
            gc.enable()
        readiness.close()
        for lane in lanes:
            lane.close()


def pump(lanes: Sequence[Lane], *, count: int, depth: int = 1, error_position: int | None = None) -> Load:
    """Sends `count` requests over the lanes, up to `depth` unanswered on each, and waits for the answers.

    Lanes may run dry before. `error_position`: see `bench/frames.py`; None if an answer has no fixed one. Errors:
    BenchError; the lanes are closed in any case.
    """
    clock, by_fd = time.perf_counter_ns, {lane.fd: lane for lane in lanes}
    latencies: list[int] = []
    received = 0
    with _undisturbed(lanes) as readiness:
        began_cpu, began = time.thread_time(), clock()
        unsent = count
        for lane in lanes:
            unsent -= lane.send(min(depth, unsent), clock())
            if lane.unsent:
                readiness.modify(lane.fd, _READABLE | _WRITABLE)
        waiting = count - unsent
        while waiting:
            for fd, event in readiness.wait():
                lane = by_fd[fd]
                if event & _WRITABLE and lane.unsent:
                    lane.flush()
                    if not lane.unsent:
                        readiness.modify(fd, _READABLE)
                if event & ~_WRITABLE:
                    received += lane.receive()
                    waiting -= _take_answers(lane, error_position, latencies, clock())
                if unsent and not lane.unsent and len(lane.sent_ns) < depth:
                    sent = lane.send(min(depth - len(lane.sent_ns), unsent), clock())
                    unsent -= sent
                    waiting += sent
                    if lane.unsent:
                        readiness.modify(fd, _READABLE | _WRITABLE)
        seconds = (clock() - began) / 1e9
        generator_cpu_s = time.thread_time() - began_cpu
    return Load(
        count=len(latencies),
        seconds=seconds,
        latencies_us=[latency / 1000 for latency in sorted(latencies)],
        generator_cpu_s=generator_cpu_s,
        received_bytes=received,
    )


def _take_answers(lane: Lane, error_position: int | None, latencies: list[int], now_ns: int) -> int:
    """Counts the complete answers of a lane, and checks their error codes."""
    buffer, filled, position, taken = lane.buffer, lane.filled, 0, 0
    size_at, sent_ns = _SIZE.unpack_from, lane.sent_ns
    while filled - position >= _SIZE_BYTES:
        end = position + _SIZE_BYTES + size_at(buffer, position)[0]
        if end > filled:
            break
        if error_position is not None and (buffer[position + error_position] or buffer[position + error_position + 1]):
            raise BenchError(f"a request was answered with {_error(buffer, position + error_position)}")
        latencies.append(now_ns - sent_ns.popleft())
        position = end
        taken += 1
    if position:
        lane.drop(position)
    return taken


def _error(buffer: bytearray, position: int) -> str:
    code = int.from_bytes(buffer[position : position + 2], "big", signed=True)
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


class FetchLane(Lane):
    """A connection that reads one partition from `offset` up to `end`, exclusive."""

    __slots__ = ("end", "frame", "offset", "request")

    def __init__(self, address: Address, frame: FetchFrame, *, end: int, offset: int = 0) -> None:
        super().__init__(address, buffer_bytes=_FETCH_ANSWER_BYTES)
        self.frame = frame
        self.request = bytearray(frame.request)
        self.offset = offset
        self.end = end

    def ask(self) -> None:
        """Requests the next records. A request is small and alone on its connection, so the kernel accepts it whole."""
        _OFFSET.pack_into(self.request, self.frame.offset_position, self.offset)
        self.sent_ns.append(time.perf_counter_ns())
        taken = self.socket.send(self.request)
        assert taken == len(self.request)

    def answered(self) -> bool:
        """Returns whether a whole answer has arrived."""
        if self.filled < _SIZE_BYTES:
            return False
        size: int = _SIZE_BYTES + _SIZE.unpack_from(self.buffer)[0]
        self.reserve(size)
        return self.filled >= size

    def take(self) -> None:
        """Advances the offset past the answer's records. Errors: BenchError for an error, no records, or a gap."""
        buffer, frame = self.buffer, self.frame
        if buffer[frame.error_position] or buffer[frame.error_position + 1]:
            raise BenchError(f"a fetch was answered with {_error(buffer, frame.error_position)}")
        (length,) = _SIZE.unpack_from(buffer, frame.records_position)
        start = frame.records_position + _SIZE_BYTES
        moved = offset_behind(buffer, start, start + max(length, 0), self.offset)
        if moved == self.offset:
            raise BenchError(f"a fetch at offset {self.offset} of {self.end} gave no record")
        self.offset = moved
        self.filled = 0


def offset_behind(buffer: bytes | bytearray, start: int, end: int, offset: int) -> int:
    """Returns the offset after the last whole batch of `buffer[start:end]`, or `offset` without one.

    Errors: BenchError if a batch begins behind `offset`.
    """
    position = start
    while end - position >= _BATCH_HEADER_BYTES:
        base, length, delta = _BATCH.unpack_from(buffer, position)
        position += _LENGTH_FROM + length
        if position > end:
            break
        if base > offset:
            raise BenchError(f"records from {offset} to {base - 1} are missing")
        offset = max(offset, base + delta + 1)
    return offset


def drain(lanes: Sequence[FetchLane]) -> Load:
    """Reads every lane's partition to its end, one request at a time on each.

    Errors: BenchError; the lanes are closed in any case.
    """
    clock, by_fd = time.perf_counter_ns, {lane.fd: lane for lane in lanes}
    latencies: list[int] = []
    received, first = 0, sum(lane.offset for lane in lanes)
    with _undisturbed(lanes) as readiness:
        began_cpu, began = time.thread_time(), clock()
        reading = {lane.fd for lane in lanes if lane.offset < lane.end}
        for fd in reading:
            by_fd[fd].ask()
        while reading:
            for fd, _ in readiness.wait():
                lane = by_fd[fd]
                received += lane.receive()
                if not lane.answered():
                    continue
                latencies.append(clock() - lane.sent_ns.popleft())
                lane.take()
                if lane.offset < lane.end:
                    lane.ask()
                else:
                    reading.discard(fd)
        seconds = (clock() - began) / 1e9
        generator_cpu_s = time.thread_time() - began_cpu
    return Load(
        count=len(latencies),
        seconds=seconds,
        latencies_us=[latency / 1000 for latency in sorted(latencies)],
        generator_cpu_s=generator_cpu_s,
        received_bytes=received,
        records=sum(lane.offset for lane in lanes) - first,
    )
