"""A process of this one's own program, started with sockets that it inherits.

It has a process group of its own, so that Ctrl-C at a terminal reaches only its parent, which stops it in order.
Standard error and output are the parent's; it has no standard input. What a service manager gave to the parent is not
passed on.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from lowtide.runtime.service_manager import NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_NOT_PASSED_ON: Final = frozenset({NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC})


class ChildProcess:
    """A process that was started. Used from the event loop that started it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Return its exit code when it has ended; minus the number of a signal that killed it."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self._process.returncode is None:
            self._process.kill()


async def start_child(command: Sequence[str], passed: Sequence[socket.socket]) -> ChildProcess:
    """Start a process that inherits these sockets under the same numbers, and no others.

    They are closed here. Errors: OSError.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=tuple(each.fileno() for each in passed),
            env=environment,
            process_group=0,
        )
    finally:
        for each in passed:
            each.close()
    return ChildProcess(process)
