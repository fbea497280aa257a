"""Which clients are so slow, or silent, that their connections are ended."""

from __future__ import annotations

from typing import Protocol

SLOW_FRAME_GRACE_MS = 30_000
SLOW_FRAME_BYTES_PER_S = 16 * 1024
"""A frame that is not whole after the grace must have come at this rate: a modem of 1998 is faster."""

HALF_CLOSED_GRACE_MS = 60_000
"""How long a client that has closed its writing side may take to read its answers. Kafka closes the connection at once."""

ABANDONED_MS = 5_000
"""How long a request of such a client may wait. The client is taken to be gone then: a close looks like a half-close until we write."""


class Watched(Protocol):
    """What is asked of a connection. Times are those of the monotonic clock."""

    frame_started_ms: int
    eof_ms: int
    """When it was seen that the client sends nothing more; 0 until then."""

    @property
    def last_active_ms(self) -> int:
        """When something was received last."""
        ...

    @property
    def awaits_bytes(self) -> bool:
        """Whether it is for the client to send the rest of a frame."""
        ...

    @property
    def received_bytes(self) -> int:
        """How much of that frame is there."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether a request of this client is being worked on."""
        ...

    @property
    def parked_ms(self) -> int | None:
        """Since when the oldest request waits whose answer isn't there; None if none does."""
        ...


def why_to_end(connection: Watched, now_ms: int, idle_after_ms: int) -> str | None:
    """Why a connection is to be closed; None for one that may stay."""
    if connection.awaits_bytes and _is_too_slow(connection, now_ms - connection.frame_started_ms - SLOW_FRAME_GRACE_MS):
        return "its request arrives too slowly"
    if connection.eof_ms > 0:
        parked_ms = connection.parked_ms
        if parked_ms is not None and now_ms - max(parked_ms, connection.eof_ms) > ABANDONED_MS:
            return "its client closed it while a request was waiting"
        if now_ms - connection.eof_ms > HALF_CLOSED_GRACE_MS:
            return "its client closed it, and doesn't read its answers"
    if now_ms - connection.last_active_ms > idle_after_ms and not connection.waiting:
        return f"idle for more than connections.max.idle.ms={idle_after_ms}"
    return None


def _is_too_slow(connection: Watched, elapsed_ms: int) -> bool:
    """Whether a partial frame arrives slower than any real client sends: memory is not held for it."""
    return elapsed_ms > 0 and connection.received_bytes < elapsed_ms * SLOW_FRAME_BYTES_PER_S // 1000
