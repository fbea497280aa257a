"""A child process that runs this program, with inherited sockets.

It has its own process group, so Ctrl-C at a terminal reaches only the parent, which stops it in order. It shares the
parent's standard error and output, or only the former, and has no standard input. The service manager's variables are
not passed on.
"""

from __future__ import annotations

import asyncio
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lowtide.runtime.service_manager import NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

_STANDARD_ERROR: Final = 2

_NOT_PASSED_ON: Final = frozenset({NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC})


class ChildProcess:
    """A started process. Used from the event loop that started it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Returns the exit code when it has ended; the negative signal number if a signal killed it."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kills it if it still runs."""
        if self._process.returncode is None:
            self._process.kill()


async def start_child(
    command: Sequence[str],
    passed: Sequence[socket.socket],
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    output_is_errors: bool = False,
) -> ChildProcess:
    """Starts a process that inherits only these sockets, under the same numbers. They are closed here.

    `variables` are added to its environment. With `output_is_errors` its standard output is our standard error.
    Errors: OSError.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_STANDARD_ERROR if output_is_errors else None,
            pass_fds=tuple(each.fileno() for each in passed),
            env={**environment, **variables},
            process_group=0,
        )
    finally:
        for each in passed:
            each.close()
    return ChildProcess(process)
