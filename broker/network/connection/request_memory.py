"""The memory that large requests of all connections may hold together while they arrive (`queued.max.request.bytes`).

A small frame, and the first bytes of any, are free: that is bounded by the number of connections. The beginning of a
larger one, a megabyte, is lent while all of these have `BEGINNINGS_MAX_BYTES` at most. Whose frame goes on, or finds no
such room, asks for all of it, and where there is none isn't read until there is some. So a receiver that was given
memory can end, none waits for another one that waits, and what is held is never more than both limits, or one frame if
that is larger.

Receivers that wait are served in the order of size, so that a few huge frames don't hold up those of usual size; none
is passed over for ever.

A connection that holds memory and sends nothing for it is in the way of those that wait: `stalled` names them, to be
closed. While none waits, none is hurried.

Pure: counts bytes and holds none; time is passed in.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple, Protocol, cast

import msgspec

STALLED_MS = 2000
STALLED_BYTES = 256 * 1024
"""Who has memory that others wait for must bring this much in this time: slow lines of today have several times that
rate."""

BEGINNINGS_MAX_BYTES = 64 << 20
"""What the beginnings of frames have together, besides the limit: so many standard clients that send a megabyte each
never wait."""

OVERTAKEN_MAX = 32
"""How many frames may be served while one waits before it is its turn, whatever its size."""


class Receiver(Protocol):
    """A connection that receives a large frame."""

    @property
    def client_address(self) -> str:
        """Where it comes from."""
        ...

    @property
    def received_bytes(self) -> int:
        """How much of the frame is there."""
        ...

    def close(self, reason: str) -> None:
        """Closes without another answer."""
        ...

    def on_memory_granted(self) -> None:
        """The memory that was waited for may be used."""
        ...


class _FrameMemory(msgspec.Struct):
    """What a receiver holds, and its progress at the moment from which it is measured, if another waits."""

    size: int
    mark_bytes: int = 0
    mark_ms: int | None = None


class _WaitingFrame(NamedTuple):
    receiver: Receiver
    size: int
    served_before: int


class RequestMemory:
    """Grants memory for requests that are received."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._begun: dict[Receiver, int] = {}
        self._begun_bytes = 0
        self.is_short = False
        """Whether a beginning found no room lately: a receive is to bring little then."""
        self._holding: dict[Receiver, _FrameMemory] = {}
        self._kept: dict[object, int] = {}
        """What is held by requests that have arrived whole."""
        self._waiting: dict[int, _WaitingFrame] = {}
        """By number, in the order in which they came."""
        self._by_size: list[tuple[int, int]] = []
        """Size and number."""
        self._asked_count = 0
        self._served_count = 0

    @property
    def used_bytes(self) -> int:
        """The granted bytes that were not given back."""
        return self._used_bytes

    @property
    def begun_bytes(self) -> int:
        """Bytes that were lent for beginnings and not given back."""
        return self._begun_bytes

    def lend(self, receiver: Receiver, size: int) -> bool:
        """Whether the first `size` bytes of a frame may be received now. Once for a frame, before `take`."""
        if self._begun_bytes + size > BEGINNINGS_MAX_BYTES:
            self.is_short = True
            return False
        self._begun[receiver] = size
        self._begun_bytes += size
        return True

    def take(self, receiver: Receiver, size: int) -> bool:
        """Whether `size` bytes are granted now; if not, `receiver.on_memory_granted` is called when they are.

        Once for a frame.
        """
        self._asked_count += 1
        number = self._asked_count
        self._waiting[number] = _WaitingFrame(receiver, size, self._served_count)
        insort(self._by_size, (size, number))
        self._serve(asking=number)
        return receiver in self._holding

    def keep(self, receiver: Receiver, request: object) -> None:
        """Moves what `receiver` holds to `request`, which keeps the frame until it gives it back."""
        holding = self._holding.pop(receiver, None)
        if holding is not None:
            self._kept[request] = holding.size

    def _take_back(self, receiver: Receiver) -> None:
        size = self._begun.pop(receiver, 0)
        if size:
            self._begun_bytes -= size
            self.is_short = False

    def give_back(self, receiver: object) -> None:
        """Frees the memory of a frame, or its request for memory. May do nothing."""
        self._take_back(cast("Receiver", receiver))
        holding = self._holding.pop(cast("Receiver", receiver), None)
        if holding is not None:
            self._used_bytes -= holding.size
        self._used_bytes -= self._kept.pop(receiver, 0)
        for number in [number for number, waiting in self._waiting.items() if waiting.receiver is receiver]:
            self._leave(number)
        self._serve()

    def stalled(self, now_ms: int) -> list[Receiver]:
        """Who has to go: others wait for the memory that it has, and it brings next to nothing.

        To be asked about once a second.
        """
        found = []
        for receiver, holding in self._holding.items():
            if not self._waiting:
                holding.mark_ms = None
            elif holding.mark_ms is None or receiver.received_bytes - holding.mark_bytes >= STALLED_BYTES:
                holding.mark_bytes, holding.mark_ms = receiver.received_bytes, now_ms
            elif now_ms - holding.mark_ms >= STALLED_MS:
                found.append(receiver)
        return found

    def _serve(self, asking: int = 0) -> None:
        """Grants what fits, the smallest first; `asking` is the number of the caller, which is not notified."""
        while self._waiting:
            number = self._next()
            size = self._waiting[number].size
            if self._used_bytes and self._used_bytes + size > self._limit_bytes:
                return
            receiver = self._leave(number)
            self._served_count += 1
            self._used_bytes += size
            self._take_back(receiver)
            self._holding[receiver] = _FrameMemory(size)
            if number != asking:
                receiver.on_memory_granted()

    def _next(self) -> int:
        """Whose turn it is: the first to come if it has waited for long, else the smallest."""
        number = next(iter(self._waiting))
        is_overdue = self._served_count - self._waiting[number].served_before >= OVERTAKEN_MAX
        return number if is_overdue else self._by_size[0][1]

    def _leave(self, number: int) -> Receiver:
        receiver, size, _ = self._waiting.pop(number)
        del self._by_size[bisect_left(self._by_size, (size, number))]
        return receiver
