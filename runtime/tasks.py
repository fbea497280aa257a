"""The only place that starts asyncio tasks: each has a name, is kept alive, and its exception is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskRegistry:
    """The tasks of one owner, which ends them with `cancel_all`.

    `on_exception` gets the name and the exception of each failed task. Cancellation is not a failure. A caller that
    awaits a spawned task gets the exception too.
    """

    __slots__ = ("_on_exception", "_tasks")

    def __init__(self, on_exception: Callable[[str, BaseException], None]) -> None:
        self._on_exception = on_exception
        # Ordered, so that tasks are cancelled in the order of their start, the same in every run.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Starts the coroutine as a task of the running loop."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    async def cancel_all(self) -> None:
        """Cancels every task, except the caller's own, and waits for their end.

        Tasks started by ending ones are cancelled too. Cancelling the caller stops the wait.
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
