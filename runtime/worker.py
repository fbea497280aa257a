"""Blocking or heavy work, done elsewhere and answered in the event loop.

For system calls and C code that release the GIL: cold reads, unlinking, large decompression. Python code runs here too
but takes the interpreter from the event loop; it is sliced or runs in another process.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from lowtide.runtime.committer import Completions
from lowtide.runtime.random import Random
from lowtide.runtime.threads import start_thread

T = TypeVar("T")
Job: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker(Protocol):
    """Does work elsewhere. Used from the event loop's thread only."""

    def submit(self, work: Callable[[], T], on_done: Callable[[T | BaseException], None]) -> None:
        """Runs `work` and then calls `on_done` in the event loop with its result, or with the exception it raised.

        Never before `submit` has returned. Work items overlap and end in any order.
        """

    def close(self) -> None:
        """Finishes what was submitted, calls every `on_done`, and stops. Blocks; a second call does nothing."""


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - it is the caller's to judge
        return error


class ThreadWorker:
    """A few threads that live as long as the broker. Submitters bound the queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 2, name: str = "worker") -> None:
        assert threads > 0
        self._completions = Completions(loop)
        self._submitted: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            start_thread(thread)

    def submit(self, work: Callable[[], T], on_done: Callable[[T | BaseException], None]) -> None:
        assert not self._closed
        self._submitted.put((work, on_done))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._submitted.put(None)
            for thread in self._threads:
                thread.join()
            self._completions.run()

    def _run(self) -> None:
        while (job := self._submitted.get()) is not None:
            work, on_done = job
            self._completions.add([(on_done, _outcome(work))])
            # A waiting thread must keep neither the last job's files open nor its result alive.
            del job, work, on_done


async def done_by(worker: Worker, work: Callable[[], T]) -> T:
    """Returns the result of `work`, done elsewhere. Errors: whatever it raises."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def on_done(outcome: T | BaseException) -> None:
        if answer.done():
            return
        if isinstance(outcome, BaseException):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    worker.submit(work, on_done)
    return await answer


class SimulatedWorker:
    """A worker on virtual time: work is done and answered after delays in `delay_range_ms`, settable at any time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, random: Random, delay_range_ms: tuple[float, float] = (0.02, 2.0)
    ) -> None:
        self.delay_range_ms = delay_range_ms
        self._loop = loop
        self._random = random
        self._closed = False
        self._number = 0
        # The next step of each work item, with its timer; in the order of submission.
        self._steps: dict[int, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}

    def submit(self, work: Callable[[], T], on_done: Callable[[T | BaseException], None]) -> None:
        assert not self._closed
        self._number += 1
        self._schedule(self._number, partial(self._do, self._number, work, on_done))

    def close(self) -> None:
        self._closed = True
        while self._steps:
            timer, step = next(iter(self._steps.values()))
            timer.cancel()
            step()

    def _schedule(self, number: int, step: Callable[[], None]) -> None:
        delay_ms = self._random.uniform(*self.delay_range_ms) / 2
        self._steps[number] = (self._loop.call_later(delay_ms / 1000, step), step)

    def _do(self, number: int, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        self._schedule(number, partial(self._answer, number, on_done, _outcome(work)))

    def _answer(self, number: int, on_done: Callable[[Any], None], outcome: Any) -> None:
        del self._steps[number]
        on_done(outcome)
