"""Decides which connections are closed because their clients are slow or idle."""

from __future__ import annotations

from typing import Protocol

from lowtide.broker.network.connection.answers import Answers
from lowtide.broker.network.connection.partial_frame import PartialFrame

SLOW_FRAME_GRACE_MS = 30_000
SLOW_FRAME_BYTES_PER_S = 16 * 1024
"""The minimum rate of a frame that is incomplete after the grace: a modem of 1998 is faster."""

HALF_CLOSED_GRACE_MS = 60_000
"""The time for a client that has closed its writing side to read its answers. Kafka closes the connection at once."""

ABANDONED_MS = 5_000
"""The time that a request of such a client may wait. A full close looks like a half-close until we write."""


class Watched(Protocol):
    """A connection. Times are monotonic."""

    frame: PartialFrame
    answers: Answers
    reading_paused: bool
    eof_ms: int
    """When the client closed its writing side, or 0."""

    @property
    def last_active_ms(self) -> int: ...


def why_to_end(connection: Watched, now_ms: int, idle_after_ms: int) -> str | None:
    """Returns why a connection is closed, or None."""
    frame, answers = connection.frame, connection.answers
    awaits_bytes = frame.buffer is not None and not connection.reading_paused
    if awaits_bytes and _is_too_slow(frame.filled, now_ms - frame.started_ms - SLOW_FRAME_GRACE_MS):
        return "its request arrives too slowly"
    if connection.eof_ms > 0:
        parked_ms = answers.parked_ms
        if parked_ms is not None and now_ms - max(parked_ms, connection.eof_ms) > ABANDONED_MS:
            return "its client closed it while a request was waiting"
        if now_ms - connection.eof_ms > HALF_CLOSED_GRACE_MS:
            return "its client closed it, and doesn't read its answers"
    if now_ms - connection.last_active_ms > idle_after_ms and not answers.waiting:
        return f"idle for more than connections.max.idle.ms={idle_after_ms}"
    return None


def _is_too_slow(received_bytes: int, elapsed_ms: int) -> bool:
    """Returns whether a partial frame arrives slower than any real client sends."""
    return elapsed_ms > 0 and received_bytes < elapsed_ms * SLOW_FRAME_BYTES_PER_S // 1000
