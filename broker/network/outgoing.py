"""What a connection has still to send: ready bytes, packed ones, and slices of segment files that are read when their turn comes.

A fetch answer may hold many megabytes that lie in files. They are read in pieces of at most `CHUNK_BYTES`, the next one only
when the socket has taken the last one, so that a slow reader costs one piece of memory and no more. Pages that are not in the page
cache are read by a worker thread instead of stalling the loop. A slice of a segment that was truncated meanwhile is not sent: the
connection is closed, because the answer's length is already sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from lowtide.broker.network.answer_memory import AnswerMemory
from lowtide.broker.network.request_times import ApiTimes, RequestClock
from lowtide.broker.pending import Pending
from lowtide.runtime.worker import Worker
from lowtide.storage.log.log import FileSlice

CHUNK_BYTES = 1 << 20
"""At most this much is read from a file for one write: design limit, also the size of the reused buffers."""

PARTS_AT_ONCE = 400
"""So many pieces, at most, are written before others have their turn: an answer may have thousands of small ones, each a read."""

Buffer = bytes | bytearray | memoryview


Part = Buffer | FileSlice
RouteT = TypeVar("RouteT")


def held_bytes(parts: Iterable[Part]) -> int:
    """Returns how much memory they take: slices of files take none."""
    return sum(len(part) for part in parts if type(part) is not FileSlice)


class AnswerSlot(Generic[RouteT]):
    """The place of one answer in the order of a connection's answers.

    `size` is what it counts of the bytes that may wait.
    """

    __slots__ = (
        "answered_ns",
        "began_ns",
        "correlation_id",
        "may_be_followed",
        "parked_ns",
        "parts",
        "pending",
        "route",
        "size",
        "times",
    )

    def __init__(
        self,
        route: RouteT,
        correlation_id: int,
        pending: Pending[Any] | None,
        size: int,
        parts: list[Part] | None,
        *,
        may_be_followed: bool = False,
    ) -> None:
        self.route = route
        self.size = size
        self.parts = parts
        self.may_be_followed = may_be_followed
        self.correlation_id = correlation_id
        self.pending = pending
        self.times: ApiTimes | None = None
        self.began_ns = self.parked_ns = self.answered_ns = 0

    def note_flushed(self, clock: RequestClock) -> None:
        """It is sent now. That of a request that was answered at once, behind others, is counted already."""
        times, now_ns = self.times, clock.moment_ns
        if times is not None and self.answered_ns:
            times.local[(self.parked_ns - self.began_ns).bit_length()] += 1
            times.remote[(self.answered_ns - self.parked_ns).bit_length()] += 1
            times.response_queue[(now_ns - self.answered_ns).bit_length()] += 1
            times.total[(now_ns - self.began_ns).bit_length()] += 1
            times.total_ns += now_ns - self.began_ns
            clock.times = times


class WriteTransport(Protocol):
    """What is used of a transport.

    Its write limits are zero: what `writelines` cannot send at once pauses the protocol.
    """

    def writelines(self, parts: list[Buffer]) -> None: ...

    def get_write_buffer_size(self) -> int: ...


class BufferPool:
    """Reused buffers of one size, shared by all connections of a broker: fresh memory costs page faults, some ten times a hot copy."""

    def __init__(self, size: int, idle_maximum: int) -> None:
        """At most `idle_maximum` buffers of `size` bytes are kept while they are not in use."""
        self.size = size
        self._idle_maximum = idle_maximum
        self._idle: list[bytearray] = []

    @property
    def has_idle(self) -> bool:
        """Whether the next one costs no memory."""
        return bool(self._idle)

    def take(self) -> bytearray:
        """A buffer; its content is left over from the last use."""
        return self._idle.pop() if self._idle else bytearray(self.size)

    def give(self, buffer: bytearray) -> None:
        """Hand a buffer back that nothing reads or writes any more."""
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
        "_parts",
        "_pool",
        "_position",
        "_queued_bytes",
        "_reading",
        "_sending",
        "_transport",
        "_worker",
        "paused",
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

        `on_turn` is called in a later pass of the loop when much was sent and more is left: the queue is `paused` until it is resumed.
        """
        self._transport = transport
        self._pool = pool
        self._worker = worker
        self._on_broken = on_broken
        self._on_turn = self.resume if on_turn is None else on_turn
        self._memory = memory
        self._clock = clock
        self._sending: tuple[ApiTimes, int] | None = None
        """Of the oldest answer that the socket hasn't taken yet: whose times, and when it was sent."""
        self._parts: deque[Part] = deque()
        self._queued_bytes = 0
        self._position = 0
        self._borrowed: bytearray | None = None
        self._reading = False
        self.paused = False

    @property
    def idle(self) -> bool:
        """Whether everything was given to the socket and the socket took it."""
        return not self._parts and not self.paused and not self._reading

    def send(self, parts: list[Part]) -> None:
        """Queue parts behind what is there and send what the socket takes."""
        is_bytes = type(parts[0]) is bytes if len(parts) == 1 else FileSlice not in map(type, parts)
        if is_bytes and not (self._parts or self.paused or self._reading):
            # Nearly all answers are bytes that nothing is before: they need no turn in the queue.
            self._transport.writelines(parts)  # type: ignore[arg-type]  # no slices are among them
            if self.paused:
                self._begin_measuring()  # type: ignore[unreachable]  # the transport may pause it
                self._count_unread()
            return
        self._parts.extend(parts)
        self._queued_bytes += held_bytes(parts)
        self.pump()
        if self._parts or self.paused:
            self._begin_measuring()
            if self.paused:
                self._count_unread()

    def _begin_measuring(self) -> None:
        """The socket hasn't taken all of an answer."""
        if self._sending is None:
            self._sending = self._clock.times, self._clock.now_ns()

    def _end_measuring(self) -> None:
        """The socket may have taken the answer that is measured."""
        if self._sending is not None and not (self._parts or self.paused or self._reading):
            (times, began_ns), self._sending = self._sending, None
            times.send[(self._clock.now_ns() - began_ns).bit_length()] += 1

    def resume(self) -> None:
        """The socket took all it was given: its buffer may be used again, the next piece may follow."""
        self.paused = False
        self._give_back()
        self.pump()
        self._end_measuring()
        if self._memory is not None:
            self._memory.note(self, has_read=True)

    def _count_unread(self) -> None:
        if self._memory is not None:
            self._memory.note(self)

    def close(self) -> None:
        """Drop what was not sent: the connection is gone."""
        self._parts.clear()
        self._queued_bytes = 0
        self.paused = True
        if self._memory is not None:
            self._memory.forget(self)

    @property
    def unread_bytes(self) -> int:
        """What is in memory and the socket hasn't taken."""
        return self._queued_bytes + self._transport.get_write_buffer_size()

    @property
    def files_held(self) -> int:
        """Slices of files that wait for the client. Some may be of the same file."""
        return sum(type(part) is FileSlice for part in self._parts)

    def give_up(self, reason: str) -> None:
        """Close the connection."""
        self._break(reason)

    def pump(self) -> None:
        """Write pieces until the socket is full, a cold page has to be read, others are to have their turn, or nothing is left."""
        while self._parts and not self.paused and not self._reading:
            run = self._gather()
            if run:
                self._transport.writelines(run)
                if not self.paused:
                    self._give_back()
                    if len(run) >= PARTS_AT_ONCE and self._parts:
                        self.paused = True
                        asyncio.get_running_loop().call_soon(self._on_turn)

    def _gather(self) -> list[Buffer]:
        """The next write: ready bytes as they are, slices read into the borrowed buffer, about `CHUNK_BYTES` together.

        Empty when a cold read was handed to the worker, or the connection broke.
        """
        parts, run = self._parts, list[Buffer]()
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
        """Bytes read into `view`; 0 when there are none now: cold pages, or the end of this connection."""
        position = part.position + self._position
        count = 0
        try:
            if part.token.valid:
                count = part.file.preadv([view], position, nowait=True)
        except BlockingIOError:
            if worth_waiting:
                self._reading = True
                self._worker.submit(partial(part.file.preadv, [view], position), partial(self._on_read, part, view))
            return 0
        except OSError as error:
            self._break(f"cannot read {part.file.path}: {error}")
            return 0
        if count <= 0:
            self._break(f"{part.file.path} was truncated while it was sent")
        return count

    def _on_read(self, part: FileSlice, view: memoryview, outcome: int | BaseException) -> None:
        self._reading = False
        if not self._parts:
            self._give_back()
            return
        if isinstance(outcome, BaseException) or outcome <= 0 or not part.token.valid:
            self._break(
                f"cannot read {part.file.path}: {outcome if isinstance(outcome, BaseException) else 'it was truncated while it was sent'}"
            )
            return
        self._advance(part, outcome)
        self._transport.writelines([view[:outcome]])
        if not self.paused:
            self._give_back()
            self.pump()
            self._end_measuring()

    def _advance(self, part: FileSlice, count: int) -> None:
        self._position += count
        if self._position == part.size:
            self._parts.popleft()
            self._position = 0

    def _break(self, reason: str) -> None:
        self._parts.clear()
        self._queued_bytes = 0
        self._on_broken(reason)

    def _give_back(self) -> None:
        if self._borrowed is not None and not self._reading:
            self._pool.give(self._borrowed)
            self._borrowed = None
