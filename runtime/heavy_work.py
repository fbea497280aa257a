"""Python work that takes seconds, in its own process, so that the event loop keeps the interpreter.

A thread would hold the interpreter 5 ms at a time and raise the 99th percentile of an echo from 1.2 to 15.9 ms.

The work is an importable function, `Work`: from files and some bytes it yields steps, each short, with messages. It
shares nothing with the broker but files. It may be cancelled between two steps, and ends with the broker. `processes`
has the real form, this module the simulated one, which runs the steps in the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.random import Random

NO_RATE_LIMIT = float("inf")


class WorkStep(NamedTuple):
    """A completed step."""

    moved_bytes: int
    """Bytes read and written, for a rate limit."""
    message: bytes | None = None
    """For the listener."""


Work: TypeAlias = Callable[[FileSystem, bytes], Iterator[WorkStep]]
"""A function of a module, by its name. Closing the iterator between two steps cleans up."""


class WorkFailedError(Exception):
    """The work raised an exception, or its process is gone."""


class WorkListener(Protocol):
    """Called in the event loop."""

    def on_message(self, message: bytes) -> None:
        """Receives the messages of the steps, in order."""

    def on_end(self, error: WorkFailedError | None) -> None:
        """Receives the outcome, once, when nothing of the work runs any more; None also after `cancel`."""


class RunningWork(Protocol):
    """Work that was started."""

    def cancel(self) -> None:
        """Runs no further step; `on_end` is still called."""


class HeavyWorker(Protocol):
    """Does heavy work elsewhere. Used from the event loop's thread only."""

    def begin(
        self, work: Work, argument: bytes, listener: WorkListener, bytes_per_second: float = NO_RATE_LIMIT
    ) -> RunningWork:
        """Starts the work, or queues it behind earlier work. The listener is never called before this returns."""

    def close(self) -> None:
        """Stops at once: running work is killed and `on_end` not called. Blocks; a second call does nothing."""


class SimulatedHeavyWorker:
    """The worker on virtual time: one step now and then, one work after the other. A dead broker ends the rest."""

    def __init__(
        self,
        filesystem: FileSystem,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        delay_range_ms: tuple[float, float] = (0.5, 40.0),
    ) -> None:
        """`delay_range_ms`, settable at any time, is the duration of a step."""
        self.delay_range_ms = delay_range_ms
        self._filesystem = filesystem
        self._loop = loop
        self._random = random
        self._waiting: list[_SimulatedWork] = []
        # All work that was begun. It is not collected, and so not closed, while the worker is in `SimulatedLoop.kept`.
        self._begun: list[Iterator[WorkStep]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def begin(
        self, work: Work, argument: bytes, listener: WorkListener, bytes_per_second: float = NO_RATE_LIMIT
    ) -> _SimulatedWork:
        assert not self._closed
        begun = _SimulatedWork(work(self._filesystem, argument), listener, bytes_per_second)
        self._begun.append(begun.steps)
        self._waiting.append(begun)
        self._wait(0.0)
        return begun

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()

    def _wait(self, paid_s: float) -> None:
        if self._timer is None and self._waiting:
            delay_s = self._random.uniform(*self.delay_range_ms) / 1000
            self._timer = self._loop.call_later(max(delay_s, paid_s), self._take_step)

    def _take_step(self) -> None:
        self._timer = None
        running = self._waiting[0]
        step: WorkStep | None = None
        error: WorkFailedError | None = None
        try:
            if running.is_cancelled:
                running.steps.close()  # type: ignore[attr-defined]  # of a generator
            else:
                step = next(running.steps, None)
        except Exception as failed:  # noqa: BLE001 - reported as the other process reports it
            error = WorkFailedError(repr(failed))
        if step is None:
            del self._waiting[0]
            self._wait(0.0)
            running.listener.on_end(error)
            return
        self._wait(step.moved_bytes / running.bytes_per_second)
        if step.message is not None:
            running.listener.on_message(step.message)


class _SimulatedWork:
    def __init__(self, steps: Iterator[WorkStep], listener: WorkListener, bytes_per_second: float) -> None:
        self.steps = steps
        self.listener = listener
        self.bytes_per_second = bytes_per_second
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
