"""Pieces of long work take turns: one slice in a pass of the loop, other work between two slices, and a piece that waits takes no turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from lowtide.broker.pending import Pending
from lowtide.broker.turns import Piece, Turns
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock


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


def test_a_piece_that_goes_on_is_finished_before_others_have_another_turn() -> None:
    async def main(loop: SimulatedLoop) -> None:
        turns, took = Turns(loop, SlowClock(loop)), list[str]()

        def steps(name: str, times: int) -> Iterator[None]:
            for _ in range(times):
                took.append(name)
                loop.call_soon(took.append, "other")
                yield None

        for name in ("a", "b", "c"):
            piece = Piece(steps(name, 2), fail)
            piece.goes_on = name == "b"
            turns.add(piece)
        await asyncio.sleep(1)
        assert took[::2] == ["a", "b", "b", "c", "a", "c"]
        assert took[1::2] == ["other"] * 6

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
