"""The unsent bytes of a connection, and slices of segment files, which are read when they are sent.

A Fetch response may hold many megabytes that lie in files. They are read in pieces of at most `CHUNK_BYTES`, the next
one only when the socket has taken the last one, so that a slow reader costs one piece of memory. A worker thread reads
pages that are not in the page cache, instead of stalling the loop. If a segment was truncated meanwhile, its slice is
not sent and the connection is closed, because the length of the response is already sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from lowtide.broker.network.connection.answer_memory import AnswerMemory
from lowtide.broker.network.routing.request_times import ApiTimes, RequestClock
from lowtide.broker.network.routing.routes import Buffer, Part
from lowtide.runtime.worker import Worker
from lowtide.storage.log.log import FileSlice

CHUNK_BYTES = 1 << 20
"""At most this much is read from a file for one write: design limit, also the size of the reused buffers."""

PARTS_AT_ONCE = 400
"""So many pieces, at most, are written before others have their turn: an answer may have thousands of small ones, each
a read."""


def held_bytes(parts: Iterable[Part]) -> int:
    """Returns the memory of some parts; slices of files take none."""
    return sum(len(part) for part in parts if type(part) is not FileSlice)


class WriteTransport(Protocol):
    """The methods of a transport that are used.

    Its write limits are zero: what `writelines` cannot send at once pauses the protocol.
    """

    def writelines(self, parts: list[Buffer]) -> None: ...

    def get_write_buffer_size(self) -> int: ...


class BufferPool:
    """Reused buffers of one size, shared by all connections: fresh memory costs page faults."""

    def __init__(self, size: int, idle_maximum: int) -> None:
        """Keeps at most `idle_maximum` unused buffers of `size` bytes."""
        self.size = size
        self._idle_maximum = idle_maximum
        self._idle: list[bytearray] = []

    @property
    def has_idle(self) -> bool:
        """Whether the next one costs no memory."""
        return bool(self._idle)

    def take(self) -> bytearray:
        """Returns a buffer with the content of its last use."""
        return self._idle.pop() if self._idle else bytearray(self.size)

    def give(self, buffer: bytearray) -> None:
        """Takes back a buffer that nothing reads or writes any more."""
        if len(self._idle) < self._idle_maximum:
            self._idle.append(buffer)


class OutgoingQueue:
    """The bytes of one connection on their way out, in order. `paused` follows the transport's pause and resume."""

    __slots__ = (
        "_borrowed",
        "_clock",
        "_memory",
        "_on_broken",
        "_on_turn",
        "_pool",
        "_position",
        "_queued_bytes",
        "_sending",
        "_worker",
        "parts",
        "paused",
        "reading",
        "transport",
    )

    def __init__(  # noqa: PLR0913  parts
        self,
        transport: WriteTransport,
        pool: BufferPool,
        worker: Worker,
        on_broken: Callable[[str], None],
        clock: RequestClock,
        on_turn: Callable[[], None] | None = None,
        memory: AnswerMemory | None = None,
    ) -> None:
        """`on_broken(reason)` is called when a slice can no longer be sent. What isn't read is counted in `memory`.

        `on_turn` is called in a later pass of the loop when much was sent and more is left: the queue is `paused` until
        it is resumed.
        """
        self.transport = transport
        self._pool = pool
        self._worker = worker
        self._on_broken = on_broken
        self._on_turn = self.resume if on_turn is None else on_turn
        self._memory = memory
        self._clock = clock
        self._sending: tuple[ApiTimes, int] | None = None
        """The times of the API, and the time of sending, of the oldest answer that the socket has not taken."""
        self.parts: deque[Part] = deque()
        self._queued_bytes = 0
        self._position = 0
        self._borrowed: bytearray | None = None
        self.reading = False
        self.paused = False

    @property
    def idle(self) -> bool:
        """Whether the socket has taken everything."""
        return not (self.parts or self.paused or self.reading)

    def send(self, parts: list[Part]) -> None:
        """Queues parts behind those that wait, and sends what the socket takes."""
        self.parts.extend(parts)
        self._queued_bytes += held_bytes(parts)
        self.pump()
        if self.parts or self.paused:
            self.on_unsent()

    def on_unsent(self) -> None:
        """Notes that the socket has not taken all of an answer."""
        if self._sending is None:
            self._sending = self._clock.times, self._clock.now_ns()
        if self.paused and self._memory is not None:
            self._memory.note(self)

    def _end_measuring(self) -> None:
        """Counts the time of sending if the socket has taken everything."""
        if self._sending is not None and self.idle:
            (times, began_ns), self._sending = self._sending, None
            times.send[(self._clock.now_ns() - began_ns).bit_length()] += 1

    def resume(self) -> None:
        """Reuses the buffer and sends the next piece: the socket has taken everything."""
        self.paused = False
        self._give_back()
        self.pump()
        self._end_measuring()
        if self._memory is not None:
            self._memory.note(self, has_read=True)

    def close(self) -> None:
        """Drops unsent bytes when the connection is gone."""
        self.parts.clear()
        self._queued_bytes = 0
        self.paused = True
        if self._memory is not None:
            self._memory.forget(self)

    @property
    def unread_bytes(self) -> int:
        """The bytes in memory that the socket has not taken."""
        return self._queued_bytes + self.transport.get_write_buffer_size()

    @property
    def files_held(self) -> int:
        """The number of slices of files that wait for the client. Several may be of one file."""
        return sum(type(part) is FileSlice for part in self.parts)

    def give_up(self, reason: str) -> None:
        """Closes the connection."""
        self._break(reason)

    def pump(self) -> None:
        """Writes until the socket is full, a cold page must be read, the turn is over, or nothing is left."""
        while self.parts and not self.paused and not self.reading:
            run = self._gather()
            if run:
                self.transport.writelines(run)
                if not self.paused:
                    self._give_back()
                    if len(run) >= PARTS_AT_ONCE and self.parts:
                        self.paused = True
                        asyncio.get_running_loop().call_soon(self._on_turn)

    def _gather(self) -> list[Buffer]:
        """Returns the next write of about `CHUNK_BYTES`: ready bytes, and slices read into the borrowed buffer.

        Empty when a cold read was handed to the worker, or the connection broke.
        """
        parts, run = self.parts, list[Buffer]()
        size = filled = 0
        while parts and size < CHUNK_BYTES and len(run) < PARTS_AT_ONCE:
            part = parts[0]
            if type(part) is not FileSlice:
                run.append(part)
                self._queued_bytes -= len(part)
                size += len(part)
                parts.popleft()
                continue
            if self._borrowed is None:
                self._borrowed = self._pool.take()
            wanted = min(part.size - self._position, CHUNK_BYTES - filled)
            if wanted == 0:
                break
            view = memoryview(self._borrowed)[filled : filled + wanted]
            count = self._read(part, view, worth_waiting=not run)
            if count <= 0:
                break
            self._advance(part, count)
            run.append(view if count == wanted else view[:count])
            filled += count
            size += count
        return run

    def _read(self, part: FileSlice, view: memoryview, *, worth_waiting: bool) -> int:
        """Returns the bytes read into `view`; 0 for cold pages, or at the end of the connection."""
        position = part.position + self._position
        count = 0
        try:
            if part.token.valid:
                count = part.file.preadv([view], position, nowait=True)
        except BlockingIOError:
            if worth_waiting:
                self.reading = True
                self._worker.submit(partial(part.file.preadv, [view], position), partial(self._on_read, part, view))
            return 0
        except OSError as error:
            self._break(f"cannot read {part.file.path}: {error}")
            return 0
        if count <= 0:
            self._break(f"{part.file.path} was truncated while it was sent")
        return count

    def _on_read(self, part: FileSlice, view: memoryview, outcome: int | BaseException) -> None:
        self.reading = False
        if not self.parts:
            self._give_back()
            return
        if isinstance(outcome, BaseException) or outcome <= 0 or not part.token.valid:
            reason = outcome if isinstance(outcome, BaseException) else "it was truncated while it was sent"
            self._break(f"cannot read {part.file.path}: {reason}")
            return
        self._advance(part, outcome)
        self.transport.writelines([view[:outcome]])
        if not self.paused:
            self._give_back()
            self.pump()
            self._end_measuring()

    def _advance(self, part: FileSlice, count: int) -> None:
        self._position += count
        if self._position == part.size:
            self.parts.popleft()
            self._position = 0

    def _break(self, reason: str) -> None:
        self.parts.clear()
        self._queued_bytes = 0
        self._on_broken(reason)

    def _give_back(self) -> None:
        if self._borrowed is not None and not self.reading:
            self._pool.give(self._borrowed)
            self._borrowed = None
