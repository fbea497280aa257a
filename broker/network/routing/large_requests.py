"""Executes large requests, those with more rows than `Bounds.undivided_max`, in parts.

The parts (`request_parts`) take turns with other work (`turns`), so fifty large requests hold the loop no longer than
one. The rows of all decoded large requests are bounded by twice the rows of one (`lowtide.request.rows.max`); further
requests wait in their frames.

A request that changes something was received whole, so it is completed although its client has gone, without waiting
for the answers of its parts. Other requests end with their client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from lowtide.broker.network.routing.request_parts import Cut, joined, parts_of
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.broker.turns import Piece, Steps, Turns

ROWS_MAX_KEY: Final = "lowtide.request.rows.max"
ROWS_MAX: Final = 10_000
"""The default of that key, and the most rows of an uncut request."""

PARTS_WAITING_MAX: Final = 16
"""The most parts of a request that are begun before an earlier one is answered."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The most rows of an API that a handler takes at once.

    A request of more than `undivided_max` rows is cut into parts of `rows_at_once`. The first is higher if rows cost so
    little that usual requests are faster as a whole. A request that can't be cut has at most `whole_max` rows.
    """

    undivided_max: int = 200
    rows_at_once: int = 200
    whole_max: int = ROWS_MAX


class LargeRequest(msgspec.Struct, eq=False):
    """One large request in its frame, which must not change until `on_done` is called."""

    name: str
    """For the log."""
    cut: Cut
    bounds: Bounds
    rows: int
    read: Callable[[], tuple[Any, RequestContext]] | None
    """Decodes the frame, which is valid and has so many `rows`."""
    handle: Callable[[Any, RequestContext], Any]
    answer: Pending[Any] = msgspec.field(default_factory=lambda: Pending(holds_connection=True))
    on_done: Callable[[], None] | None = None
    piece: Piece | None = None
    waits_for: list[Pending[Any]] = []
    waited: Pending[Any] | None = None
    """The answer of a part that the piece waits for."""

    @property
    def is_wanted(self) -> bool:
        return not self.answer.abandoned


class LargeRequests:
    """The large requests of one broker."""

    def __init__(self, turns: Turns, rows_max: int, on_bug: Callable[[str, Exception], None]) -> None:
        """`on_bug` gets the name of a request, and the exception of its handler."""
        self._turns = turns
        self._rows_max = rows_max
        self._on_bug = on_bug
        self._waiting: deque[LargeRequest] = deque()
        self.rows_alive = 0
        """The decoded rows in memory."""

    def submit(self, request: LargeRequest) -> Pending[Any]:
        """Returns the answer of a request, which is executed when there is room for its rows."""
        request.answer.on_abandoned = lambda: self._on_gone(request)
        self._waiting.append(request)
        self._admit()
        return request.answer

    def _admit(self) -> None:
        while self._waiting and self.rows_alive + self._waiting[0].rows <= 2 * self._rows_max:
            request = self._waiting.popleft()
            self.rows_alive += request.rows
            request.piece = Piece(self._steps(request), partial(self._on_failed, request))
            self._turns.add(request.piece)

    def _on_gone(self, request: LargeRequest) -> None:
        """Ends a request of a disconnected client, unless it changes something."""
        if request in self._waiting:
            self._waiting.remove(request)
            self._end(request, was_begun=False)
        elif not request.cut.changes:
            for pending in request.waits_for:
                pending.abandon()
            if request.piece is not None:
                request.piece.drop()
            self._end(request)
        else:
            for pending in request.waits_for:
                _end_wait(request, pending)
            if request.waited is not None and request.waited.abandoned and request.piece is not None:
                self._turns.add(request.piece)

    def _on_failed(self, request: LargeRequest, error: Exception) -> None:
        self._end(request)
        self._on_bug(request.name, error)
        if not request.answer.done:
            request.answer.fail()

    def _end(self, request: LargeRequest, *, was_begun: bool = True) -> None:
        """Frees the memory of a request. A second call does nothing."""
        if request.read is None:
            return
        # Breaks a reference cycle with the piece.
        request.read = request.piece = None
        request.waits_for = []
        self.rows_alive -= request.rows if was_begun else 0
        on_done, request.on_done = request.on_done, None
        if on_done is not None:
            on_done()
        self._admit()

    def _steps(self, request: LargeRequest) -> Steps:
        """Executes the parts, and completes the answer."""
        assert request.read is not None, "it isn't done"
        message, context = request.read()
        yield None
        cut, waiting, answers = request.cut, deque[Any](), list[Any]()
        for part in parts_of(message, cut, request.bounds.rows_at_once):
            yield None
            waiting.append(request.handle(part, context))
            yield from self._take_answers(request, waiting, answers, 0 if cut.sequential else PARTS_WAITING_MAX)
        yield from self._take_answers(request, waiting, answers, 0)
        self._end(request)
        if request.is_wanted and not request.answer.done:
            if None in answers:
                request.answer.fail()
            else:
                request.answer.complete(NO_ANSWER if NO_ANSWER in answers else joined(answers, cut))

    def _take_answers(self, request: LargeRequest, waiting: deque[Any], answers: list[Any], most: int) -> Steps:
        """Takes answers in their order until at most `most` parts wait."""
        while waiting:
            answer = waiting[0]
            if type(answer) is Pending:
                if not answer.done and len(waiting) <= most:
                    break
                if not answer.done:
                    request.waits_for = [each for each in waiting if type(each) is Pending and not each.done]
                    if not request.is_wanted:
                        _end_wait(request, answer)
                    if not answer.abandoned:
                        request.waited = answer
                        yield answer
                        request.waited = None
                if answer.abandoned:
                    waiting.popleft()
                    continue
                answer = answer.response
            elif answer is None:
                answer = NO_ANSWER  # The client wants no answer.
            waiting.popleft()
            answers.append(answer)
        request.waits_for = [each for each in waiting if type(each) is Pending and not each.done]


def _end_wait(request: LargeRequest, pending: Pending[Any]) -> None:
    """Stops waiting for a part whose work continues, unless the next part must begin after it."""
    if pending.completes_anyway:
        if pending.on_abandoned is not None:
            pending.on_abandoned()
    elif not request.cut.sequential:
        pending.abandon()
