"""Long work in the event loop, a slice at a time, so that nothing else waits for it.

What requests cause takes turns (`turns`): however many there are, one slice is taken in a pass of the loop. What the
broker does by itself (`run_in_slices`, `SlicedWork`) doesn't wait for them: there is one of each kind at a time.
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
"""How long one slice of the broker's own work may hold the loop; a step that takes longer is not cut short."""

IDLE_PASS_NS = 10_000
"""A pass of the loop that took less had no request in it: the smallest takes longer, an empty one about a microsecond."""

PARTITIONS_AT_ONCE = 1_000
"""A request of more partitions is worked on in slices: so many take some five milliseconds."""

PARTITIONS_OF_A_STEP = 50
"""A fifth of a millisecond's work."""

_END = object()

PARTITIONS_IN_SLICES_MAX = 100_000
"""Of all requests together that are worked on in slices, or that wait and were: some fifty megabytes."""


def _no_rest() -> int:
    return 0


def run_in_slices(
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    steps: Iterator[object],
    on_done: Callable[[], None],
    rest_ms: Callable[[], int] = _no_rest,
) -> None:
    """Take `steps` to their end, the first slice of them at once; then `on_done` is called.

    Whatever is ready runs between two slices.
    `rest_ms` is asked after each slice for how long others are to have the loop to themselves. They have it if one was ready: a loop
    with nothing else to do takes the next slice.
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
    """A pass of the loop has ended that began at `since_ns`."""
    if clock.monotonic_ns() - since_ns < IDLE_PASS_NS:
        go_on()
    else:
        loop.call_later(rest_s, go_on)


def taken(rows: list[RowT], count: int) -> Iterator[list[RowT]]:
    """The rows in their order, in lists of `count`.

    They are taken out of `rows`, which is empty then: what is done needs no memory.
    """
    rows.reverse()
    while rows:
        some = rows[: -count - 1 : -1]
        del rows[-count:]
        yield some


async def walk_in_slices(turns: Turns, steps: Iterator[object]) -> None:
    """Take `steps` to their end: the first slice at once, the others in turn with other work."""
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
    """Take `steps` to their end: the first slice at once, the others in turn with other work.

    Then `on_done` is called, or `on_failed`.
    """
    turns.run(_each(steps), lambda _: on_done(), on_failed)


def answer_in_slices(turns: Turns, log: Any, steps: Generator[None, None, ResponseT]) -> ResponseT | Pending[ResponseT]:
    """The answer that `steps` return: at once, if one slice is enough, else a promise.

    For a client that goes no more steps are taken.
    """
    pending: Pending[ResponseT] = Pending()

    def on_failed(error: Exception) -> None:  # A bug of ours costs one connection.
        log.error("request failed", exc_info=error)
        pending.fail()

    piece = turns.run(steps, pending.complete, on_failed)
    if piece is None:
        return cast("ResponseT", pending.response)
    pending.on_abandoned = piece.drop
    return pending


class SlicedWork:
    """Pieces of work that are done in their order, in slices. A piece may add others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_done: Callable[[], None],
        rest_ms: Callable[[], int] = _no_rest,
    ) -> None:
        """`on_done` is called whenever nothing is left to do. `rest_ms`: see `run_in_slices`."""
        self._loop = loop
        self._clock = clock
        self._on_done = on_done
        self._rest_ms = rest_ms
        self._pieces: deque[Callable[[], None]] = deque()
        self._is_begun = False

    @property
    def waits(self) -> bool:
        """Whether a piece is still to be begun."""
        return bool(self._pieces)

    def add(self, piece: Callable[[], None]) -> None:
        """Have it done after what was added before; see `begin`."""
        self._pieces.append(piece)

    def extend(self, pieces: Iterable[Callable[[], None]]) -> None:
        """Have them done after what was added before."""
        self._pieces.extend(pieces)

    def begin(self) -> None:
        """Do what was added, the first slice of it at once; nothing new where that is under way."""
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
    """Requests of very many partitions, each worked on in slices; what they hold in memory together is bounded."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, log: Any) -> None:
        """`log` gets a line about a request that raised."""
        self._loop = loop
        self._log = log
        self._held = 0
        self.turns = Turns(loop, clock)

    @property
    def held(self) -> int:
        """Partitions of all requests that are held."""
        return self._held

    def take(self, partitions: int) -> bool:
        """Whether a request of so many may be held; then `give_back` is owed.

        Where not, it must not wait for anything.
        """
        if self._held + partitions > PARTITIONS_IN_SLICES_MAX:
            return False
        self._held += partitions
        return True

    def give_back(self, partitions: int) -> None:
        """A request of so many is answered, or its client is gone."""
        self._held -= partitions

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call `callback` when some time has passed."""
        self._loop.call_later(delay_ms / 1000, callback)

    def run(self, steps: Iterator[object], is_wanted: Callable[[], bool], on_failed: Callable[[], None]) -> None:
        """Take `steps` to their end, beginning in the loop's next pass.

        They end early when `is_wanted` says so, asked before each step.
        An exception is a bug of ours: it is logged, and `on_failed` is called.
        """

        def fail(error: Exception) -> None:
            self._log.error("request failed", exc_info=error)
            on_failed()

        self.turns.add(Piece(_while_wanted(steps, is_wanted), fail))


def _while_wanted(steps: Iterator[object], is_wanted: Callable[[], bool]) -> Steps:
    while is_wanted() and next(steps, _END) is not _END:
        yield None


def ask_in_slices(turns: Turns, log: Any, pending: Pending[Any], steps: Generator[None, None, bool]) -> None:
    """Take steps that complete `pending`, or begin what does, and return True.

    For a client that goes no more are taken.
    """
    taken = answer_in_slices(turns, log, steps)
    if isinstance(taken, Pending):
        pending.on_abandoned = taken.abandon
        taken.listen(lambda done: None if done else pending.fail())
