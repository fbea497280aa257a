"""Answers that are given one after the other in one step of the loop, such as all that a follower's fetch sets free.

Each connection then sends once, at the end of the step, what it was given meanwhile: a system call, and a wake-up of its client, for all of
them, whose next requests come together in turn. Nothing waits for another pass of the loop.

Guards: a connection that can't send costs no other one anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lowtide.runtime.completions import call_all

if TYPE_CHECKING:
    import asyncio


class AnsweredConnection(Protocol):
    """A connection with answers that are ready and not sent."""

    def send_answers(self) -> None:
        """Send them."""
        ...


class AnswerRounds:
    """Those of a broker. Used from the event loop only."""

    __slots__ = ("_loop", "answered")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.answered: dict[AnsweredConnection, None] | None = None
        """Whom `end` calls; each adds itself that has an answer. None where answers aren't given together: then it is to send it."""

    def begin(self) -> None:
        """Answers are given together until `end`."""
        self.answered = {}

    def end(self) -> None:
        """Have all of them sent."""
        answered, self.answered = self.answered, None
        call_all(self._loop, [(type(connection).send_answers, connection) for connection in answered or ()])
