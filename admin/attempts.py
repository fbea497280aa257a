"""Retries the items (partitions, groups) of one call until each is done, has failed for good, or the deadline passes.

Each attempt sends one request to a broker, with all items that belong to it. Brokers do not wait for each other: an
item with a retriable error is located and sent again while another broker is still silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from lowtide.admin.cluster import ClusterConnections
from lowtide.admin.errors import AdminError, AuthenticationFailedError, ConnectionFailedError, DeadlineExceededError
from lowtide.admin.patience import Deadline
from lowtide.protocol.types import BrokerId
from lowtide.runtime.tasks import TaskRegistry

IN_FLIGHT_MAX: Final = 64
"""Brokers that one call asks at once."""

ITEMS_PER_REQUEST_MAX: Final = 25_000
"""A request with so many partitions has about half a megabyte."""

GRACE_MS: Final = 50
"""Waits end at the deadline by themselves, with a reason; the call is cancelled this much later."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RetryLater(NamedTuple):
    """The attempt failed and is repeated. The reason is reported if no attempt succeeds."""

    reason: str


class Done(NamedTuple, Generic[V]):
    """The attempt succeeded."""

    value: V


Outcome: TypeAlias = Done[V] | RetryLater | AdminError
"""The outcome of one attempt; an AdminError is final."""


@dataclass(slots=True)
class Located(Generic[K]):
    """Items by the broker to ask, and items that can't be sent."""

    placed: dict[BrokerId, list[K]] = field(default_factory=dict)
    others: dict[K, RetryLater | AdminError] = field(default_factory=dict)

    def put(self, broker_id: BrokerId, item: K) -> None:
        """Assigns an item to a broker."""
        self.placed.setdefault(broker_id, []).append(item)


Locate: TypeAlias = Callable[[Collection[K]], Awaitable[Located[K]]]
"""Finds the brokers of items. An AdminError ends the call."""

Send: TypeAlias = Callable[[BrokerId, list[K]], Awaitable[Mapping[K, Outcome[V]]]]
"""Asks one broker. After a ConnectionFailedError all items are retried; another AdminError is final for all of them."""


class Attempts(Generic[K, V]):
    """The attempts of one call.

    When `run` returns, each item is in `done`, `failed` or `unfinished` (with the last reason).
    """

    def __init__(self, cluster: ClusterConnections, deadline: Deadline, locate: Locate[K], send: Send[K, V]) -> None:
        self.done: dict[K, V] = {}
        self.failed: dict[K, AdminError] = {}
        self.unfinished: dict[K, str] = {}
        self._items: tuple[K, ...] = ()
        self._cluster = cluster
        self._deadline = deadline
        self._locate = locate
        self._send = send
        self._tasks = TaskRegistry(lambda _, error: self._abort(error))
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._ended = asyncio.Event()
        self._fault: BaseException | None = None

    async def run(self, items: Collection[K]) -> None:
        """Retries until the deadline. Errors: AuthenticationFailedError; what `locate` raises at the first attempt."""
        if not items:
            return
        self._items = tuple(items)
        self.unfinished = dict.fromkeys(items, "no broker was asked")
        try:
            self._tasks.spawn(self._attempt(list(items), 1), name="attempt")
            async with asyncio.timeout((self._deadline.remaining_ms() + GRACE_MS) / 1000):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            await self._tasks.cancel_all()
        if self._fault is not None:
            raise self._fault

    def results(self, what: Callable[[K], str]) -> dict[K, V | AdminError]:
        """Returns each item's outcome, in the order of `run`. Errors of unfinished items begin with `what(item)`."""
        found: dict[K, V | AdminError] = {}
        for item in self._items:
            if item in self.unfinished:
                reason = self.unfinished[item]
                found[item] = DeadlineExceededError(
                    f"{what(item)}: not done within {self._deadline.timeout_ms} ms: {reason}"
                )
            else:
                found[item] = self.done[item] if item in self.done else self.failed[item]
        return found

    async def _attempt(self, items: list[K], number: int) -> None:
        """Locates items and asks their brokers."""
        if number > 1:
            await self._cluster.rest(number - 1, self._deadline, self.unfinished[items[0]])
            if not self._deadline.remaining_ms():
                self._end_if_last()
                return
        try:
            located = await self._locate(items)
        except DeadlineExceededError as error:
            if number == 1:
                raise
            # Other attempts may still get an answer: `run` ends by itself.
            self.unfinished.update(dict.fromkeys(items, str(error)))
            self._end_if_last()
            return
        for broker_id, placed in located.placed.items():
            for start in range(0, len(placed), ITEMS_PER_REQUEST_MAX):
                part = placed[start : start + ITEMS_PER_REQUEST_MAX]
                self._tasks.spawn(self._ask(broker_id, part, number), name=f"ask-{broker_id}")
        self._settle(located.others, number)

    async def _ask(self, broker_id: BrokerId, items: list[K], number: int) -> None:
        outcomes: dict[K, Outcome[V]]
        if number == 1:
            self.unfinished.update(dict.fromkeys(items, f"broker {broker_id} has not answered"))
        try:
            async with self._in_flight:
                found = await self._send(broker_id, items)
            lacking = RetryLater(f"the answer of broker {broker_id} did not contain it")
            outcomes = {item: found.get(item, lacking) for item in items}
        except ConnectionFailedError as error:
            outcomes = dict.fromkeys(items, RetryLater(f"broker {broker_id}: {error}"))
        except AuthenticationFailedError:
            raise
        except AdminError as error:
            outcomes = dict.fromkeys(items, error)
        self._settle(outcomes, number)

    def _settle(self, outcomes: Mapping[K, Outcome[V]], number: int) -> None:
        """Keeps final outcomes and begins the next attempt for the rest."""
        again: list[K] = []
        for item, outcome in outcomes.items():
            if isinstance(outcome, RetryLater):
                self.unfinished[item] = outcome.reason
                again.append(item)
                continue
            del self.unfinished[item]
            if isinstance(outcome, Done):
                self.done[item] = outcome.value
            else:
                self.failed[item] = outcome
        if again:
            self._tasks.spawn(self._attempt(again, number + 1), name="attempt")
        if not self.unfinished:
            self._ended.set()

    def _end_if_last(self) -> None:
        """Ends `run` when the time is over and no other attempt runs."""
        if len(self._tasks) == 1:
            self._ended.set()

    def _abort(self, error: BaseException) -> None:
        """Fails the call with the error of a task."""
        self._fault = error
        self._ended.set()
