"""Many items (partitions, groups) of one call, each tried until it is done, has failed for good, or the time is over.

Items are sent together to the broker that each belongs to: one request for a broker and attempt. Brokers don't wait for
each other: what one answered as retriable is located and tried again while another is still silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from lowtide.admin.cluster import Cluster
from lowtide.admin.errors import AdminError, AuthenticationFailedError, ConnectionFailedError, DeadlineExceededError
from lowtide.admin.patience import Deadline
from lowtide.protocol.types import BrokerId
from lowtide.runtime.tasks import TaskRegistry

IN_FLIGHT_MAX: Final = 64
"""Brokers that one call asks at once; the others come after them."""

ITEMS_PER_REQUEST_MAX: Final = 25_000
"""More go into several requests: a request of so many partitions has about half a megabyte."""

GRACE_MS: Final = 50
"""What is waited for ends with the deadline by itself, and says why; this much later it is cut off."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Retry(NamedTuple):
    """It didn't work this time. The reason is reported if no attempt succeeds."""

    reason: str


class Done(NamedTuple, Generic[V]):
    """It worked."""

    value: V


Outcome: TypeAlias = Done[V] | Retry | AdminError
"""What one attempt came to; an AdminError is final."""


@dataclass(slots=True)
class Located(Generic[K]):
    """Where items belong now, and those for which no broker can be asked."""

    placed: dict[BrokerId, list[K]] = field(default_factory=dict)
    others: dict[K, Retry | AdminError] = field(default_factory=dict)

    def put(self, broker_id: BrokerId, item: K) -> None:
        """`item` belongs to this broker."""
        self.placed.setdefault(broker_id, []).append(item)


Locate: TypeAlias = Callable[[Collection[K], int], Awaitable[Located[K]]]
"""Finds where items belong; gets the number of the attempt, from 1. An AdminError ends the call."""

Send: TypeAlias = Callable[[BrokerId, list[K], int], Awaitable[Mapping[K, Outcome[V]]]]
"""Asks one broker. A ConnectionFailedError lets all items be tried again, another AdminError is final for all of them."""


class Attempts(Generic[K, V]):
    """One call.

    `done` and `failed` grow while `run` runs; what is in neither when it returns is in `unfinished`, with the last
    reason.
    """

    def __init__(self, cluster: Cluster, deadline: Deadline, locate: Locate[K], send: Send[K, V]) -> None:
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
        """Try until the deadline.

        Errors: AuthenticationFailedError, and what `locate` raises: DeadlineExceededError too, if nothing could be
        located at all.
        """
        if not items:
            return
        self._items = tuple(items)
        self.unfinished = dict.fromkeys(items, "no broker was asked yet")
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
        """Each item's outcome, in the order of `run`; for what isn't finished a sentence that begins with `what(item)`."""
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
        """Locate items and ask the brokers that they belong to."""
        if number > 1:
            await self._cluster.rest(number - 1, self._deadline, self.unfinished[items[0]])
            if not self._deadline.remaining_ms():
                self._end_if_last()
                return
        try:
            located = await self._locate(items, number)
        except DeadlineExceededError as error:
            if number == 1:
                raise
            # What others are still waiting for may come at the last moment: `run` ends by itself.
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
            self.unfinished.update(dict.fromkeys(items, f"broker {broker_id} hasn't answered"))
        try:
            async with self._in_flight:
                found = await self._send(broker_id, items, number)
            lacking = Retry(f"the answer of broker {broker_id} lacked it")
            outcomes = {item: found.get(item, lacking) for item in items}
        except ConnectionFailedError as error:
            outcomes = dict.fromkeys(items, Retry(f"broker {broker_id}: {error}"))
        except AuthenticationFailedError:
            raise
        except AdminError as error:
            outcomes = dict.fromkeys(items, error)
        self._settle(outcomes, number)

    def _settle(self, outcomes: Mapping[K, Outcome[V]], number: int) -> None:
        """Keep what is final, and try the rest again."""
        again: list[K] = []
        for item, outcome in outcomes.items():
            if isinstance(outcome, Retry):
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
        """The time is over, and no other attempt is under way."""
        if len(self._tasks) == 1:
            self._ended.set()

    def _abort(self, error: BaseException) -> None:
        """A task failed: the call does."""
        self._fault = error
        self._ended.set()
