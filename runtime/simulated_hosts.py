"""What the parts of a simulated network know of the hosts between which it lies: the loop that they run on, and their processes."""

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
        """The host that the running code is on."""

    @abstractmethod
    def node_of(self, context: Context) -> Host | None:
        """The process that code running in the context belongs to."""

    @abstractmethod
    def trace(self, event: str) -> None:
        """Note an event of the run."""
