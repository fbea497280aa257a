"""A thread beside the event loop that looks at something again and again, whatever the loop does.

For what may not depend on the loop. The thread runs while the loop blocks in the system or executes Python; C code that
keeps the interpreter for itself holds it too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lowtide.runtime.threads import start_thread

STOP_TIMEOUT_S = 2.0
"""How long `close` waits for a look that is under way; the thread is a daemon."""


class SideThread:
    """Calls `look` every `interval_s`, in its thread, until it is closed. What `look` raises ends the thread."""

    def __init__(self, look: Callable[[], None], interval_s: float, name: str) -> None:
        """Start. Errors: OSError where the system gives no thread."""
        assert interval_s > 0, interval_s
        self._look = look
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(self._thread)

    @property
    def is_alive(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Begin no further look, and return when none is under way. A second call does nothing."""
        self._closing.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._look()
