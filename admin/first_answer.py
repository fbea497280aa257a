"""One question that any broker can answer, asked at one broker after the other until the first answer comes.

Guards: a broker that accepts the question and is silent (a stopped process, a dead link) costs a call `SILENT_MS`, not
the time limit of a request. It is still waited for: where all brokers are slow, the first one that was asked usually
answers first.
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
    from lowtide.admin.brokers import Brokers
    from lowtide.admin.patience import Deadline
    from lowtide.admin.settings import Address

T = TypeVar("T")

TIMER_EARLY_MS: Final = 1
"""A loop's timer may fire this much before its time, for loops count in whole milliseconds."""


class Answer(NamedTuple, Generic[T]):
    """The first answer, and where it came from."""

    value: T
    address: Address


class FirstAnswer:
    """One round of asking. `failures` gets the reason of each address that failed.

    An attempt that fails as the call's time ends was cut short, and says nothing about the broker: its reason replaces
    no earlier one.
    """

    def __init__(self, connections: Brokers, failures: dict[Address, str], deadline: Deadline) -> None:
        self._connections = connections
        self._failures = failures
        self._deadline = deadline

    async def of(
        self, candidates: Sequence[Address], ask: Callable[[Address], Coroutine[Any, Any, T]]
    ) -> Answer[T] | None:
        """The first answer; None when all have failed.

        `ask` must end by itself. Errors: those of `ask`, except ConnectionFailedError.
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

    def _first_of(self, done: list[asyncio.Task[T]], asked: dict[asyncio.Task[T], Address]) -> Answer[T] | None:
        """The first of these tasks that has an answer; those that failed are taken out. Errors: as `of`."""
        for task in done:
            address = asked.pop(task)
            try:
                value = task.result()
            except ConnectionFailedError as error:
                if address not in self._failures or self._deadline.remaining_ms() > TIMER_EARLY_MS:
                    self._failures[address] = str(error)
            else:
                self._connections.note_answer(address)
                return Answer(value, address)
        return None


def _seen_by_the_caller(name: str, error: BaseException) -> None:
    """A task's failure is its result."""
