"""The hosts of a simulated network, as its parts see them: their loop and their processes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextvars import Context
from typing import Any, Protocol


class Host(Protocol):
    """A process on a host."""

    name: str
    transports: dict[Any, None]
    """Its ends of connections."""


class HostLoop(asyncio.BaseEventLoop):
    """A loop on which several hosts run (`simulated_loop`)."""

    nodes: Mapping[str, Host]

    @abstractmethod
    def current_host(self) -> str:
        """Returns the host of the running code."""

    @abstractmethod
    def node_of(self, context: Context) -> Host | None:
        """Returns the process of code that runs in the context."""

    @abstractmethod
    def trace(self, event: str) -> None:
        """Records an event of the run."""

    @abstractmethod
    def on_node_killed(self, node: Any, *, silently: bool) -> None:
        """Stops everything of the node."""

    @abstractmethod
    def on_node_paused(self, node: Any) -> list[asyncio.Handle]:
        """Removes everything of the node, and returns it in the order in which it would have run."""

    @abstractmethod
    def on_node_resumed(self, node: Any, parked: list[asyncio.Handle]) -> None:
        """Restores what `on_node_paused` removed, and what has come since."""
