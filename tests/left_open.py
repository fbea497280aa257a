"""Connections that aiokafka leaves open when its loop ends.

Where a connect is cancelled or refused, over TLS above all, it waits for no close. The collection of such a transport would be an error of
whichever test runs at that moment. They are aborted as their loop closes; those of our own code are not.
"""

from __future__ import annotations

import asyncio
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

_close = BaseSelectorEventLoop.close


def _is_of_aiokafka(protocol: Any) -> bool:
    """Also inside of TLS."""
    inner = getattr(protocol, "_app_protocol", protocol)
    return type(inner).__module__.startswith("aiokafka.")


def _close_all(self: Any) -> None:
    left = [transport for transport in self._transports.values() if _is_of_aiokafka(transport.get_protocol())]
    for transport in left:
        transport.abort()
    if left and not self.is_running():
        self.run_until_complete(asyncio.sleep(0))  # The abort takes effect in the loop's next pass.
    _close(self)


def abort_those_of_aiokafka() -> None:
    """From now on, for each loop of asyncio."""
    BaseSelectorEventLoop.close = _close_all  # type: ignore[method-assign]
