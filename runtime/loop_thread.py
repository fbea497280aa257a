"""An event loop in its own thread, for code that isn't asynchronous or runs inside another loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0
"""How long `close` waits for the thread. Blocking the loop longer is a bug, and the thread is a daemon."""


class LoopThread:
    """Runs coroutines in its thread while the caller waits. Several threads may use it at once.

    The thread doesn't survive a fork: in the child, `run` raises instead of waiting for ever.
    """

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can run here any more: it was closed, or belongs to another process."""
        return self._closed or os.getpid() != self._process

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns the result of the coroutine. An interrupt (Ctrl-C) cancels it.

        Errors: what it raises; RuntimeError after `close`, in another process, and in the thread itself.
        """
        problem = self._problem()
        if problem is not None:
            coroutine.close()
            raise RuntimeError(problem)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stops the loop and cancels what runs. A second call, or one in another process, does nothing."""
        if self.is_closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)

    def _problem(self) -> str | None:
        if os.getpid() != self._process:
            return "made in another process: after a fork each process needs its own"
        if self._closed:
            return "it is closed"
        if threading.current_thread() is self._thread:
            return "called from its own loop, which it would wait for"
        return None

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
