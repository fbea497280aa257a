"""Notifies systemd: the service is ready, it stops, and its event loop is alive.

It sends datagrams to the socket in NOTIFY_SOCKET, or nothing without one. A timer of the event loop feeds the watchdog
at half the time of WATCHDOG_USEC: if the loop is blocked longer, systemd kills and restarts the service. Source:
sd_notify(3), sd_watchdog_enabled(3).
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
    """The service manager of this process, if there is one. Used from the event loop."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get(NOTIFY_SOCKET, "")
        self._address = "\0" + address[1:] if address.startswith(_ABSTRACT) else address
        self._interval_s = _watchdog_s(environment) / 2
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_there(self) -> bool:
        return bool(self._address)

    def say(self, *lines: str) -> None:
        """Sends these lines. A failure is ignored."""
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
        """Reports that the service is ready, and starts feeding the watchdog."""
        self.say("READY=1", f"STATUS={status}")
        if self._address and self._interval_s:
            self._feed()

    def stopping(self, status: str) -> None:
        """Reports an orderly stop. The watchdog is fed until the end."""
        self.say("STOPPING=1", f"STATUS={status}")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _feed(self) -> None:
        self.say("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._feed)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Returns the seconds of silence after which the manager kills this process; 0 for never."""
    text, process = environment.get(WATCHDOG_USEC, ""), environment.get(WATCHDOG_PID, "")
    if not text.isdecimal() or (process and process != str(os.getpid())):
        return 0.0
    return max(int(text) / 1_000_000, 2 * _INTERVAL_MIN_S) if int(text) else 0.0
