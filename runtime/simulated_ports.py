"""The clock and the committer of a simulation, on the virtual time of its event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from lowtide.runtime.committer import CLOSING_RETRIES, RETRY_S, Barrier, CommitFigures, OnDone, Round, call_all
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.random import Random

SIMULATION_WALL_START_MS: Final = 1_700_000_000_000
"""The start of a simulation's wall clock (14 November 2023): far from zero, so that a forgotten 0 stands out."""


class SimulatedClock:
    """The simulated loop's time. Setting `wall_offset_ms` makes the wall clock jump."""

    __slots__ = ("_loop", "_wall_start_ms", "wall_offset_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, wall_start_ms: int = SIMULATION_WALL_START_MS) -> None:
        self._loop = loop
        self._wall_start_ms = wall_start_ms
        self.wall_offset_ms = 0

    def monotonic_ms(self) -> int:
        # Rounded to microseconds before it is cut to milliseconds: a timer set for 1.005 s fires at a slightly smaller
        # float. Cut to 1004 ms, a deadline would not be reached yet, at a virtual time that no longer moves.
        return round(self._loop.time() * 1_000_000) // 1000

    def monotonic_ns(self) -> int:
        return round(self._loop.time() * 1_000_000) * 1000

    def wall_ms(self) -> int:
        return self._wall_start_ms + self.wall_offset_ms + self.monotonic_ms()

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000


class SimulatedCommitter:
    """A committer on virtual time. A round takes `delay_range_ms`, settable at any time; its effect falls within.

    So a crash may find submitted barriers not yet durable, or durable and not yet answered.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        delay_range_ms: tuple[float, float] = (0.05, 2.0),
    ) -> None:
        self.delay_range_ms = delay_range_ms
        self._filesystem = filesystem
        self._loop = loop
        self._random = random
        self._submitted: deque[tuple[Barrier, OnDone]] = deque()
        self._taken: list[tuple[Barrier, OnDone]] = []
        self._round: Round | None = None
        self._outcomes: list[OSError | None] = []
        self._step: asyncio.TimerHandle | asyncio.Handle | None = None
        self._began_s = 0.0
        self._syncs = 0
        self.figures = CommitFigures()
        self._failure: OSError | None = None
        self._closing = self._closed = False

    def submit(self, barrier: Barrier, on_done: OnDone) -> None:
        assert not self._closed
        self.figures.submitted += 1
        self._submitted.append((barrier, on_done))
        if self._step is None and not self._closing:
            self._step = self._loop.call_soon(self._begin_round)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._step is not None:
            self._step.cancel()
            self._step = None
        if self._taken and not self._outcomes:
            self._outcomes = self._commit_to_the_end()
        self._answer()
        while self._submitted:
            self._taken = list(self._submitted)
            self._submitted.clear()
            self._outcomes = self._commit_to_the_end()
            self._answer()
        self._closed = True

    def _begin_round(self) -> None:
        self._taken = list(self._submitted)
        self._submitted.clear()
        self._began_s = self._loop.time()
        delay_ms = self._random.uniform(*self.delay_range_ms)
        until_effect_ms = self._random.random() * delay_ms
        self._step = self._loop.call_later(until_effect_ms / 1000, self._take_effect, delay_ms - until_effect_ms)

    def _take_effect(self, until_answer_ms: float) -> None:
        outcomes = self._commit()
        if outcomes is None:
            self._step = self._loop.call_later(RETRY_S, self._take_effect, until_answer_ms)
            return
        self._outcomes = outcomes
        self._step = self._loop.call_later(until_answer_ms / 1000, self._end_round)

    def _end_round(self) -> None:
        self._step = None
        self._answer()
        if self._submitted and self._step is None and not self._closed:
            self._step = self._loop.call_soon(self._begin_round)

    def _commit(self) -> list[OSError | None] | None:
        """Returns the outcomes of the taken barriers; None if the round must run again."""
        if self._failure is not None:
            return [self._failure] * len(self._taken)
        if self._round is None:
            self._round = Round(self._filesystem, [barrier for barrier, _ in self._taken])
        if not self._round.run():
            return None
        done, self._round = self._round, None
        self._failure = done.failure
        self._syncs = done.syncs
        return done.outcomes

    def _commit_to_the_end(self) -> list[OSError | None]:
        for _ in range(CLOSING_RETRIES):
            outcomes = self._commit()
            if outcomes is not None:
                return outcomes
        assert self._round is not None
        self._round.give_up()
        done, self._round = self._round, None
        self._failure = done.failure
        return done.outcomes

    def _answer(self) -> None:
        took_ns = round((self._loop.time() - self._began_s) * 1e6) * 1000
        syncs, self._syncs = self._syncs, 0
        self.figures.note(len(self._taken), syncs, took_ns)
        calls = [(on_done, outcome) for (_, on_done), outcome in zip(self._taken, self._outcomes, strict=True)]
        self._taken, self._outcomes = [], []
        call_all(self._loop, calls)
