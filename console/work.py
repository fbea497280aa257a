"""The work of a session: shared answers, rehearsed plans, running deletes and erasures.

Plans are kept here by id, so that a change carries out exactly what was shown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.errors import ClientClosedError

if TYPE_CHECKING:
    from lowtide.console.delete_job import DeleteJob
    from lowtide.console.person_erasure import PersonErasure
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry

PLANS_MAX: Final = 16
PLAN_AGE_MS_MAX: Final = 10 * 60_000
JOBS_MAX: Final = 50
ERASURES_MAX: Final = 20
RUNNING_MAX: Final = 4
ANSWERS_MAX: Final = 64
ANSWER_AGE_MS: Final = 1_000
"""How long requests share an answer of the cluster."""

ASKING_MAX: Final = 8
"""Concurrent calls of a session to the cluster; others wait."""


class _Plan(NamedTuple):
    plan: Any
    made_ms: int


class _SharedAnswer(NamedTuple):
    """The task whose result is the answer, and when it began."""

    task: asyncio.Task[Any]
    at_ms: int


class SessionWork:
    """The plans, deletes and answers of one session."""

    def __init__(self, clock: Clock, random: Random, tasks: TaskRegistry) -> None:
        self._clock = clock
        self._random = random
        self._tasks = tasks
        self._plans: OrderedDict[str, _Plan] = OrderedDict()
        self._answers: OrderedDict[tuple[str, ...], _SharedAnswer] = OrderedDict()
        self._next_change = asyncio.Event()
        self._turns = asyncio.Semaphore(ASKING_MAX)
        self.jobs: OrderedDict[str, DeleteJob] = OrderedDict()
        """Deletes by id, the oldest first."""
        self.erasures: OrderedDict[str, PersonErasure] = OrderedDict()
        """Erasures of persons by id, the oldest first."""
        self._searches: dict[str, asyncio.Task[None]] = {}
        self.speaks_lowtide: bool | None = None
        """Whether the brokers know Lowtide's own requests; None while that is unknown."""

    @property
    def is_busy(self) -> bool:
        """Whether a delete, a search or an erasure is running."""
        deletes, erasures = self.jobs.values(), self.erasures.values()
        return any(not job.is_over for job in deletes) or any(not job.is_over for job in erasures)

    def wall_ms(self) -> int:
        """Returns the time of the console's machine."""
        return self._clock.wall_ms()

    # ------------------------------------------------------------------ plans
    def keep_plan(self, plan: Any) -> str:
        """Keeps a plan for `PLAN_AGE_MS_MAX`; returns its id. Too many plans drop the oldest."""
        while len(self._plans) >= PLANS_MAX:
            self._plans.popitem(last=False)
        plan_id = f"{self._random.getrandbits(128):032x}"
        self._plans[plan_id] = _Plan(plan, self._clock.monotonic_ms())
        return plan_id

    def take_plan(self, plan_id: str, kind: type[Any]) -> Any | None:
        """Removes and returns a plan; None if it is unknown, of another kind or too old."""
        kept = self._plans.get(plan_id)
        if kept is None or not isinstance(kept.plan, kind):
            return None
        del self._plans[plan_id]
        return kept.plan if self._clock.monotonic_ms() - kept.made_ms <= PLAN_AGE_MS_MAX else None

    # ------------------------------------------------------------------ deletes
    def has_room(self) -> bool:
        """Returns whether another delete may begin."""
        return sum(not job.is_over for job in self.jobs.values()) < RUNNING_MAX

    def begin(self, job_id: str, job: DeleteJob) -> None:
        """Runs a delete. Too many finished ones drop the oldest."""
        while len(self.jobs) >= JOBS_MAX:
            del self.jobs[next(key for key, each in self.jobs.items() if each.is_over)]
        self.jobs[job_id] = job
        self._tasks.spawn(job.run(), name="a delete of the console")

    # ------------------------------------------------------------------ erasures
    def begin_search(self, erasure_id: str, job: PersonErasure) -> None:
        """Runs a search. Too many erasures drop the oldest that is over."""
        while len(self.erasures) >= ERASURES_MAX:
            oldest = next(key for key, each in self.erasures.items() if each.is_over)
            del self.erasures[oldest]
            self.cancel_search(oldest)
        self.erasures[erasure_id] = job
        self._searches[erasure_id] = self._tasks.spawn(job.search(), name="a search of the console")

    def cancel_search(self, erasure_id: str) -> None:
        """Cancels a search, or the wait for what follows it."""
        task = self._searches.pop(erasure_id, None)
        if task is not None:
            task.cancel()

    def begin_erasing(self, erasure_id: str) -> None:
        """Runs the erasure of what a search has found."""
        self.cancel_search(erasure_id)
        self._tasks.spawn(self.erasures[erasure_id].erase(), name="an erasure of the console")

    def end(self) -> None:
        """Forgets plans and keys, when the session ends. What runs ends with the session's client."""
        self._plans.clear()
        for erasure_id, job in self.erasures.items():
            self.cancel_search(erasure_id)
            job.forget()

    # ------------------------------------------------------------------ answers
    async def shared(self, key: tuple[str, ...], ask: Callable[[], Awaitable[Any]]) -> Any:
        """Returns an answer; requests within `ANSWER_AGE_MS` share it. Errors: those of `ask`."""
        now_ms = self._clock.monotonic_ms()
        kept = self._answers.get(key)
        if kept is None or (kept.task.done() and now_ms - kept.at_ms > ANSWER_AGE_MS) or kept.task.cancelled():
            while len(self._answers) >= ANSWERS_MAX:
                self._answers.popitem(last=False)
            kept = _SharedAnswer(self._tasks.spawn(self._asked(ask), name="a question of the console"), now_ms)
            self._answers[key] = kept
        outcome = await asyncio.shield(kept.task)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _asked(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the answer, or the error as a value, because several requests may wait for it."""
        async with self._turns:
            try:
                return await ask()
            except asyncio.CancelledError:
                return ClientClosedError("the session has ended")
            except Exception as error:  # noqa: BLE001 - raised by the callers
                return error

    def forget_answers(self) -> None:
        """Drops shared answers, after a change by this visitor, and ends the pauses of streams (`next_change`)."""
        self._answers.clear()
        self._next_change.set()
        self._next_change = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Returns what is set when this visitor changes something."""
        return self._next_change
