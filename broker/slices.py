"""Runs long work on the event loop in slices, so that other work is not delayed.

Work of requests takes turns (`turns`): one slice per pass of the loop, however many there are. The broker's own work
(`run_in_slices`, `SlicedWork`) does not wait for them: there is one of each kind at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

from lowtide.broker.pending import Pending
from lowtide.broker.turns import Piece, Steps, Turns
from lowtide.runtime.clock import Clock

ResponseT = TypeVar("ResponseT")
RowT = TypeVar("RowT")

OWN_SLICE_MS = 2
"""The length of a slice of the broker's own work; longer steps are not interrupted."""

IDLE_PASS_NS = 10_000
"""A shorter pass of the loop had no request: the smallest takes longer, an empty pass about a microsecond."""

PARTITIONS_AT_ONCE = 1_000
"""Larger requests run in slices: this many partitions take about five milliseconds."""

PARTITIONS_OF_A_STEP = 50
"""About a fifth of a millisecond of work."""

_END = object()

PARTITIONS_IN_SLICES_MAX = 100_000
"""The maximum number of partitions of all requests in slices, including waiting ones: about fifty megabytes."""


def _no_rest() -> int:
    return 0


def run_in_slices(
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    steps: Iterator[object],
    on_done: Callable[[], None],
    rest_ms: Callable[[], int] = _no_rest,
) -> None:
    """Runs `steps` in slices, the first one at once, then calls `on_done`.

    Other work runs between two slices. `rest_ms` returns the pause after a slice, which applies only if other work was
    ready.
    """
    until_ms = clock.monotonic_ms() + OWN_SLICE_MS
    for _step in steps:
        if clock.monotonic_ms() >= until_ms:
            pause_ms = rest_ms()
            go_on = partial(run_in_slices, loop, clock, steps, on_done, rest_ms)
            if pause_ms:
                loop.call_soon(_rest, loop, clock, clock.monotonic_ns(), pause_ms / 1000, go_on)
            else:
                loop.call_soon(go_on)
            return
    on_done()


def _rest(
    loop: asyncio.AbstractEventLoop, clock: Clock, since_ns: int, rest_s: float, go_on: Callable[[], None]
) -> None:
    """Ends a pass of the loop that began at `since_ns`."""
    if clock.monotonic_ns() - since_ns < IDLE_PASS_NS:
        go_on()
    else:
        loop.call_later(rest_s, go_on)


def taken(rows: list[RowT], count: int) -> Iterator[list[RowT]]:
    """Yields the rows in lists of `count`, and removes them from `rows` to free memory."""
    rows.reverse()
    while rows:
        some = rows[: -count - 1 : -1]
        del rows[-count:]
        yield some


async def walk_in_slices(turns: Turns, steps: Iterator[object]) -> None:
    """Runs `steps`: the first slice at once, the others in turns with other work."""
    walked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(_: None) -> None:
        if not walked.done():
            walked.set_result(None)

    def on_failed(error: Exception) -> None:
        if not walked.done():
            walked.set_exception(error)

    piece = turns.run(_each(steps), on_done, on_failed)
    if piece is not None:
        try:
            await walked
        finally:
            piece.drop()


def _each(steps: Iterator[object]) -> Generator[None, None, None]:
    for _step in steps:
        yield


def run_in_turns(
    turns: Turns, steps: Iterator[object], on_done: Callable[[], None], on_failed: Callable[[Exception], None]
) -> None:
    """Runs `steps` like `walk_in_slices`, then calls `on_done` or `on_failed`."""
    turns.run(_each(steps), lambda _: on_done(), on_failed)


def answer_in_slices(turns: Turns, log: Any, steps: Generator[None, None, ResponseT]) -> ResponseT | Pending[ResponseT]:
    """Returns the result of `steps` if one slice is enough, otherwise a promise.

    The steps end when the client disconnects.
    """
    pending: Pending[ResponseT] = Pending()

    def on_failed(error: Exception) -> None:  # An unexpected error closes one connection.
        log.error("request failed", exc_info=error)
        pending.fail()

    piece = turns.run(steps, pending.complete, on_failed)
    if piece is None:
        return cast("ResponseT", pending.response)
    pending.on_abandoned = piece.drop
    return pending


class SlicedWork:
    """Pieces of work that run in order, in slices. A piece can add others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_done: Callable[[], None],
        rest_ms: Callable[[], int] = _no_rest,
    ) -> None:
        """Calls `on_done` whenever no work is left. `rest_ms`: see `run_in_slices`."""
        self._loop = loop
        self._clock = clock
        self._on_done = on_done
        self._rest_ms = rest_ms
        self._pieces: deque[Callable[[], None]] = deque()
        self._is_begun = False

    @property
    def waits(self) -> bool:
        """Whether a piece has not started."""
        return bool(self._pieces)

    def add(self, piece: Callable[[], None]) -> None:
        """Adds a piece; see `begin`."""
        self._pieces.append(piece)

    def extend(self, pieces: Iterable[Callable[[], None]]) -> None:
        self._pieces.extend(pieces)

    def begin(self) -> None:
        """Runs the pieces, the first slice at once, unless they are running."""
        if not self._is_begun:
            self._is_begun = True
            run_in_slices(self._loop, self._clock, self._steps(), self._on_all_done, self._rest_ms)

    def _steps(self) -> Iterator[None]:
        while self._pieces:
            self._pieces.popleft()()
            yield

    def _on_all_done(self) -> None:
        self._is_begun = False
        self._on_done()


class RequestSlices:
    """Requests with very many partitions, which run in slices; their total memory is bounded."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, log: Any) -> None:
        """Logs errors of requests to `log`."""
        self._loop = loop
        self._log = log
        self._held = 0
        self.turns = Turns(loop, clock)

    @property
    def held(self) -> int:
        return self._held

    def take(self, partitions: int) -> bool:
        """Reserves memory for a request; then `give_back` must follow.

        Without it, the request must not wait.
        """
        if self._held + partitions > PARTITIONS_IN_SLICES_MAX:
            return False
        self._held += partitions
        return True

    def give_back(self, partitions: int) -> None:
        self._held -= partitions

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000, callback)

    def run(self, steps: Iterator[object], is_wanted: Callable[[], bool], on_failed: Callable[[], None]) -> None:
        """Runs `steps` from the loop's next pass, as long as `is_wanted` returns True.

        An unexpected error is logged, and `on_failed` is called.
        """

        def fail(error: Exception) -> None:
            self._log.error("request failed", exc_info=error)
            on_failed()

        self.turns.add(Piece(_while_wanted(steps, is_wanted), fail))


def _while_wanted(steps: Iterator[object], is_wanted: Callable[[], bool]) -> Steps:
    while is_wanted() and next(steps, _END) is not _END:
        yield None


def ask_in_slices(turns: Turns, log: Any, pending: Pending[Any], steps: Generator[None, None, bool]) -> None:
    """Runs steps that complete `pending`, or start what does, and return True.

    The steps end when the client disconnects.
    """
    taken = answer_in_slices(turns, log, steps)
    if isinstance(taken, Pending):
        pending.on_abandoned = taken.abandon
        taken.listen(lambda done: None if done else pending.fail())
