"""Responses that are built a slice at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.handlers import describe_producers
from lowtide.broker.pending import Pending
from lowtide.broker.promises import answer_of
from lowtide.broker.slices import (
    IDLE_PASS_NS,
    OWN_SLICE_MS,
    SlicedWork,
    answer_in_slices,
    ask_in_slices,
    taken,
    walk_in_slices,
)
from lowtide.broker.turns import SLICE_MS, Turns
from lowtide.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.log.producers.producer_snapshot import ProducerEntry


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


def turns(loop: Any = None, clock: Any = None) -> Turns:
    return Turns(loop, clock or CountingClock())


def steps(taken: list[int], count: int, error: Exception | None = None) -> Generator[None, None, str]:
    for number in range(count):
        taken.append(number)
        yield
    if error is not None:
        raise error
    return "done"


def test_a_short_answer_is_there_at_once() -> None:
    """Also without an event loop."""
    assert answer_in_slices(turns(), Log(), steps([], SLICE_MS - 1)) == "done"


def test_others_have_their_turn_between_two_slices() -> None:
    async def main(loop: SimulatedLoop) -> None:
        taken: list[int] = []
        answer: Any = answer_in_slices(turns(loop), Log(), steps(taken, 10))
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
        answer: Any = answer_in_slices(turns(loop), Log(), steps(taken, 10))
        answer.abandon()
        await asyncio.sleep(1)
        assert len(taken) == SLICE_MS

    run_simulation(main, 1)


def test_a_bug_in_a_later_slice_is_reported_and_ends_the_request() -> None:
    async def main(loop: SimulatedLoop) -> None:
        log, bug = Log(), RuntimeError("bug")
        answer: Any = answer_in_slices(turns(loop), log, steps([], 10, bug))
        assert await answer_of(answer) is None
        assert log.errors == [bug]

    run_simulation(main, 1)


def test_a_bug_in_the_first_slice_is_the_connections_to_report() -> None:
    with pytest.raises(RuntimeError, match="bug"):
        answer_in_slices(turns(), Log(), steps([], 0, RuntimeError("bug")))


def test_what_is_asked_in_slices_answers_when_the_last_of_it_does() -> None:
    async def main(loop: SimulatedLoop) -> None:
        answer, taken = Pending[str](), list[int]()
        ask_in_slices(turns(loop), Log(), answer, asking(taken, 10, answer))
        assert 0 < len(taken) < 10
        assert await answer_of(answer) == "all"
        assert len(taken) == 10

    run_simulation(main, 1)


def test_what_is_asked_in_slices_ends_with_its_client_and_with_a_bug() -> None:
    async def main(loop: SimulatedLoop) -> None:
        answer, taken = Pending[str](), list[int]()
        ask_in_slices(turns(loop), Log(), answer, asking(taken, 10, answer))
        answer.abandon()
        await asyncio.sleep(1)
        assert len(taken) < 10
        log, bug = Log(), RuntimeError("bug")
        answer = Pending()
        ask_in_slices(turns(loop), log, answer, asking([], 10, answer, bug))
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
        await walk_in_slices(turns(loop), steps(walked, 10))
        assert len(walked) == 10
        with pytest.raises(RuntimeError, match="bug"):
            await walk_in_slices(turns(loop), steps([], 10, RuntimeError("bug")))

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


def test_rows_are_taken_in_their_order_and_let_go() -> None:
    rows = list(range(7))
    left: list[int] = []
    parts = []
    for some in taken(rows, 3):
        parts.append(some)
        left.append(len(rows))
    assert (parts, left, rows) == ([[0, 1, 2], [3, 4, 5], [6]], [4, 1, 0], [])


def test_no_rows_are_taken_from_none() -> None:
    assert list(taken([], 3)) == []


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
        work = SlicedWork(loop, CountingClock(pass_ns=pass_ns), done.set, lambda: next(rests, 0))
        work.extend(lambda: took.append(round(loop.time() * 1000)) for _ in range(5 * OWN_SLICE_MS))
        work.begin()
        await done.wait()
        began = took[0]
        assert [at - began for at in took[::OWN_SLICE_MS]] == begun_ms

    run_simulation(main, 1)
