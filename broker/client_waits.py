"""Ends the waits of a handler's task when its client disconnects.

A closed connection abandons its parked requests (`Pending.abandon`). A request in a task (`promised`) is not cancelled,
because work that has begun is completed and audited. Instead every wait that only its response needs ends at once, like
a timeout. Such a wait is `async with client_wait(deadline)`.

Guards: nothing of a request outlives its connection, except accepted work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class ClientPresence:
    """The client of one request: whether it is still connected."""

    __slots__ = ("_listeners", "gone", "task")

    def __init__(self) -> None:
        self.gone = False
        self.task: asyncio.Task[object] | None = None
        """The task of the request."""
        self._listeners: dict[Callable[[], None], None] = {}

    def begin(self) -> None:
        """Binds the current task to this client."""
        self.task = asyncio.current_task()
        _PRESENCE.set(self)

    def leave(self) -> None:
        """Ends all waits: the client disconnected."""
        self.gone = True
        for listener in list(self._listeners):
            listener()

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Calls `listener` if the client disconnects in the block, or already has."""
        self._listeners[listener] = None
        try:
            if self.gone:
                listener()
            yield
        finally:
            del self._listeners[listener]


_PRESENCE: ContextVar[ClientPresence | None] = ContextVar("client_presence", default=None)


def current_presence() -> ClientPresence | None:
    """Returns the client of the current task's request; None for other tasks."""
    presence = _PRESENCE.get()
    # Tasks started by this one inherit the variable, but can work for others.
    return presence if presence is not None and presence.task is asyncio.current_task() else None


@asynccontextmanager
async def client_wait(deadline: float | None = None) -> AsyncIterator[None]:
    """Bounds a wait that only the response needs.

    Errors: TimeoutError at `deadline` (the loop's time), or when the client disconnects.
    """
    async with asyncio.timeout_at(deadline) as limit:
        presence = current_presence()
        if presence is None:
            yield
            return

        def end() -> None:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

        with presence.listening(end):
            yield
