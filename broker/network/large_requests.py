"""The lane of large requests: those with more rows than `Bounds.undivided_max`.

Such a request is decoded and executed in parts, of which each is answered in bytes before the next ones
(`request_parts`), or by steps of its handler's, which gets it whole; all of them take turns (`turns`), so that fifty
hold the loop for no longer than one. Its rows are bounded: one that has more than `lowtide.request.rows.max`, or a very
large field, is refused before any of it is executed: with INVALID_REQUEST, or by closing the connection where its
client reads no answer (acks=0).

The rows of all large requests that are worked on are bounded too, by twice what one may have: a request that finds no
room waits in its frame. A handler that counts what it keeps by itself (a Fetch that waits) says so
(`COUNTED_ELSEWHERE`).

A request that changes something is carried out to its end although its client has gone, for it was received whole, but
waits for no answer of its parts then; others end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from lowtide.broker.network.answer_errors import AnswerErrors
from lowtide.broker.network.outgoing import EncodedAnswer, Part
from lowtide.broker.network.refusals import Refuse
from lowtide.broker.network.request_parts import CutRequest, JoinedAnswer, Split
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.request_context import Client, RequestContext
from lowtide.broker.turns import Piece, Steps, Turns
from lowtide.protocol.errors import ProtocolError, TooManyRowsError
from lowtide.protocol.row_decoder import RowLimits

ROWS_MAX_KEY: Final = "lowtide.request.rows.max"

PARTS_WAITING_MAX: Final = 16
"""Parts of one request that are begun while the answer of an earlier one isn't there: about as many rows as one that isn't cut may have."""

ROWS_GONE_THROUGH: Final = 1_000
"""A request of so many is finished before others have another turn. Its rows or its answer are objects, several times as large as the
frame: fifty at once have those of one."""

COUNTED_ELSEWHERE: Final[Any] = Pending()
"""Yielded by a handler's steps: what it keeps from now on is bounded by itself."""

COUNTED_ELSEWHERE.complete(None)


class Sender(Client, Protocol):
    """The connection by which a large request came."""

    def refuse(self, reason: str) -> None:
        """Its client has sent what makes no sense: close."""
        ...


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of an API's requests a handler takes at once, and of one that isn't cut at all.

    A request of more than `undivided_max` rows goes through the lane, where its parts have `rows_at_once`. The first is
    higher where a row costs so little that a usual request of an application is faster as a whole.
    """

    undivided_max: int = 200
    rows_at_once: int = 200
    whole_max: int = 10_000


class LargeRoute(msgspec.Struct, frozen=True, kw_only=True):
    """How large requests of one API in one version are worked on.

    `decode` reads one whole, and says whether bytes are behind it; `split` reads it in
    parts. `encode` gives an answer as bytes, `framed` one that is bytes, with its size and header.
    `open` gives the client id and the position of the body in a frame; `refuse` makes the answer with an error. `steps` is a handler in
    steps: a generator that gets a `CutRequest`, and returns what a handler does, or a `JoinedAnswer`.
    """

    name: str
    api_version: int
    open: Callable[[Any, int, int], tuple[str | None, Any, int, int]]
    decode: Callable[[Any, int, int, int], Generator[None, None, tuple[Any, int, bool]]]
    handle: Callable[[Any, Any], Any]
    steps: Callable[[Any, Any], Steps] | None
    split: Split | None
    bounds: Bounds
    refuse: Refuse
    encode: Callable[[int, Any], Generator[None, None, list[Part]]]
    framed: Callable[[int, list[Part]], list[Part]]
    errors: AnswerErrors | None = None

    def encode_noted(self, correlation_id: int, answer: Any) -> Generator[None, None, list[Part]]:
        """As `encode`, and count the errors of the answer."""
        parts = yield from self.encode(correlation_id, answer)
        if self.errors is not None:
            yield from self.errors.note_in_steps(answer)
        return parts


class LargeRequest:
    """One large request.

    `frame` must stay as it is until the answer is there; `on_done` is called when it isn't needed any more.
    """

    def __init__(
        self, route: LargeRoute, frame: Any, bounds: tuple[int, int], correlation_id: int, sender: Sender
    ) -> None:
        """`bounds` are the frame's first position and its end, exclusive."""
        self.route = route
        self.frame = frame
        self.start, self.stop = bounds
        self.correlation_id = correlation_id
        self.sender: Sender | None = sender
        self.answer: Pending[Any] = Pending()
        self.on_done: Callable[[], None] | None = None
        self.charged = 0
        self.piece: Piece | None = None
        self.waits_for: list[Pending[Any]] = []
        self.waited: Pending[Any] | None = None
        """What its piece waits for, while it waits for the answer of a part."""
        self.changes = self.sequential = False

    @property
    def is_wanted(self) -> bool:
        """Whether its client is still there."""
        return not self.answer.abandoned


class LargeRequests:
    """The lane of large requests. One for each broker."""

    def __init__(
        self,
        turns: Turns,
        rows_max: int,
        on_bug: Callable[[LargeRoute, Exception], None],
        on_refused: Callable[[Sender, str, str], None],
        on_surplus: Callable[[Client, str], None],
    ) -> None:
        """`on_bug` gets what a request raised, `on_refused` why one is refused, `on_surplus` one that has bytes behind its fields."""
        self._turns = turns
        self._rows_max = rows_max
        self._on_bug = on_bug
        self._on_refused = on_refused
        self._on_surplus = on_surplus
        self._rows_alive = 0
        self._begun: set[LargeRequest] = set()
        self._waiting: deque[LargeRequest] = deque()

    @property
    def rows_alive(self) -> int:
        """Rows of large requests that are in memory, or may be before they are counted."""
        return self._rows_alive

    def submit(self, request: LargeRequest) -> Pending[Any]:
        """Work on a request when there is room for its rows; its answer is an `EncodedAnswer`."""
        request.answer.on_abandoned = lambda: self._on_gone(request)
        self._waiting.append(request)
        self._admit()
        return request.answer

    def encode(self, route: LargeRoute, correlation_id: int, answer: Any) -> Pending[Any]:
        """Encode a large answer in slices; it becomes an `EncodedAnswer`."""
        encoded: Pending[Any] = Pending()

        def steps() -> Steps:
            parts = yield from route.encode_noted(correlation_id, answer)
            encoded.complete(EncodedAnswer(parts))

        def fail(error: Exception) -> None:
            self._on_bug(route, error)
            encoded.fail()

        piece = Piece(steps(), fail)
        encoded.on_abandoned = piece.drop
        self._turns.add(piece)
        return encoded

    def _admit(self) -> None:
        """Begin what there is room for.

        How many rows a frame has isn't known before it is decoded; it can't have more than bytes. So there is room for
        one more of any size while those that were decoded have `rows_max` at most: one that waits (a JoinGroup of few
        rows in a large frame) must not keep all others waiting.
        """
        while self._waiting:
            request = self._waiting[0]
            expected = min(self._rows_max, request.stop - request.start)
            if self._rows_alive + expected > 2 * self._rows_max:
                return
            self._waiting.popleft()
            self._charge(request, expected)
            self._begun.add(request)
            request.piece = Piece(self._steps(request), partial(self._on_failed, request))
            self._turns.add(request.piece)

    def _charge(self, request: LargeRequest, rows: int) -> None:
        self._rows_alive += rows - request.charged
        request.charged = rows

    def _on_gone(self, request: LargeRequest) -> None:
        """Its client doesn't wait any more."""
        if request in self._waiting:
            self._waiting.remove(request)
            self._end(request)
        elif not request.changes:
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
        sender = request.sender
        self._end(request)
        if not isinstance(error, ProtocolError):
            self._on_bug(request.route, error)
            if not request.answer.done:
                request.answer.fail()
        elif sender is not None and request.is_wanted:
            sender.refuse(f"{request.route.name}: {error}")

    def _end(self, request: LargeRequest) -> None:
        """Nothing of it is in memory any more. May be called again."""
        on_done, request.on_done = request.on_done, None
        request.frame = request.sender = request.piece = (
            None  # A piece refers to its request: nothing must wait for the collector.
        )
        request.waits_for = []
        self._begun.discard(request)
        self._charge(request, 0)
        if on_done is not None:
            on_done()
        self._admit()

    # ------------------------------------------------------------------ one request
    def _steps(self, request: LargeRequest) -> Steps:
        route = request.route
        client_id, frame, position, stop = route.open(request.frame, request.start, request.stop)
        assert request.sender is not None, "it isn't done"
        context = RequestContext(route.api_version, client_id, request.sender, {}, request.correlation_id)
        body = frame, position, stop
        try:
            if route.split is None:
                message, rows, has_surplus = yield from route.decode(*body, min(self._rows_max, route.bounds.whole_max))
            else:
                limits = RowLimits(self._rows_max, route.bounds.whole_max, route.bounds.rows_at_once)
                message = CutRequest(route.split, body, limits, self._begun.__len__)
                rows = yield from message.look()
                has_surplus = message.has_surplus
        except TooManyRowsError as error:
            text = str(error) + (f"; {ROWS_MAX_KEY} is the limit" if error.rows_max == self._rows_max else "")
            yield from self._refuse(request, body, text)
            return
        if has_surplus:
            self._on_surplus(context.connection, route.name)
        self._charge(request, rows)
        self._admit()
        piece = request.piece
        assert piece is not None, "it isn't done"
        piece.goes_on = route.split is None or rows <= ROWS_GONE_THROUGH
        if route.split is None:
            answer = yield from self._whole(request, message, context)
        elif route.steps is not None:
            answer = yield from self._waited_steps(request, route.steps(message, context))
        else:
            answer = yield from self._in_parts(request, route.split, message, context)
        del message, frame, body
        if answer is not NO_ANSWER and request.is_wanted:
            if answer is None:
                request.answer.fail()
            elif type(answer) is JoinedAnswer:
                answer = EncodedAnswer(route.framed(request.correlation_id, answer.finish()))
            elif type(answer) is not EncodedAnswer:
                piece.goes_on = True
                parts = yield from route.encode_noted(request.correlation_id, answer)
                answer = EncodedAnswer(parts)
        self._end(request)
        if request.is_wanted and not request.answer.done:
            request.answer.complete(answer)

    def _whole(self, request: LargeRequest, message: Any, context: Any) -> Steps:
        """Executes the request whole, and returns its answer; None where there is none."""
        answer = request.route.handle(message, context)
        yield None
        answer = yield from self._settled(request, [answer])
        return answer[0]

    def _in_parts(self, request: LargeRequest, split: Split, message: CutRequest, context: Any) -> Steps:
        """Executes the request in parts, and returns their answers joined, or the one that counts for all."""
        request.changes, request.sequential = split.cut.changes, split.cut.sequential
        joined = message.joined()
        waiting: deque[Any] = deque()
        for part in message.parts():
            yield None
            if part is None:
                continue
            answer = request.route.handle(part, context)
            waiting.append(
                NO_ANSWER if answer is None else answer
            )  # The handler's way; a Pending completes with None where it fails.
            yield from self._joined(request, waiting, joined, 0 if split.cut.sequential else PARTS_WAITING_MAX)
        yield from self._joined(request, waiting, joined, 0)
        return joined.instead if joined.is_replaced else joined

    def _joined(self, request: LargeRequest, waiting: deque[Any], joined: JoinedAnswer, most: int) -> Steps:
        """Take over the answers that are there, in their order, until `most` of the parts wait at most."""
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
            waiting.popleft()
            if (
                request.route.errors is not None
                and answer is not None
                and answer is not NO_ANSWER
                and not joined.is_replaced
            ):
                request.route.errors.note(answer)
            yield from joined.add(answer)
        request.waits_for = [each for each in waiting if type(each) is Pending and not each.done]

    def _settled(self, request: LargeRequest, answers: list[Any]) -> Steps:
        """The answers, when they are all there."""
        request.waits_for = [answer for answer in answers if type(answer) is Pending and not answer.done]
        for index, answer in enumerate(answers):
            if type(answer) is Pending:
                if not answer.done:
                    yield answer
                answers[index] = answer.response
        request.waits_for = []
        return answers

    def _waited_steps(self, request: LargeRequest, steps: Steps) -> Steps:
        """Those of a handler, and what they wait for at the end."""
        try:
            while True:
                waited = next(steps)
                if waited is COUNTED_ELSEWHERE:
                    self._charge(request, 0)
                    self._admit()
                yield waited
        except StopIteration as end:
            [answer] = yield from self._settled(request, [end.value])
            return answer

    def _refuse(self, request: LargeRequest, body: tuple[Any, int, int], text: str) -> Steps:
        """It is too large to be executed."""
        route, sender = request.route, request.sender
        answer = yield from route.refuse(*body, text)
        del body
        parts = (yield from route.encode_noted(request.correlation_id, answer)) if answer is not None else []
        self._end(request)
        if not request.is_wanted or sender is None:
            return
        if answer is None:
            sender.close(f"{route.name} without acknowledgement: {text}")
        else:
            self._on_refused(sender, f"{route.name}: {text}", "request refused")
            request.answer.complete(EncodedAnswer(parts))


def _end_wait(request: LargeRequest, pending: Pending[Any]) -> None:
    """The client has gone: what a part has begun goes on, and its answer isn't waited for, unless the next part begins after it."""
    if pending.completes_anyway:
        if pending.on_abandoned is not None:
            pending.on_abandoned()
    elif not request.sequential:
        pending.abandon()
