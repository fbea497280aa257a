"""What a service is to say to systemd: that it is ready, that it stops, and again and again that its event loop is alive.

A datagram to the socket that NOTIFY_SOCKET names, and nothing at all where there is none. The watchdog is fed by a timer of the event loop,
at half the time that WATCHDOG_USEC gives: a loop that is held for longer has the service killed and started again.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Final

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_USEC: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"

_INTERVAL_MIN_S: Final = 0.05
_ABSTRACT: Final = "@"


class ServiceManager:
    """The manager of this process, if there is one. Used from the event loop."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get(NOTIFY_SOCKET, "")
        self._address = "\0" + address[1:] if address.startswith(_ABSTRACT) else address
        self._interval_s = _watchdog_s(environment) / 2
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_there(self) -> bool:
        """Whether anything is said."""
        return bool(self._address)

    def say(self, *lines: str) -> None:
        """Send these lines. A manager that doesn't take them changes nothing here."""
        if not self._address:
            return
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return

    def ready(self, status: str) -> None:
        """The service serves; from here on the watchdog is fed."""
        self.say("READY=1", f"STATUS={status}")
        if self._address and self._interval_s:
            self._feed()

    def stopping(self, status: str) -> None:
        """The service stops in order. The watchdog is fed until the end."""
        self.say("STOPPING=1", f"STATUS={status}")

    def close(self) -> None:
        """Feed the watchdog no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _feed(self) -> None:
        self.say("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._feed)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """After how many seconds of silence the manager kills this process; 0 where it doesn't."""
    text, process = environment.get(WATCHDOG_USEC, ""), environment.get(WATCHDOG_PID, "")
    if not text.isdecimal() or (process and process != str(os.getpid())):
        return 0.0
    return max(int(text) / 1_000_000, 2 * _INTERVAL_MIN_S) if int(text) else 0.0
