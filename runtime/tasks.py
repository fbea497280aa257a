"""The only place that starts asyncio tasks: each has a name, is kept alive, and its exception is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskRegistry:
    """The tasks of one owner, which ends them by `cancel_all`.

    `on_exception` gets the name and the exception of each task that fails. Cancellation is not a failure. A caller that awaits a task that
    `spawn` returned sees the exception too.
    """

    __slots__ = ("_on_exception", "_tasks")

    def __init__(self, on_exception: Callable[[str, BaseException], None]) -> None:
        self._on_exception = on_exception
        # A dict for its order: tasks are cancelled in the order in which they began, the same in every run.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start the coroutine as a task of the running loop."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    async def cancel_all(self) -> None:
        """Cancel every task, the caller's own excepted, and wait until they have ended.

        A task that one of them starts while it ends is cancelled too. Cancelling the caller gives up the waiting.
        """
        current = asyncio.current_task()
        while tasks := [task for task in self._tasks if task is not current]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (exception := task.exception()) is not None:
            self._on_exception(task.get_name(), exception)
