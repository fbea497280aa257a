"""Responses that are not complete yet, and queues of requests that wait for an event.

`DelayedQueue` runs a purgatory on the event loop: one timer for the earliest deadline, and completions once per pass of
the loop, whose responses are sent together (`AnswerRounds`).

Guards: a request is answered once. A failing request closes only its own connection; the others that became ready with
it are answered, and the timer stays set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from lowtide.protocol.types import TopicPartition
from lowtide.replication.purgatory import DelayedOperation, DelayedOperationPurgatory
from lowtide.runtime.clock import Clock

ResponseT = TypeVar("ResponseT")

NO_ANSWER: Final[Any] = object()
"""The response to a request that wants none."""


class Pending(msgspec.Struct, Generic[ResponseT], eq=False):
    """A response in a connection's queue, until `complete` is called exactly once.

    `on_abandoned` is called if the connection closes first, to drop waiting work; a later completion is ignored. With
    `completes_anyway` it is completed soon after `on_abandoned`, because more than the response depends on it. With
    `holds_connection` it must take effect before the connection's next request is executed.
    """

    holds_connection: bool = False
    done: bool = False
    abandoned: bool = False
    completes_anyway: bool = False
    on_abandoned: Callable[[], None] | None = None
    response: ResponseT | None = None
    """The response, once complete; None if there is none."""
    _listener: Callable[[ResponseT | None], None] | None = None

    def complete(self, response: ResponseT | None) -> None:
        """Completes the response; None closes the connection."""
        assert not self.done, "a request is answered once"
        self.done = True
        self.on_abandoned = None
        self.response = response
        if self._listener is not None and not self.abandoned:
            self._listener(response)

    def fail(self) -> None:
        """Closes the connection after an unexpected error, also if the completed response could not be sent."""
        self.done = True
        self.on_abandoned = None
        self.response = None
        if self._listener is not None and not self.abandoned:
            self._listener(None)

    def listen(self, listener: Callable[[ResponseT | None], None]) -> None:
        """Calls `listener` with the response, now or when it is complete."""
        self._listener = listener
        if self.done:
            listener(self.response)

    def abandon(self) -> None:
        """Drops the response, because its client no longer waits for it."""
        self.abandoned = True
        self._listener = None  # It references the connection, which can be freed earlier.
        if not self.done and self.on_abandoned is not None:
            self.on_abandoned()


Answer: TypeAlias = ResponseT | Pending[ResponseT]
"""A response, perhaps one that is not complete yet."""

LOCAL_COMMIT_GRACE_MS = 500
"""The leader's disk does not count against a request's timeout (Kafka's starts after it), up to this time."""


def commit_deadline_ms(clock: Clock, timeout_ms: int) -> int:
    """Returns the deadline of a request that waits for the leader's disk; a negative timeout is 0."""
    return clock.monotonic_ms() + max(timeout_ms, 0) + LOCAL_COMMIT_GRACE_MS


class AnsweredConnection(Protocol):
    """A connection with unsent responses."""

    def send_answers(self) -> None: ...


class AnswerRounds:
    """Responses that are completed in one step of the loop, such as by a follower's fetch.

    Each connection sends its responses once, at the end of the step: one system call, and one wake-up of the client,
    whose next requests then arrive together. Nothing waits for another pass of the loop. A connection that cannot send
    affects no other one.
    """

    __slots__ = ("_loop", "answered")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.answered: dict[AnsweredConnection, None] | None = None
        """The connections with responses for `end` to send. None outside a round: then connections send at once."""

    def begin(self) -> None:
        self.answered = {}

    def end(self) -> None:
        answered, self.answered = self.answered, None
        for connection in answered or ():
            try:
                connection.send_answers()
            except Exception as error:  # noqa: BLE001  the others must send theirs
                context = {"message": f"{connection!r} could not send its answers", "exception": error}
                self._loop.call_exception_handler(context)


class DelayedQueue:
    """A purgatory on an event loop."""

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        maximum_per_key: int,
        on_bug: Callable[[DelayedOperation, Exception], None],
        rounds: AnswerRounds | None = None,
    ) -> None:
        """Calls `on_bug` with a request that raised, whose connection is closed.

        Responses are sent at the end of their round.
        """
        self._on_bug = on_bug
        self._rounds = AnswerRounds(loop) if rounds is None else rounds
        self._purgatory: DelayedOperationPurgatory[TopicPartition] = DelayedOperationPurgatory(
            maximum_per_key=maximum_per_key
        )
        self.watched = self._purgatory.watched_keys
        """The keys with waiting requests; checking them saves calls."""
        self._clock = clock
        self._loop = loop
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._purgatory)

    def waiting(self) -> list[DelayedOperation]:
        return self._purgatory.operations()

    def watch(self, request: DelayedOperation) -> bool:
        """Parks a request whose condition does not hold.

        Returns False without parking if too many wait already, or during a stop.
        """
        thresholds = list(request.thresholds())
        if self._closed or not all(self._purgatory.has_room(key) for key, _ in thresholds):
            return False
        self._watch(request, thresholds)
        return True

    def _watch(self, request: DelayedOperation, thresholds: list[tuple[TopicPartition, int]]) -> None:
        deadline_ms = request.deadline_ms
        self._purgatory.watch(request, thresholds, deadline_ms)
        if self._timer is None or deadline_ms < self._timer_ms:
            self._set_timer()

    def advance(self, key: TopicPartition, value: int) -> None:
        """Raises a value: see the purgatory."""
        if key in self.watched and self._purgatory.advance(key, value) and not self._scheduled:
            self._schedule()

    def release(self, key: TopicPartition) -> None:
        """Tests all requests that wait for this key, after a failure or a change of leadership."""
        if self._purgatory.release(key) and not self._scheduled:
            self._schedule()

    def wake(self, request: DelayedOperation) -> None:
        if self._purgatory.wake(request) and not self._scheduled:
            self._schedule()

    def remove(self, request: DelayedOperation) -> None:
        self._purgatory.remove(request)

    def close(self) -> None:
        """Completes all waits at shutdown, and refuses new ones, which responses may cause."""
        self._closed = True
        self._purgatory.release_all()
        for request in self._purgatory.take_ready():
            try:
                request.on_expiration()
            except Exception as error:  # noqa: BLE001  the others must be answered
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
            self._test(operation)
        if len(ready) > 1:
            self._rounds.end()
        if self._timer is None:
            self._set_timer()

    def _test(self, request: DelayedOperation) -> None:
        try:
            if request.expired:
                request.on_expiration()
            elif not request.try_complete():
                self._watch(request, list(request.thresholds()))
        except Exception as error:  # noqa: BLE001  an unexpected error closes one connection
            self._end(request, error)

    def _end(self, request: DelayedOperation, error: Exception) -> None:
        self._purgatory.remove(request)
        self._on_bug(request, error)
        request.fail()

    def _set_timer(self) -> None:
        """Sets one timer for the earliest deadline. An early wake-up is cheaper than a second timer."""
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
