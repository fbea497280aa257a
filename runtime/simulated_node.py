"""A simulated process on a host: what runs belongs to one, or to the simulation itself.

What a node starts, and everything started from there, belongs to it by way of `contextvars`; `kill` stops all of that
between two callbacks, as SIGKILL does, running no `finally`. A node of the same name may start again. `pause` and
`resume` are SIGSTOP and SIGCONT: what would have run meanwhile runs afterwards, and timers ring late. The loop that
they run on does it (`simulated_loop.py`).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, Final, ParamSpec, TypeVar

from lowtide.runtime.simulated_hosts import HostLoop

T = TypeVar("T")
P = ParamSpec("P")

# Which process the running code belongs to; None is the simulation itself.
_CURRENT_NODE: Final[ContextVar[SimulatedNode | None]] = ContextVar("current_node", default=None)


class NodeLoop(HostLoop):
    """A loop as its nodes see it."""

    @abstractmethod
    def on_node_killed(self, node: SimulatedNode, *, silently: bool) -> None:
        """Stop everything that belongs to the node."""

    @abstractmethod
    def on_node_paused(self, node: SimulatedNode) -> list[asyncio.Handle]:
        """Take away everything that belongs to the node, and return it in the order in which it would have run."""

    @abstractmethod
    def on_node_resumed(self, node: SimulatedNode, parked: list[asyncio.Handle]) -> None:
        """Give back what `on_node_paused` took, and what has come since."""


class SimulatedNode:
    """A process on the host `name`, with tasks and connections of its own. A loop's `start_node` creates it."""

    def __init__(self, loop: NodeLoop, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.transports: dict[Any, None] = {}
        # What would have run since the process was stopped; None while it isn't.
        self.parked: list[asyncio.Handle] | None = None
        self._loop = loop
        self._context = Context()
        self._context.run(_CURRENT_NODE.set, self)

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.name}{'' if self.is_alive else ' dead'}>"

    @property
    def is_paused(self) -> bool:
        """Whether the process is stopped for a while."""
        return self.parked is not None

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function as a part of this process, and return what it returns."""
        assert self.is_alive, self
        return self._context.copy().run(function, *args, **kwargs)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start the coroutine as a task of this process. If the process dies, the task never ends."""
        assert self.is_alive, self
        return self._loop.create_task(coro, name=name, context=self._context.copy())

    def kill(self, *, silently: bool = False) -> None:
        """Kill the process: nothing of it runs any more, not even `finally`; its connections end.

        A second call does nothing. With `silently` the machine dies too: peers get no answer until a node of this name
        starts, and until then connecting to it times out. Killing the process from within ends it when the running
        callback returns.
        """
        if self.is_alive:
            self.is_alive = False
            self._loop.on_node_killed(self, silently=silently)

    def pause(self) -> None:
        """Stop the process: nothing of it runs until `resume`, though its sockets still take what comes.

        A second call does nothing.
        Pausing it from within stops it when the running callback returns.
        """
        if self.is_alive and self.parked is None:
            self.parked = self._loop.on_node_paused(self)

    def resume(self) -> None:
        """Let it go on, with everything that is due. Does nothing for a process that isn't paused."""
        if self.parked is not None:
            parked, self.parked = self.parked, None
            self._loop.on_node_resumed(self, parked)


def current_node() -> SimulatedNode | None:
    """The process that the running code belongs to; None is the simulation itself."""
    return _CURRENT_NODE.get()


def node_in(context: Context) -> SimulatedNode | None:
    """The process that code running in the context belongs to."""
    return context.get(_CURRENT_NODE)
