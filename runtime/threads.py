"""Starts threads, and runs a function periodically in one beside the event loop.

A refusal by the system is an OSError that names the remedy. A thread runs while the loop blocks in the system or
executes Python; C code that keeps the interpreter lock stops it too.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread. Errors: OSError with EAGAIN if the system gives the process no further thread."""
    try:
        thread.start()
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        message = (
            f"the system gives no thread for {thread.name!r}: raise the limit of processes (ulimit -u, pids.max of a "
            "container)"
        )
        raise OSError(errno.EAGAIN, message) from error


STOP_TIMEOUT_S = 2.0
"""How long `close` waits for a running call; the thread is a daemon."""


class SideThread:
    """Calls `look` every `interval_s`, in its thread, until it is closed. An exception ends the thread."""

    def __init__(self, look: Callable[[], None], interval_s: float, name: str) -> None:
        """Starts the thread. Errors: OSError if the system has none."""
        assert interval_s > 0, interval_s
        self._look = look
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(self._thread)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Starts no further call, and returns when none is running. A second call does nothing."""
        self._closing.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._look()
