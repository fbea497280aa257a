"""Plans are carried out once and in time; a question is asked once for all that want its answer."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from lowtide.admin.errors import AdminError
from lowtide.console.work import ANSWER_AGE_MS, ANSWERS_MAX, PLAN_AGE_MS_MAX, PLANS_MAX, SessionWork
from lowtide.runtime.tasks import TaskRegistry


class FakeClock:
    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


def new_work() -> tuple[SessionWork, FakeClock]:
    clock = FakeClock()
    return SessionWork(clock, Random(1), TaskRegistry(lambda name, error: None)), clock


def test_a_plan_is_taken_once():
    work, _ = new_work()
    plan_id = work.keep_plan("plan")
    assert work.take_plan(plan_id, int) is None
    assert work.take_plan(plan_id, str) == "plan"
    assert work.take_plan(plan_id, str) is None


def test_an_old_plan_is_none():
    work, clock = new_work()
    plan_id = work.keep_plan("plan")
    clock.now_ms = PLAN_AGE_MS_MAX + 1
    assert work.take_plan(plan_id, str) is None


def test_plans_are_bounded():
    work, _ = new_work()
    ids = [work.keep_plan(str(number)) for number in range(PLANS_MAX + 1)]
    assert work.take_plan(ids[0], str) is None
    assert work.take_plan(ids[1], str) == "1"


async def test_a_question_is_asked_once():
    work, clock = new_work()
    asked = []

    async def ask() -> int:
        asked.append(clock.now_ms)
        await asyncio.sleep(0)
        return len(asked)

    assert await asyncio.gather(*(work.shared(("view",), ask) for _ in range(100))) == [1] * 100
    clock.now_ms = ANSWER_AGE_MS + 1
    assert await work.shared(("view",), ask) == 2
    assert await work.shared(("other",), ask) == 3
    work.forget_answers()
    assert await work.shared(("view",), ask) == 4


async def test_every_one_that_waits_gets_the_error():
    work, _ = new_work()

    async def ask() -> int:
        raise AdminError("no")

    found = await asyncio.gather(*(work.shared(("view",), ask) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["no"] * 3


async def test_a_visitor_who_leaves_does_not_take_the_answer_with_it():
    work, _ = new_work()
    go = asyncio.Event()

    async def ask() -> str:
        await go.wait()
        return "answer"

    first = asyncio.create_task(work.shared(("view",), ask))
    second = asyncio.create_task(work.shared(("view",), ask))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await second == "answer"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_answers_are_bounded():
    work, _ = new_work()

    async def ask() -> int:
        return 1

    for number in range(ANSWERS_MAX * 3):
        await work.shared((str(number),), ask)
    assert len(work._answers) <= ANSWERS_MAX
