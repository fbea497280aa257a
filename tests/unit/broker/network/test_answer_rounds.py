"""Answers that are given in one step of the loop leave together, a send for each connection."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.broker.network.connection.answers import Answers

from .test_connection import PARK_PRODUCE, World, answer, frame, simulate


def test_answers_of_one_round_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of all requests that a follower's fetch completes: one system call and one wake-up for each client."""

    async def run(world: World) -> None:
        clients = [await world.client() for _ in range(2)]
        for _, writer in clients:
            for number in range(3):
                writer.write(frame(PARK_PRODUCE, number, b"%d" % number))
        await asyncio.sleep(0.5)
        sent: list[int] = []
        flush = Answers.flush
        monkeypatch.setattr(Answers, "flush", lambda answers: (sent.append(len(answers.ready)), flush(answers))[1])
        world.host.rounds.begin()
        for body, pending in world.dispatcher.parked:
            pending.complete(bytearray(body))
        assert sent == []
        world.host.rounds.end()
        assert sent == [3, 3]
        for reader, _ in clients:
            for number in range(3):
                assert await answer(reader) == (number, b"%d" % number)

    simulate(run)


def test_a_connection_that_can_not_send_is_closed_and_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(world: World) -> None:
        (broken, first), (whole, second) = [await world.client() for _ in range(2)]
        for writer in (first, second):
            writer.write(frame(PARK_PRODUCE, 7, b"x"))
            await asyncio.sleep(0.1)
        flush, reported, flushed = Answers.flush, list[str](), list[Answers]()

        def fail_first(answers: Answers) -> None:
            flushed.append(answers)
            if len(flushed) == 1:
                raise RuntimeError("a bug")
            flush(answers)

        monkeypatch.setattr(Answers, "flush", fail_first)
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: reported.append(str(context["exception"]))
        )
        world.host.rounds.begin()
        for body, pending in world.dispatcher.parked:
            pending.complete(bytearray(body))
        world.host.rounds.end()
        assert reported == ["a bug"]
        assert await answer(whole) == (7, b"x")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await answer(broken)

    simulate(run)
