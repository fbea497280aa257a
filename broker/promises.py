"""Responses of coroutines, and coroutines that wait for responses and callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from lowtide.broker.client_waits import ClientPresence, current_presence
from lowtide.broker.pending import Pending

ResponseT = TypeVar("ResponseT")


class Spawn(Protocol):
    """Starts a named task and keeps a reference."""

    def __call__(self, coro: Coroutine[Any, Any, Any], *, name: str) -> object: ...


def promised(
    work: Callable[[], Coroutine[Any, Any, ResponseT | None]], spawn: Spawn, *, name: str
) -> Pending[ResponseT]:
    """Returns the response of a task. Without one, or if it cannot be sent, the connection is closed.

    When the client disconnects, the task ends its waits (`client_wait`) and completes the rest.
    """
    pending: Pending[ResponseT] = Pending()
    presence = ClientPresence()
    pending.on_abandoned, pending.completes_anyway = presence.leave, True

    async def run() -> None:
        presence.begin()
        try:
            pending.complete(await work())
        except BaseException:
            pending.fail()  # Also if the response could not be encoded.
            raise

    spawn(run(), name=name)
    return pending


def mapped(pending: Pending[Any], change: Callable[[Any], Any]) -> Pending[Any]:
    """Returns a response that `change` makes from another one; none if there is none."""
    changed: Pending[Any] = Pending(holds_connection=pending.holds_connection)
    changed.on_abandoned = pending.abandon

    def on_answer(response: Any) -> None:
        if response is None:
            changed.fail()
        else:
            changed.complete(change(response))

    pending.listen(on_answer)
    return changed


def future_of(begin: Callable[[Callable[[ResponseT], None]], object]) -> asyncio.Future[ResponseT]:
    """Calls `begin` with a callback, and returns a future of the first result that the callback gets.

    The callback ignores later results, and those after the future was cancelled.
    """
    future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

    def on_result(result: ResponseT) -> None:
        if not future.done():
            future.set_result(result)

    begin(on_result)
    return future


async def answer_of(pending: Pending[ResponseT], *, for_client: bool = False) -> ResponseT | None:
    """Waits for a response; returns None if there is none.

    With `for_client` it is abandoned when that client disconnects.
    """
    answered: asyncio.Future[ResponseT | None] = future_of(pending.listen)
    presence = current_presence() if for_client else None
    if presence is None:
        return await answered

    def give_up() -> None:
        pending.abandon()
        if not answered.done():
            answered.set_result(None)

    with presence.listening(give_up):
        return await answered
