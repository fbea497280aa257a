"""Long work in the event loop, a slice at a time, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

from lowtide.broker.pending import Pending
from lowtide.broker.turns import Piece, Steps, Turns
from lowtide.runtime.clock import Clock

ResponseT = TypeVar("ResponseT")

SLICE_MS = 2
"""How long one slice may hold the loop; a step of the work that takes longer is not cut short."""

PARTITIONS_AT_ONCE = 1_000
"""A request of more partitions is worked on in slices: so many take some five milliseconds."""

PARTITIONS_OF_A_STEP = 50
"""A fifth of a millisecond's work."""

_END = object()

PARTITIONS_IN_SLICES_MAX = 100_000
"""Of all requests together that are worked on in slices, or that wait and were: some fifty megabytes."""


def run_in_slices(loop: asyncio.AbstractEventLoop, clock: Clock, steps: Iterator[object], on_done: Callable[[], None]) -> None:
    """Take `steps` to their end, the first slice of them at once; then `on_done` is called. Whatever is ready runs between two slices."""
    until_ms = clock.monotonic_ms() + SLICE_MS
    for _step in steps:
        if clock.monotonic_ms() >= until_ms:
            loop.call_soon(run_in_slices, loop, clock, steps, on_done)
            return
    on_done()


async def walk_in_slices(clock: Clock, steps: Iterator[object]) -> None:
    """Take `steps` to their end; whatever is ready runs between two slices."""
    until_ms = clock.monotonic_ms() + SLICE_MS
    for _step in steps:
        if clock.monotonic_ms() >= until_ms:
            await asyncio.sleep(0)
            until_ms = clock.monotonic_ms() + SLICE_MS


def answer_in_slices(clock: Clock, log: Any, steps: Generator[None, None, ResponseT]) -> ResponseT | Pending[ResponseT]:
    """The answer that `steps` return: at once, if one slice is enough, else a promise. For a client that goes no more steps are taken."""
    pending: Pending[ResponseT] = Pending()

    def take_slice() -> ResponseT | Pending[ResponseT]:
        until_ms = clock.monotonic_ms() + SLICE_MS
        try:
            while True:
                next(steps)
                if clock.monotonic_ms() >= until_ms:
                    asyncio.get_running_loop().call_soon(go_on)
                    return pending
        except StopIteration as end:
            response: ResponseT = end.value
            return response

    def go_on() -> None:
        if pending.abandoned:
            steps.close()
            return
        try:
            response = take_slice()
            if response is not pending:
                pending.complete(response)  # type: ignore[arg-type]  # only `pending` is a Pending
        except Exception as error:  # A bug of ours costs one connection.
            log.error("request failed", exc_info=error)
            pending.fail()

    return take_slice()


class SlicedWork:
    """Pieces of work that are done in their order, in slices. A piece may add others."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, on_done: Callable[[], None]) -> None:
        """`on_done` is called whenever nothing is left to do."""
        self._loop = loop
        self._clock = clock
        self._on_done = on_done
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
            run_in_slices(self._loop, self._clock, self._steps(), self._on_all_done)

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
        """`log` is told of a request that raised."""
        self._loop = loop
        self._log = log
        self._held = 0
        self.turns = Turns(loop, clock)

    @property
    def held(self) -> int:
        """Partitions of all requests that are held."""
        return self._held

    def take(self, partitions: int) -> bool:
        """Whether a request of so many may be held; then `give_back` is owed. Where not, it must not wait for anything."""
        if self._held + partitions > PARTITIONS_IN_SLICES_MAX:
            return False
        self._held += partitions
        return True

    def give_back(self, partitions: int) -> None:
        """A request of so many is answered, or nobody waits for its answer any more."""
        self._held -= partitions

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call `callback` when some time has passed."""
        self._loop.call_later(delay_ms / 1000, callback)

    def run(self, steps: Iterator[object], is_wanted: Callable[[], bool], on_failed: Callable[[], None]) -> None:
        """Take `steps` to their end, beginning in the loop's next pass. They end early when `is_wanted` says so, asked before each step.

        An exception is a bug of ours: it is logged, and `on_failed` is called.
        """

        def fail(error: Exception) -> None:
            self._log.error("request failed", exc_info=error)
            on_failed()

        self.turns.add(Piece(_while_wanted(steps, is_wanted), fail))


def _while_wanted(steps: Iterator[object], is_wanted: Callable[[], bool]) -> Steps:
    while is_wanted() and next(steps, _END) is not _END:
        yield None


def ask_in_slices(clock: Clock, log: Any, pending: Pending[Any], steps: Generator[None, None, bool]) -> None:
    """Take steps that complete `pending`, or begin what does, and return True. For a client that goes no more are taken."""
    taken = answer_in_slices(clock, log, steps)
    if isinstance(taken, Pending):
        pending.on_abandoned = taken.abandon
        taken.listen(lambda done: None if done else pending.fail())
