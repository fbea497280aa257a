"""Long work takes turns: one slice in a pass of the loop, and other work between two slices."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.handlers import describe_producers
from lowtide.broker.pending import Pending
from lowtide.broker.promises import answer_of
from lowtide.broker.turns import (
    APART_MS,
    IDLE_PASS_NS,
    OWN_SLICE_MS,
    SLICE_MS,
    Pacing,
    Piece,
    Turns,
    raise_error,
)
from lowtide.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.storage.log.producers.producer_snapshot import ProducerEntry


class SlowClock(SimulatedClock):
    """A millisecond passes with each reading: a slice is one step."""

    _looks = 0

    def monotonic_ms(self) -> int:
        self._looks += 1
        return super().monotonic_ms() + self._looks


def fail(error: Exception) -> None:
    raise AssertionError from error


def test_pieces_take_steps_in_turn_and_the_loop_is_free_between_two() -> None:
    async def main(loop: SimulatedLoop) -> None:
        turns, took = Turns(loop, SlowClock(loop)), list[str]()

        def steps(name: str) -> Iterator[None]:
            for _ in range(3):
                took.append(name)
                loop.call_soon(took.append, "other")
                yield None

        for name in ("a", "b"):
            turns.add(Piece(steps(name), fail))
        await asyncio.sleep(1)
        assert took == ["a", "other", "b", "other"] * 3
        assert len(turns) == 0

    run_simulation(main, 1)


def test_a_piece_that_waits_or_was_dropped_has_no_turn_and_one_that_fails_ends_alone() -> None:
    async def main(loop: SimulatedLoop) -> None:
        turns, took, failed = Turns(loop, SlowClock(loop)), list[str](), list[Exception]()
        answer: Pending[int] = Pending()

        def waits() -> Iterator[Pending[int] | None]:
            yield answer
            took.append("answered")

        def fails() -> Iterator[None]:
            yield None
            message = "a bug"
            raise ValueError(message)

        def never() -> Iterator[None]:
            took.append("never")
            yield None

        dropped = Piece(never(), fail)
        pieces: list[Any] = [Piece(waits(), fail), Piece(fails(), failed.append), dropped]
        for piece in pieces:
            turns.add(piece)
        dropped.drop()
        await asyncio.sleep(1)
        assert took == []
        assert [str(error) for error in failed] == ["a bug"]
        answer.complete(7)
        await asyncio.sleep(1)
        assert took == ["answered"]

    run_simulation(main, 1)


class CountingClock:
    """A millisecond passes between two readings."""

    def __init__(self, step_ms: int = 1, pass_ns: int = 1_000_000) -> None:
        self.monotonic_ms = itertools.count(0, step_ms).__next__
        self.monotonic_ns = itertools.count(0, pass_ns).__next__
        self.wall_ms = self.monotonic_ms


class Log:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def error(self, _event: str, *, exc_info: BaseException) -> None:
        self.errors.append(exc_info)


def turns(loop: Any = None, log: Any = None) -> Turns:
    return Turns(loop, CountingClock(), log or Log())


def steps(taken: list[int], count: int, error: Exception | None = None) -> Generator[None, None, str]:
    for number in range(count):
        taken.append(number)
        yield
    if error is not None:
        raise error
    return "done"


def test_a_short_answer_is_there_at_once() -> None:
    """Also without an event loop."""
    assert turns().answer(steps([], SLICE_MS - 1)) == "done"


def test_others_have_their_turn_between_two_slices() -> None:
    async def main(loop: SimulatedLoop) -> None:
        taken: list[int] = []
        answer: Any = turns(loop).answer(steps(taken, 10))
        progress = [len(taken)]
        while not answer.done:
            await asyncio.sleep(0.0005)
            progress.append(len(taken))
        assert progress[0] == SLICE_MS
        assert max(after - before for before, after in itertools.pairwise(progress)) == SLICE_MS
        assert await answer_of(answer) == "done"

    run_simulation(main, 1)


def test_nothing_more_is_done_for_a_client_that_is_gone() -> None:
    async def main(loop: SimulatedLoop) -> None:
        taken: list[int] = []
        answer: Any = turns(loop).answer(steps(taken, 10))
        answer.abandon()
        await asyncio.sleep(1)
        assert len(taken) == SLICE_MS

    run_simulation(main, 1)


def test_a_bug_in_a_later_slice_is_reported_and_ends_the_request() -> None:
    async def main(loop: SimulatedLoop) -> None:
        log, bug = Log(), RuntimeError("bug")
        answer: Any = turns(loop, log).answer(steps([], 10, bug))
        assert await answer_of(answer) is None
        assert log.errors == [bug]

    run_simulation(main, 1)


def test_a_bug_in_the_first_slice_is_the_connections_to_report() -> None:
    with pytest.raises(RuntimeError, match="bug"):
        turns().answer(steps([], 0, RuntimeError("bug")))


def test_what_is_asked_in_slices_answers_when_the_last_of_it_does() -> None:
    async def main(loop: SimulatedLoop) -> None:
        answer, taken = Pending[str](), list[int]()
        turns(loop).ask(answer, asking(taken, 10, answer))
        assert 0 < len(taken) < 10
        assert await answer_of(answer) == "all"
        assert len(taken) == 10

    run_simulation(main, 1)


def test_what_is_asked_in_slices_ends_with_its_client_and_with_a_bug() -> None:
    async def main(loop: SimulatedLoop) -> None:
        answer, taken = Pending[str](), list[int]()
        turns(loop).ask(answer, asking(taken, 10, answer))
        answer.abandon()
        await asyncio.sleep(1)
        assert len(taken) < 10
        log, bug = Log(), RuntimeError("bug")
        answer = Pending()
        turns(loop, log).ask(answer, asking([], 10, answer, bug))
        assert await answer_of(answer) is None
        assert log.errors == [bug]

    run_simulation(main, 1)


def asking(
    taken: list[int], count: int, answer: Pending[str], error: Exception | None = None
) -> Generator[None, None, bool]:
    yield from steps(taken, count, error)
    answer.complete("all")
    return True


def test_a_wait_for_a_walk_ends_with_it_and_receives_a_bug() -> None:
    async def main(loop: SimulatedLoop) -> None:
        walked: list[int] = []
        await turns(loop).walk(steps(walked, 10))
        assert len(walked) == 10
        with pytest.raises(RuntimeError, match="bug"):
            await turns(loop).walk(steps([], 10, RuntimeError("bug")))

    run_simulation(main, 1)


def test_very_many_producers_are_described_in_slices() -> None:
    """All of them, in order, although some are removed meanwhile."""
    producers = {number: ProducerEntry(1, [], 5, 5) for number in range(10_000)}
    partition = SimpleNamespace(log=SimpleNamespace(producer_state=SimpleNamespace(producers=producers)))
    broker: Any = SimpleNamespace(
        log=Log(),
        metadata=SimpleNamespace(image=SimpleNamespace(topics={"a": None})),
        replicas=SimpleNamespace(find=lambda _topic, _partition: partition),
    )
    request = DescribeProducersRequest(
        topics=[DescribeProducersTopicRequest(name="a", partition_indexes=list(range(3)))]
    )

    async def main(loop: SimulatedLoop) -> None:
        broker.turns = turns(loop)
        handle = describe_producers.handler(broker).handle
        assert handle is not None
        answer = handle(request, None)
        assert isinstance(answer, Pending)
        passes = 0
        while not answer.done:
            passes += 1
            producers.pop(10_000 - passes, None)
            await asyncio.sleep(0.0005)
        assert passes >= 3 * 10_000 // describe_producers.PRODUCERS_A_STEP // SLICE_MS - 1
        response: DescribeProducersResponse | None = await answer_of(answer)
        assert response is not None
        (topic,) = response.topics
        assert [row.partition_index for row in topic.partitions] == [0, 1, 2]
        ids = [producer.producer_id for producer in topic.partitions[0].active_producers]
        assert ids == list(range(10_000))

    run_simulation(main, 1)


@pytest.mark.parametrize(
    ("pass_ns", "begun_ms"), [(IDLE_PASS_NS, [0, 4, 8, 8, 8]), (IDLE_PASS_NS - 1, [0, 0, 0, 0, 0])]
)
def test_pieces_that_ask_for_a_rest_leave_a_busy_loop_for_so_long_after_each_slice(
    pass_ns: int, begun_ms: list[int]
) -> None:
    """A loop with nothing else to do has no rest."""

    async def main(loop: SimulatedLoop) -> None:
        took: list[float] = []
        done = asyncio.Event()
        rests = iter([4, 4, 0, 0])
        work = Turns(loop, CountingClock(pass_ns=pass_ns), rest_ms=lambda: next(rests, 0))
        steps = (took.append(round(loop.time() * 1000)) for _ in range(5 * OWN_SLICE_MS))
        work.run(steps, lambda _: done.set(), raise_error)
        await done.wait()
        began = took[0]
        assert [at - began for at in took[::OWN_SLICE_MS]] == begun_ms

    run_simulation(main, 1)


class Lines:
    """A log that counts errors."""

    errors = 0

    def error(self, _event: str, **_values: object) -> None:
        self.errors += 1


class WorkingClock(SimulatedClock):
    """Work takes time: half a millisecond for each time it is done."""

    worked = 0

    def work(self) -> int:
        self.worked += 1
        return self.worked

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.worked // 2


def test_one_now_and_then_is_carried_out_at_once() -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock = WorkingClock(loop)
        pacing = Pacing(Turns(loop, clock, Lines()))
        for number in range(1, 4):
            assert pacing.carry_out(clock.work) == number
            await asyncio.sleep(APART_MS / 1000)

    run_simulation(main, 1)


def test_many_together_leave_the_loop_half_of_the_time() -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock = WorkingClock(loop)
        pacing = Pacing(Turns(loop, clock, Lines()))
        answers = [pacing.carry_out(clock.work) for _ in range(41)]
        assert clock.worked == 1
        began_s, others = loop.time(), 0
        while not all(not isinstance(answer, Pending) or answer.done for answer in answers):
            others += 1
            await asyncio.sleep(0.001)
        rested_ms = (loop.time() - began_s) * 1000
        assert rested_ms >= clock.worked / 2 - 2, "as long as they worked"
        assert others > 10
        assert [answer.response if isinstance(answer, Pending) else answer for answer in answers] == list(range(1, 42))

    run_simulation(main, 1)


def test_an_answer_that_is_not_there_yet_is_waited_for_and_a_client_that_goes_is_not_served() -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock, log = WorkingClock(loop), Lines()
        pacing = Pacing(Turns(loop, clock, log))
        later: list[Pending[int]] = []

        def ask() -> Pending[int]:
            later.append(Pending())
            return later[-1]

        def fail() -> int:
            message = "a bug"
            raise ValueError(message)

        pacing.carry_out(clock.work)
        waiting, gone, left, failed = (pacing.carry_out(act) for act in (ask, partial(ask), ask, fail))
        assert isinstance(waiting, Pending)
        assert isinstance(gone, Pending)
        assert isinstance(left, Pending)
        assert isinstance(failed, Pending)
        gone.abandon()
        await asyncio.sleep(1)
        assert len(later) == 2
        later[0].complete(7)
        assert (waiting.done, waiting.response) == (True, 7)
        left.abandon()
        assert later[1].abandoned
        assert (failed.done, failed.response, log.errors) == (True, None, 1)

    run_simulation(main, 1)
