"""Requests that wait: the wait of a handler's task ends when its client has gone.

A connection that ends abandons the requests that it has parked (`Pending.abandon`). A request that a task works on
(`promised`) isn't cancelled then, for what it has begun is carried out and audited. Instead every wait that only its
answer needs ends at once, as if its time were over. Such a wait is written `async with client_wait(deadline)`.

Guards: nothing that belongs to a request outlives its connection, but for work that was accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class ClientPresence:
    """Whether the client of one request is still there."""

    __slots__ = ("_listeners", "gone", "task")

    def __init__(self) -> None:
        self.gone = False
        self.task: asyncio.Task[object] | None = None
        """Works on that request."""
        self._listeners: dict[Callable[[], None], None] = {}

    def begin(self) -> None:
        """Ties the current task to this client, until it ends."""
        self.task = asyncio.current_task()
        _PRESENCE.set(self)

    def leave(self) -> None:
        """Ends all waits for the answer: the connection has ended."""
        self.gone = True
        for listener in list(self._listeners):
            listener()

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Calls `listener` if the client goes meanwhile, or has gone already."""
        self._listeners[listener] = None
        try:
            if self.gone:
                listener()
            yield
        finally:
            del self._listeners[listener]


_PRESENCE: ContextVar[ClientPresence | None] = ContextVar("client_presence", default=None)


def current_presence() -> ClientPresence | None:
    """Returns the client of the request that this task works on; None for a task that serves no client."""
    presence = _PRESENCE.get()
    # A task that was started from here has a copy of the variable, and may work for others too.
    return presence if presence is not None and presence.task is asyncio.current_task() else None


@asynccontextmanager
async def client_wait(deadline: float | None = None) -> AsyncIterator[None]:
    """Bounds a wait that only the answer needs.

    Errors: TimeoutError at `deadline` (the loop's time), or when the client has gone.
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
