"""Runs long work in steps on the event loop, so that other work is not delayed.

There are two forms. `Turns` runs generators a slice at a time. The long requests of a broker share one: one slice per
pass of the loop, however many requests there are, then a pause as long as a slice, so that small requests find the loop
free at least half of the time. The broker's own work (`run_in_slices`) does not wait for requests: each kind has longer
slices of its own, without a pause. `TurnQueue` gives short turns to connections, and to requests that need the worker.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from lowtide.broker.pending import Pending
from lowtide.runtime.clock import Clock

SLICE_MS: Final = 1
"""The length of a slice of requests; longer steps are not interrupted."""

REST_MS: Final = 1
"""The pause between two slices of requests."""

OWN_SLICE_MS: Final = 2
"""The length of a slice of the broker's own work."""

IDLE_PASS_NS: Final = 10_000
"""A shorter pass of the loop had no request: the smallest takes longer, an empty pass about a microsecond."""

APART_MS: Final = 2 * (SLICE_MS + REST_MS)
"""The time since the last request after which `Pacing` executes one at once."""

PARTITIONS_AT_ONCE = 1_000
"""A fetch of more partitions runs in slices: this many take about five milliseconds."""

PARTITIONS_OF_A_STEP = 50
"""About a fifth of a millisecond of work."""

PARTITIONS_IN_SLICES_MAX = 100_000
"""The maximum number of partitions of all fetches in slices, including waiting ones: about fifty megabytes."""

T = TypeVar("T")
Steps = Generator[Any, None, Any]
"""Yields after each bounded step: a response that it waits for, or anything else."""


_END: Final = object()


class Piece:
    """Work in steps. `on_failed` gets an exception of the steps; a dropped piece calls nothing."""

    __slots__ = ("dropped", "on_failed", "steps")

    def __init__(self, steps: Steps, on_failed: Callable[[Exception], None]) -> None:
        self.steps = steps
        self.on_failed = on_failed
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


class Turns:
    """Gives pieces of work their slices in turn."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, log: Any = None, rest_ms: Callable[[], int] | None = None
    ) -> None:
        """Logs errors of requests to `log`.

        With `rest_ms` it runs the broker's own work. It returns the pause after a slice, which applies only if other
        work was ready.
        """
        self._loop = loop
        self._clock = clock
        self._log = log
        self._own_rest_ms = rest_ms
        self._ready: deque[Piece] = deque()
        self._is_scheduled = False
        self.now_ms = clock.monotonic_ms
        self.partitions_held = 0

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, piece: Piece) -> None:
        """Adds a piece at the end, starting in a later pass of the loop."""
        self._ready.append(piece)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_slice)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000, callback)

    def hold(self, partitions: int) -> bool:
        """Reserves memory for a fetch in slices, which must be followed by `let_go`; False if there is none."""
        if self.partitions_held + partitions > PARTITIONS_IN_SLICES_MAX:
            return False
        self.partitions_held += partitions
        return True

    def let_go(self, partitions: int) -> None:
        self.partitions_held -= partitions

    def run(
        self, steps: Iterator[Any], on_done: Callable[[Any], None], on_failed: Callable[[Exception], None]
    ) -> Piece | None:
        """Runs the first slice of `steps` now, and the others in turns; then calls `on_done` with their result.

        Returns the piece, or None if one slice was enough. Exceptions of the first slice are raised here; later ones go
        to `on_failed`.
        """
        until_ms = self._slice_end_ms()
        try:
            while True:
                next(steps)
                if self.now_ms() >= until_ms:
                    break
        except StopIteration as end:
            on_done(end.value)
            return None

        def rest() -> Steps:
            on_done((yield from cast("Steps", steps)))

        piece = Piece(rest(), on_failed)
        if self._own_rest_ms is None or self._is_scheduled:
            self.add(piece)
        else:
            self._ready.append(piece)
            self._is_scheduled = True
            self._rest()
        return piece

    def start(self, steps: Iterator[Any], is_wanted: Callable[[], bool], on_failed: Callable[[], None]) -> None:
        """Runs `steps` from the loop's next pass, as long as `is_wanted` returns True.

        An unexpected error is logged, and `on_failed` is called.
        """

        def fail(error: Exception) -> None:
            self._log.error("request failed", exc_info=error)
            on_failed()

        def wanted() -> Steps:
            while is_wanted() and next(steps, _END) is not _END:
                yield

        self.add(Piece(wanted(), fail))

    def answer(self, steps: Generator[Any, None, T]) -> T | Pending[T]:
        """Returns the result of `steps` if one slice is enough, otherwise a promise.

        The steps end when the client disconnects.
        """
        pending: Pending[T] = Pending()
        self.ask(pending, steps, pending.complete)
        return pending if not pending.done else cast("T", pending.response)

    def ask(self, pending: Pending[Any], steps: Steps, on_done: Callable[[Any], None] = lambda _: None) -> None:
        """Runs steps that complete `pending`, or start work that does. They end when the client disconnects."""
        piece = self.run(steps, on_done, partial(self.fail, pending))
        if piece is not None:
            pending.on_abandoned = piece.drop

    async def walk(self, steps: Iterator[object]) -> None:
        """Runs `steps`: the first slice at once, the others in turns with other work."""
        walked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(_: Any) -> None:
            if not walked.done():
                walked.set_result(None)

        def on_failed(error: Exception) -> None:
            if not walked.done():
                walked.set_exception(error)

        piece = self.run(steps, on_done, on_failed)
        if piece is not None:
            try:
                await walked
            finally:
                piece.drop()

    def fail(self, pending: Pending[Any], error: Exception) -> None:
        """Logs an unexpected error of a request, and closes its connection."""
        self._log.error("request failed", exc_info=error)
        pending.fail()

    def _slice_end_ms(self) -> int:
        return self.now_ms() + (SLICE_MS if self._own_rest_ms is None else OWN_SLICE_MS)

    def _take_slice(self) -> None:
        until_ms = self._slice_end_ms()
        while self._ready:
            piece = self._ready.popleft()
            if piece.dropped:
                piece.steps.close()
                continue
            if self._take_steps(piece, until_ms):
                self._ready.append(piece)
                break
            if self.now_ms() >= until_ms:
                break
        self._is_scheduled = bool(self._ready)
        if self._ready:
            self._rest()

    def _take_steps(self, piece: Piece, until_ms: int) -> bool:
        """Returns whether the piece needs another turn."""
        try:
            for waited in piece.steps:
                if isinstance(waited, Pending) and not waited.done:
                    waited.listen(lambda _answer: self.add(piece))
                    return False
                if self.now_ms() >= until_ms:
                    return True
        except Exception as error:  # noqa: BLE001  `on_failed` logs it
            piece.on_failed(error)
        return False

    def _rest(self) -> None:
        """Schedules the slice after the pause."""
        if self._own_rest_ms is None:
            self._loop.call_later(REST_MS / 1000, self._take_slice)
        elif rest_ms := self._own_rest_ms():
            self._loop.call_soon(self._rest_if_busy, self._clock.monotonic_ns(), rest_ms)
        else:
            self._loop.call_soon(self._take_slice)

    def _rest_if_busy(self, since_ns: int, rest_ms: int) -> None:
        """Ends a pass of the loop that began at `since_ns`."""
        if self._clock.monotonic_ns() - since_ns < IDLE_PASS_NS:
            self._take_slice()
        else:
            self._loop.call_later(rest_ms / 1000, self._take_slice)


def run_in_slices(
    loop: asyncio.AbstractEventLoop, clock: Clock, steps: Iterator[object], on_done: Callable[[], None]
) -> None:
    """Runs work of the broker itself in slices, the first one at once, then calls `on_done`."""
    Turns(loop, clock, rest_ms=lambda: 0).run(steps, lambda _: on_done(), raise_error)


def raise_error(error: Exception) -> None:
    """Leaves an error of the broker's own work to the event loop, which reports it."""
    raise error


class Pacing:
    """Executes requests at once, or in turns if many arrive together. One per broker and kind of request."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._next_ms = 0

    def carry_out(self, act: Callable[[], T | Pending[T]]) -> T | Pending[T]:
        """Returns the result of `act`, or a promise. If the client disconnects before its turn, `act` is not called."""
        now_ms = self._turns.now_ms()
        is_due, self._next_ms = now_ms >= self._next_ms, now_ms + APART_MS
        if is_due:
            return act()
        promise: Pending[T] = Pending()

        def steps() -> Steps:
            answer = act()
            if isinstance(answer, Pending):
                promise.on_abandoned = answer.abandon
                answer.listen(lambda response: promise.fail() if response is None else promise.complete(response))
            else:
                promise.complete(answer)
            yield

        piece = Piece(steps(), partial(self._turns.fail, promise))
        promise.on_abandoned = piece.drop
        self._turns.add(piece)
        return promise


class TurnQueue(Generic[T]):
    """Gives turns in the order in which they are asked for, a few in each pass of the loop.

    Between two passes all other input is read. The queue is bounded, because each one waits in it once.
    """

    def __init__(
        self, now_ms: Callable[[], int], turns_a_pass: int, take_turn: Callable[[T, int], Pending[Any] | None]
    ) -> None:
        """A pass has at most `turns_a_pass` and lasts about a millisecond.

        `take_turn` gets the time at which the pass began. If it returns a promise, the next turn waits for that.
        """
        self._now_ms = now_ms
        self._turns_a_pass = turns_a_pass
        self._take_turn = take_turn
        self._queue: OrderedDict[T, None] = OrderedDict()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._queue)

    def enter(self, one: T) -> None:
        """Adds it to those that wait for a turn, unless it waits already."""
        self._queue[one] = None
        self._schedule()

    def leave(self, one: T) -> None:
        self._queue.pop(one, None)

    def _schedule(self) -> None:
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._give_turns)

    def _give_turns(self) -> None:
        began_ms, waited = self._now_ms(), None
        try:
            for _ in range(min(self._turns_a_pass, len(self._queue))):
                one, _none = self._queue.popitem(last=False)
                waited = self._take_turn(one, began_ms)
                if waited is not None or not self._queue or self._now_ms() != began_ms:
                    break
        finally:
            if waited is None:
                self._end_pass()
        if waited is not None:
            waited.listen(self._end_pass)

    def _end_pass(self, _answer: Any = None) -> None:
        self._is_scheduled = False
        self._schedule()
