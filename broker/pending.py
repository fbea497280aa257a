"""An answer that is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

ResponseT = TypeVar("ResponseT")

NO_ANSWER: Final[Any] = object()
"""Completes a request whose client wants no answer."""


class Spawn(Protocol):
    """Start a named task whose reference is kept."""

    def __call__(self, coro: Coroutine[Any, Any, Any], *, name: str) -> object: ...


class Pending(Generic[ResponseT]):
    """Stands in a connection's queue until `complete` is called, exactly once.

    `on_abandoned` is called when the connection goes away first, so that whatever waits can be forgotten; a completion after that
    goes nowhere.

    One that `holds_connection` must take effect before the connection's next request is executed, whatever that is.
    """

    __slots__ = ("_listener", "abandoned", "done", "holds_connection", "on_abandoned", "response")

    def __init__(self, *, holds_connection: bool = False) -> None:
        self.holds_connection = holds_connection
        self.done = False
        self.abandoned = False
        self.on_abandoned: Callable[[], None] | None = None
        self.response: ResponseT | None = None
        """The answer, when it is there; None if there won't be one."""
        self._listener: Callable[[ResponseT | None], None] | None = None

    def complete(self, response: ResponseT | None) -> None:
        """Give the answer; None closes the connection without one."""
        assert not self.done, "a request is answered once"
        self.done = True
        self.on_abandoned = None
        self.response = response
        if self._listener is not None and not self.abandoned:
            self._listener(response)

    def fail(self) -> None:
        """Close the connection: a bug kept the answer from being made, or from being sent, in which case `complete` was called before."""
        self.done = True
        self.on_abandoned = None
        self.response = None
        if self._listener is not None and not self.abandoned:
            self._listener(None)

    def listen(self, listener: Callable[[ResponseT | None], None]) -> None:
        """Call `listener` with the answer: now if it is there, else when it comes."""
        self._listener = listener
        if self.done:
            listener(self.response)

    def abandon(self) -> None:
        """The client doesn't wait for this answer any more."""
        self.abandoned = True
        if not self.done and self.on_abandoned is not None:
            self.on_abandoned()


def promised(work: Callable[[], Coroutine[Any, Any, ResponseT | None]], spawn: Spawn, *, name: str) -> Pending[ResponseT]:
    """The answer that a task will give. If it gives none, or one that can't be sent, the connection is closed."""
    pending: Pending[ResponseT] = Pending()

    async def run() -> None:
        try:
            pending.complete(await work())
        except BaseException:
            pending.fail()  # Also when the answer was there and had no bytes: its client would wait for ever.
            raise

    spawn(run(), name=name)
    return pending


async def answer_of(pending: Pending[ResponseT]) -> ResponseT | None:
    """Wait for an answer; None if there won't be one."""
    answered: asyncio.Future[ResponseT | None] = asyncio.get_running_loop().create_future()

    def on_answer(response: ResponseT | None) -> None:
        if not answered.done():
            answered.set_result(response)

    pending.listen(on_answer)
    return await answered
