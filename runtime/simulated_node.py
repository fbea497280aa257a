"""A simulated process on a host: all running code belongs to one, or to the simulation itself.

What a node starts, directly or indirectly, belongs to it through `contextvars`. `kill` stops all of that between two
callbacks, like SIGKILL, without running any `finally`. A node of the same name may start again. `pause` and `resume`
are SIGSTOP and SIGCONT: what would have run meanwhile runs afterwards, and timers fire late. The loop does the work
(`simulated_loop`).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar
from typing import Any, Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

# The process of the running code; None is the simulation itself.
_CURRENT_NODE: Final[ContextVar[SimulatedNode | None]] = ContextVar("current_node", default=None)


class HostLoop(asyncio.BaseEventLoop):
    """A loop on which several hosts run (`simulated_loop`)."""

    nodes: Mapping[str, SimulatedNode]

    @abstractmethod
    def current_host(self) -> str:
        """Returns the host of the running code."""

    @abstractmethod
    def node_of(self, context: Context) -> SimulatedNode | None:
        """Returns the process of code that runs in the context."""

    @abstractmethod
    def trace(self, event: str) -> None:
        """Records an event of the run."""

    @abstractmethod
    def on_node_killed(self, node: SimulatedNode, *, silently: bool) -> None:
        """Stops everything of the node."""

    @abstractmethod
    def on_node_paused(self, node: SimulatedNode) -> list[asyncio.Handle]:
        """Removes everything of the node, and returns it in the order in which it would have run."""

    @abstractmethod
    def on_node_resumed(self, node: SimulatedNode, parked: list[asyncio.Handle]) -> None:
        """Restores what `on_node_paused` removed, and what has come since."""


class SimulatedNode:
    """A process on the host `name`, with its own tasks and connections. Created by a loop's `start_node`."""

    def __init__(self, loop: HostLoop, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.transports: dict[Any, None] = {}
        # What would have run since the process was paused; None while it isn't.
        self.parked: list[asyncio.Handle] | None = None
        self._loop = loop
        self._context = Context()
        self._context.run(_CURRENT_NODE.set, self)

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.name}{'' if self.is_alive else ' dead'}>"

    @property
    def is_paused(self) -> bool:
        return self.parked is not None

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function as a part of this process, and returns its result."""
        assert self.is_alive, self
        return self._context.copy().run(function, *args, **kwargs)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Starts the coroutine as a task of this process. If the process dies, the task never ends."""
        assert self.is_alive, self
        return self._loop.create_task(coro, name=name, context=self._context.copy())

    def kill(self, *, silently: bool = False) -> None:
        """Kills the process: nothing of it runs any more, not even `finally`; its connections end.

        A second call does nothing.

        With `silently` the machine dies too: peers get no answer, and connecting times out, until a node of this name
        starts. Killing the process from within takes effect when the running callback returns.
        """
        if self.is_alive:
            self.is_alive = False
            self._loop.on_node_killed(self, silently=silently)

    def pause(self) -> None:
        """Pauses the process until `resume`; its sockets still receive. A second call does nothing.

        Pausing it from within takes effect when the running callback returns.
        """
        if self.is_alive and self.parked is None:
            self.parked = self._loop.on_node_paused(self)

    def resume(self) -> None:
        """Resumes a paused process, with everything that is due."""
        if self.parked is not None:
            parked, self.parked = self.parked, None
            self._loop.on_node_resumed(self, parked)


def current_node() -> SimulatedNode | None:
    """Returns the process of the running code; None is the simulation itself."""
    return _CURRENT_NODE.get()


def node_in(context: Context) -> SimulatedNode | None:
    """Returns the process of code that runs in the context."""
    return context.get(_CURRENT_NODE)
