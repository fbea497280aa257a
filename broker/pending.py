"""An answer that isn't there yet, and requests that wait for an event in a queue until they can give theirs.

`DelayedQueue` is the loop's side of a purgatory: one timer for the earliest deadline, and completions once per pass of the loop, whose
answers leave together (`AnswerRounds`).

Guards: a request is answered once. One that fails costs its own client the connection and no other one anything; those
that became ready with it are answered all the same, and the timer stays set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from lowtide.broker.client_waits import ClientPresence, current_presence
from lowtide.protocol.types import TopicPartition
from lowtide.replication.purgatory import DelayedOperation, DelayedOperationPurgatory
from lowtide.runtime.clock import Clock
from lowtide.runtime.completions import call_all

ResponseT = TypeVar("ResponseT")

NO_ANSWER: Final[Any] = object()
"""Completes a request whose client wants no answer."""


class Spawn(Protocol):
    """Start a named task whose reference is kept."""

    def __call__(self, coro: Coroutine[Any, Any, Any], *, name: str) -> object: ...


class Pending(Generic[ResponseT]):
    """Stands in a connection's queue until `complete` is called, exactly once.

    `on_abandoned` is called when the connection goes away first, so that whatever waits can be forgotten; a completion after that
    goes nowhere.

    One that `completes_anyway` is completed also after `on_abandoned` was called, and soon then: for what waits for
    more than the answer.

    One that `holds_connection` must take effect before the connection's next request is executed, whatever that is.
    """

    __slots__ = ("_listener", "abandoned", "completes_anyway", "done", "holds_connection", "on_abandoned", "response")

    def __init__(self, *, holds_connection: bool = False) -> None:
        self.holds_connection = holds_connection
        self.done = False
        self.abandoned = self.completes_anyway = False
        self.on_abandoned: Callable[[], None] | None = None
        self.response: ResponseT | None = None
        """The answer, when it is there; None if there won't be one."""
        self._listener: Callable[[ResponseT | None], None] | None = None

    def complete(self, response: ResponseT | None) -> None:
        """Give the answer; None closes the connection without one."""
        assert not self.done, "a request is answered once"
        self.done = True
        self.on_abandoned = None
        self.response = response
        if self._listener is not None and not self.abandoned:
            self._listener(response)

    def fail(self) -> None:
        """Close the connection: a bug prevented the answer, or its sending, in which case `complete` was called before."""
        self.done = True
        self.on_abandoned = None
        self.response = None
        if self._listener is not None and not self.abandoned:
            self._listener(None)

    def listen(self, listener: Callable[[ResponseT | None], None]) -> None:
        """Call `listener` with the answer: now if it is there, else when it comes."""
        self._listener = listener
        if self.done:
            listener(self.response)

    def abandon(self) -> None:
        """The client doesn't wait for this answer any more."""
        self.abandoned = True
        self._listener = None  # It refers to the connection, and what waits may wait on.
        if not self.done and self.on_abandoned is not None:
            self.on_abandoned()


def promised(
    work: Callable[[], Coroutine[Any, Any, ResponseT | None]], spawn: Spawn, *, name: str
) -> Pending[ResponseT]:
    """The answer that a task will give. If it gives none, or one that can't be sent, the connection is closed.

    When the client goes, the task ends its waits for the answer (`client_wait`), and carries out the rest.
    """
    pending: Pending[ResponseT] = Pending()
    presence = ClientPresence()
    pending.on_abandoned, pending.completes_anyway = presence.leave, True

    async def run() -> None:
        presence.begin()
        try:
            pending.complete(await work())
        except BaseException:
            pending.fail()  # Also when the answer was there and had no bytes: its client would wait for ever.
            raise

    spawn(run(), name=name)
    return pending


def mapped(pending: Pending[Any], change: Callable[[Any], Any]) -> Pending[Any]:
    """The answer that `change` makes of another one, which is not changed itself.

    Where there is none, there is none either.
    """
    changed: Pending[Any] = Pending(holds_connection=pending.holds_connection)
    changed.on_abandoned = pending.abandon

    def on_answer(response: Any) -> None:
        if response is None:
            changed.fail()
        else:
            changed.complete(change(response))

    pending.listen(on_answer)
    return changed


async def answer_of(pending: Pending[ResponseT], *, for_client: bool = False) -> ResponseT | None:
    """Wait for an answer; None if there won't be one.

    One that is only passed on, `for_client`, is abandoned when that client goes.
    """
    answered: asyncio.Future[ResponseT | None] = asyncio.get_running_loop().create_future()

    def on_answer(response: ResponseT | None) -> None:
        if not answered.done():
            answered.set_result(response)

    def give_up() -> None:
        pending.abandon()
        on_answer(None)

    pending.listen(on_answer)
    presence = current_presence() if for_client else None
    if presence is None:
        return await answered
    with presence.listening(give_up):
        return await answered


LOCAL_COMMIT_GRACE_MS = 500
"""The leader's own disk is not counted against a request's time-out (Kafka's begins when its disk is done), up to this."""


def commit_deadline_ms(clock: Clock, timeout_ms: int) -> int:
    """When a request that waits for our own disk is answered with what there is; a time-out below 0 is 0."""
    return clock.monotonic_ms() + max(timeout_ms, 0) + LOCAL_COMMIT_GRACE_MS


class DelayedRequest(DelayedOperation):
    """A waiting request that knows how to test itself and how to answer."""

    __slots__ = ()

    def try_complete(self) -> bool:
        """Answer if what is waited for has come, or can no longer come. Returns whether it was answered."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answer with what there is now."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """The time is up, or the broker stops: answer with what there is."""
        self.on_complete()

    def fail(self) -> None:
        """Answer nothing and close the connection: a bug of ours came in between."""
        raise NotImplementedError

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """What to wait for next, and the deadline stays."""
        raise NotImplementedError

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        raise NotImplementedError


class AnsweredConnection(Protocol):
    """A connection with answers that are ready and not sent."""

    def send_answers(self) -> None:
        """Send them."""
        ...


class AnswerRounds:
    """Answers that are given one after the other in one step of the loop, such as all that a follower's fetch sets free.

    Each connection sends once, at the end of the step, what it was given: one system call, and one wake-up of its client, whose next
    requests come together in turn. Nothing waits for another pass of the loop. A connection that can't send costs no other one anything.
    """

    __slots__ = ("_loop", "answered")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.answered: dict[AnsweredConnection, None] | None = None
        """Whom `end` calls; each adds itself that has an answer. None where answers aren't given together: then it is to send it."""

    def begin(self) -> None:
        """Answers are given together until `end`."""
        self.answered = {}

    def end(self) -> None:
        """Have all of them sent."""
        answered, self.answered = self.answered, None
        call_all(self._loop, [(type(connection).send_answers, connection) for connection in answered or ()])


class DelayedQueue:
    """A purgatory that runs on an event loop."""

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        maximum_per_key: int,
        on_bug: Callable[[DelayedRequest, Exception], None],
        rounds: AnswerRounds | None = None,
    ) -> None:
        """`on_bug` is called with a request that raised; its connection is being closed.

        Answers leave at the end of their round.
        """
        self._on_bug = on_bug
        self._rounds = AnswerRounds(loop) if rounds is None else rounds
        self._purgatory: DelayedOperationPurgatory[TopicPartition] = DelayedOperationPurgatory(
            maximum_per_key=maximum_per_key
        )
        self.watched = self._purgatory.watched_keys
        """The keys that anything waits for: where nothing does, a call is saved."""
        self._clock = clock
        self._loop = loop
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._purgatory)

    def waiting(self) -> list[DelayedRequest]:
        """The requests that wait, in no order."""
        return cast("list[DelayedRequest]", self._purgatory.operations())

    def watch(self, request: DelayedRequest) -> bool:
        """Park a request whose condition doesn't hold.

        Returns False, and parks nothing, where too many wait already, or at a stop.
        """
        thresholds = list(request.thresholds())
        if self._closed or not all(self._purgatory.has_room(key) for key, _ in thresholds):
            return False
        self._watch(request, thresholds)
        return True

    def _watch(self, request: DelayedRequest, thresholds: list[tuple[TopicPartition, int]]) -> None:
        deadline_ms = request.deadline_ms
        self._purgatory.watch(request, thresholds, deadline_ms)
        if self._timer is None or deadline_ms < self._timer_ms:
            self._set_timer()

    def advance(self, key: TopicPartition, value: int) -> None:
        """A value rose: see the purgatory."""
        if key in self.watched and self._purgatory.advance(key, value) and not self._scheduled:
            self._schedule()

    def release(self, key: TopicPartition) -> None:
        """Something failed or changed hands: all that wait for this key are tested again."""
        if self._purgatory.release(key) and not self._scheduled:
            self._schedule()

    def wake(self, request: DelayedRequest) -> None:
        """Let one request be tested again."""
        if self._purgatory.wake(request) and not self._scheduled:
            self._schedule()

    def remove(self, request: DelayedRequest) -> None:
        """Forget a request."""
        self._purgatory.remove(request)

    def close(self) -> None:
        """Answer everything with what there is, and let nothing wait any more: an answer may set free the next request of its client."""
        self._closed = True
        self._purgatory.release_all()
        for operation in self._purgatory.take_ready():
            request = cast("DelayedRequest", operation)
            try:
                request.on_expiration()
            except Exception as error:  # noqa: BLE001  as above all, at a stop too: the others are owed their answers
                self._end(request, error)
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._run_ready)

    def _run_ready(self) -> None:
        self._scheduled = False
        ready = self._purgatory.take_ready()
        if len(ready) > 1:
            self._rounds.begin()
        for operation in ready:
            self._test(cast("DelayedRequest", operation))
        if len(ready) > 1:
            self._rounds.end()
        if self._timer is None:
            self._set_timer()

    def _test(self, request: DelayedRequest) -> None:
        try:
            if request.expired:
                request.on_expiration()
            elif not request.try_complete():
                self._watch(request, list(request.thresholds()))
        except Exception as error:  # noqa: BLE001  a bug of ours costs one connection, and is logged with its traceback
            self._end(request, error)

    def _end(self, request: DelayedRequest, error: Exception) -> None:
        self._purgatory.remove(request)
        self._on_bug(request, error)
        request.fail()

    def _set_timer(self) -> None:
        """Have one timer, for the earliest deadline; a later one is left standing: an early wake-up costs less than two timers."""
        deadline_ms = self._purgatory.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(deadline_ms - self._clock.monotonic_ms(), 0)
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._purgatory.expire(self._clock.monotonic_ms()):
            self._run_ready()
        else:
            self._set_timer()
