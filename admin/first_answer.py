"""Sends a request to one broker after the other, until the first answer comes.

A silent broker (a stopped process, a dead link) delays a call by `SILENT_MS` only, not by the request timeout. Its
answer still counts: if all brokers are slow, the first one usually answers first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from lowtide.admin.errors import ConnectionFailedError
from lowtide.protocol.client.retries import SILENT_MS
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from lowtide.admin.brokers import BrokerConnections
    from lowtide.admin.patience import Deadline
    from lowtide.admin.settings import Address

T = TypeVar("T")

TIMER_EARLY_MS: Final = 1
"""Event loops round to milliseconds, so a timer may fire this much too early."""


class BrokerAnswer(NamedTuple, Generic[T]):
    """An answer and the address of its broker."""

    value: T
    address: Address


class FirstAnswer:
    """One round over the brokers. `failures` gets the reason of each address that failed.

    A failure at the call's deadline says nothing about the broker, so it does not replace an earlier reason.
    """

    def __init__(self, connections: BrokerConnections, failures: dict[Address, str], deadline: Deadline) -> None:
        self._connections = connections
        self._failures = failures
        self._deadline = deadline

    async def of(
        self, candidates: Sequence[Address], ask: Callable[[Address], Coroutine[Any, Any, T]]
    ) -> BrokerAnswer[T] | None:
        """Returns the first answer, or None if all fail. `ask` must end by itself.

        Errors: those of `ask`, except ConnectionFailedError.
        """
        waiting = deque(candidates)
        asked: dict[asyncio.Task[T], Address] = {}
        tasks = TaskRegistry(_seen_by_the_caller)
        try:
            while waiting or asked:
                if waiting:
                    address = waiting.popleft()
                    asked[tasks.spawn(ask(address), name=f"ask-{address}")] = address
                limit_s = SILENT_MS / 1000 if waiting else None
                done, _ = await asyncio.wait(asked, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    for address in asked.values():
                        self._connections.note_silence(address)
                answer = self._first_of([task for task in asked if task in done], asked)
                if answer is not None:
                    return answer
            return None
        finally:
            await tasks.cancel_all()

    def _first_of(self, done: list[asyncio.Task[T]], asked: dict[asyncio.Task[T], Address]) -> BrokerAnswer[T] | None:
        """Returns the answer of the first successful task, and removes failed ones. Errors: as `of`."""
        for task in done:
            address = asked.pop(task)
            try:
                value = task.result()
            except ConnectionFailedError as error:
                if address not in self._failures or self._deadline.remaining_ms() > TIMER_EARLY_MS:
                    self._failures[address] = str(error)
            else:
                self._connections.note_answer(address)
                return BrokerAnswer(value, address)
        return None


def _seen_by_the_caller(name: str, error: BaseException) -> None:
    """Does nothing: the caller reads the error from the task."""
