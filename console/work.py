"""What a session has under way: answers that several requests share, plans that were rehearsed, deletes that run.

A plan is kept here and named by a number: what is carried out is what was shown, whatever the page sends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.errors import ClientClosedError

if TYPE_CHECKING:
    from lowtide.console.delete_job import DeleteJob
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry

PLANS_MAX: Final = 16
PLAN_AGE_MS_MAX: Final = 10 * 60_000
JOBS_MAX: Final = 50
RUNNING_MAX: Final = 4
ANSWERS_MAX: Final = 64
ANSWER_AGE_MS: Final = 1_000
"""How long an answer is used again: a hundred requests a second ask the cluster once."""

ASKING_MAX: Final = 8
"""Questions of one session that are under way at once; others wait."""


class _Plan(NamedTuple):
    plan: Any
    made_ms: int


class _Answer:
    """One question: its answer, or the task that asks."""

    __slots__ = ("at_ms", "task")

    def __init__(self, task: asyncio.Task[Any], at_ms: int) -> None:
        self.task = task
        self.at_ms = at_ms


class Work:
    """Of one session."""

    def __init__(self, clock: Clock, random: Random, tasks: TaskRegistry) -> None:
        self._clock = clock
        self._random = random
        self._tasks = tasks
        self._plans: OrderedDict[str, _Plan] = OrderedDict()
        self._answers: OrderedDict[tuple[str, ...], _Answer] = OrderedDict()
        self._turns = asyncio.Semaphore(ASKING_MAX)
        self.jobs: OrderedDict[str, DeleteJob] = OrderedDict()
        """By their ids, the oldest first."""
        self.speaks_lowtide: bool | None = None
        """Whether the brokers have Lowtide's own requests; None while that is unknown."""

    @property
    def is_busy(self) -> bool:
        """Whether something runs that must not be cut off."""
        return any(not job.is_over for job in self.jobs.values())

    # ------------------------------------------------------------------ plans
    def keep_plan(self, plan: Any) -> str:
        """Keep a plan for `PLAN_AGE_MS_MAX`; returns its id. Of too many the oldest goes."""
        while len(self._plans) >= PLANS_MAX:
            self._plans.popitem(last=False)
        plan_id = f"{self._random.getrandbits(128):032x}"
        self._plans[plan_id] = _Plan(plan, self._clock.monotonic_ms())
        return plan_id

    def take_plan(self, plan_id: str, kind: type[Any]) -> Any | None:
        """A plan, once; None where there is none of this kind, or it is too old."""
        kept = self._plans.get(plan_id)
        if kept is None or not isinstance(kept.plan, kind):
            return None
        del self._plans[plan_id]
        return kept.plan if self._clock.monotonic_ms() - kept.made_ms <= PLAN_AGE_MS_MAX else None

    # ------------------------------------------------------------------ deletes
    def has_room(self) -> bool:
        """Whether another delete may begin."""
        return sum(not job.is_over for job in self.jobs.values()) < RUNNING_MAX

    def begin(self, job_id: str, job: DeleteJob) -> None:
        """Run a delete; of too many that are over the oldest is forgotten."""
        while len(self.jobs) >= JOBS_MAX:
            del self.jobs[next(key for key, each in self.jobs.items() if each.is_over)]
        self.jobs[job_id] = job
        self._tasks.spawn(job.run(), name="a delete of the console")

    # ------------------------------------------------------------------ answers
    async def shared(self, key: tuple[str, ...], ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a question, which is asked once for all that want it within `ANSWER_AGE_MS`.

        Errors: those of `ask`.
        """
        now_ms = self._clock.monotonic_ms()
        kept = self._answers.get(key)
        if kept is None or (kept.task.done() and now_ms - kept.at_ms > ANSWER_AGE_MS) or kept.task.cancelled():
            while len(self._answers) >= ANSWERS_MAX:
                self._answers.popitem(last=False)
            kept = _Answer(self._tasks.spawn(self._asked(ask), name="a question of the console"), now_ms)
            self._answers[key] = kept
        outcome = await asyncio.shield(kept.task)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _asked(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer, or the error as a value: several may wait for it."""
        async with self._turns:
            try:
                return await ask()
            except asyncio.CancelledError:
                return ClientClosedError("the session has ended")
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                return error

    def forget_answers(self) -> None:
        """What was asked before a change is not the answer after it."""
        self._answers.clear()
