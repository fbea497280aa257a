"""Makes ready what would otherwise be made while the first client of its kind waits: the codecs of all APIs and versions.

A codec takes a millisecond or two; all of them a tenth of a second and two megabytes. A start doesn't wait for that, and nobody else does:
they are made one at a time, with pauses, the versions of new clients first.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.dispatcher import Dispatcher

FIRST_PAUSE_S: Final = 1.0
"""What a broker is started for comes first."""

PAUSE_S: Final = 0.2


class WarmUp:
    """See the module. `start` once; it ends by itself, or with `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher) -> None:
        self._loop = loop
        self._routes = dispatcher.routes
        self._left = list(reversed(dispatcher.served()))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin soon."""
        self._timer = self._loop.call_later(FIRST_PAUSE_S, self._make_one)

    def stop(self) -> None:
        """Make no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _make_one(self) -> None:
        while self._left:
            key = self._left.pop()
            if key not in self._routes:
                _made = self._routes[key]
                self._timer = self._loop.call_later(PAUSE_S, self._make_one)
                return
