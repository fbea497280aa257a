"""The memory that large requests of all connections may hold together while they arrive (`queued.max.request.bytes`).

Small frames and the first bytes of larger ones need no grant: the number of connections bounds them. The first megabyte
of a larger frame is lent while all lent bytes are at most `BEGINNINGS_MAX_BYTES`. For the rest of the frame, or if
nothing can be lent, the receiver asks for the whole frame, and is not read until that is granted. So a receiver with a
grant can always finish, and none waits for another one that waits. All frames hold at most both limits together, or one
frame if it is larger.

Waiting receivers are served by size, the smallest first, so that a few huge frames do not delay usual ones. A frame
that was overtaken `OVERTAKEN_MAX` times is served next.

A connection that holds memory and sends nothing blocks those that wait. `stalled` returns such connections, which are
then closed. While nothing waits, none is closed.

Pure: counts bytes, but holds none; time is an argument.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple, Protocol, cast

import msgspec

STALLED_MS = 2000
STALLED_BYTES = 256 * 1024
"""A receiver with memory that others wait for must receive this much in this time. Slow lines are several times as
fast."""

BEGINNINGS_MAX_BYTES = 64 << 20
"""The limit of all lent bytes, besides that of grants: 64 standard clients that send a megabyte each never wait."""

OVERTAKEN_MAX = 32
"""A waiting frame of any size is served next after this many other frames were served."""


class Receiver(Protocol):
    """A connection that receives a large frame."""

    @property
    def client_address(self) -> str:
        """The address of the client."""
        ...

    @property
    def received_bytes(self) -> int:
        """The bytes of the frame that have arrived."""
        ...

    def close(self, reason: str) -> None:
        """Closes without another answer."""
        ...

    def on_memory_granted(self) -> None:
        """Receives the rest of the frame: its memory is granted."""
        ...


class _FrameMemory(msgspec.Struct):
    """The bytes granted to a receiver. The marks say what had arrived at which time, while others wait."""

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
        """Whether a beginning was recently not lent. Receives are then kept small."""
        self._holding: dict[Receiver, _FrameMemory] = {}
        self._kept: dict[object, int] = {}
        """The bytes of requests that have arrived whole."""
        self._waiting: dict[int, _WaitingFrame] = {}
        """By number, in the order of the calls of `take`."""
        self._by_size: list[tuple[int, int]] = []
        """Size and number."""
        self._asked_count = 0
        self._served_count = 0

    @property
    def used_bytes(self) -> int:
        """The bytes that are granted and not yet given back."""
        return self._used_bytes

    @property
    def begun_bytes(self) -> int:
        """The bytes that are lent for beginnings and not yet given back."""
        return self._begun_bytes

    def lend(self, receiver: Receiver, size: int) -> bool:
        """Returns whether the first `size` bytes of a frame may be received now. Called once, before `take`."""
        if self._begun_bytes + size > BEGINNINGS_MAX_BYTES:
            self.is_short = True
            return False
        self._begun[receiver] = size
        self._begun_bytes += size
        return True

    def take(self, receiver: Receiver, size: int) -> bool:
        """Returns whether `size` bytes are granted now. Called once for a frame.

        If not, `receiver.on_memory_granted` is called when they are.
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
        """Returns the receivers to close: others wait for their memory, and they receive less than `STALLED_BYTES`.

        Called about once a second.
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
        """Returns the number of the next frame: the oldest if it was overtaken too often, else the smallest."""
        number = next(iter(self._waiting))
        is_overdue = self._served_count - self._waiting[number].served_before >= OVERTAKEN_MAX
        return number if is_overdue else self._by_size[0][1]

    def _leave(self, number: int) -> Receiver:
        receiver, size, _ = self._waiting.pop(number)
        del self._by_size[bisect_left(self._by_size, (size, number))]
        return receiver
