"""Server-sent events: sends views, and each of them again whenever it changes.

Between two updates are at least `INTERVAL_S`, and fifty times the duration of an update, so that a stream uses at most
a fiftieth of the event loop. After a change by the visitor only `INTERVAL_S` counts, however long updates take.

One stream carries all views of a browser. A browser opens at most six connections to a host, and with a stream for each
view its tabs would wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lowtide.admin.errors import AdminError, ClientClosedError
from lowtide.console.answers import RefusedError, encoded, refused
from lowtide.console.sessions import STREAMS_MAX, ConsoleSession

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock

INTERVAL_S: Final = 1.5
SHARE: Final = 50
"""An update takes at most one such part of the time: 2 %, which is what all tabs of a browser may cost a broker."""

SILENT_S: Final = 15.0
"""After so long without a change a comment is sent, to notice a closed connection."""

LIVES_S: Final = 15 * 60.0
"""The lifetime of a stream. The browser then requests it again, which checks the session."""


async def stream(
    request: web.Request,
    session: ConsoleSession,
    reads: Sequence[Callable[[], Awaitable[Any]]],
    clock: Clock,
    headers: Mapping[str, str],
) -> web.StreamResponse:
    """Sends events until the browser disconnects; each has the position of its view.

    Errors: RefusedError before the first event.
    """
    if session.streams >= STREAMS_MAX:
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, f"This visitor has {STREAMS_MAX} live pages already.")
    response = web.StreamResponse(headers={**headers, "Cache-Control": "no-store", "Content-Type": "text/event-stream"})
    session.streams += 1
    try:
        await response.prepare(request)
        await _send(response, reads, session, clock)
    except ConnectionError:
        pass  # The browser has disconnected.
    finally:
        session.streams -= 1
    return response


async def _send(
    response: web.StreamResponse, reads: Sequence[Callable[[], Awaitable[Any]]], session: ConsoleSession, clock: Clock
) -> None:
    begun_ms = said_ms = clock.monotonic_ms()
    last = [b""] * len(reads)
    while clock.monotonic_ms() - begun_ms < LIVES_S * 1000:
        started_ms, change = clock.monotonic_ms(), session.work.next_change()
        for number, read in enumerate(reads):
            try:
                event = _event("value", number, encoded(await read()))
            except ClientClosedError:
                return
            except (AdminError, RefusedError) as error:
                sentence = error.sentence if isinstance(error, RefusedError) else refused(error).sentence
                event = _event("trouble", number, encoded(sentence))
            if event != last[number]:
                await response.write(event)
                last[number], said_ms = event, clock.monotonic_ms()
        now_ms = clock.monotonic_ms()
        session.touch(now_ms)
        if now_ms - said_ms > SILENT_S * 1000:
            await response.write(b": nothing has changed\n\n")
            said_ms = now_ms
        await asyncio.sleep(INTERVAL_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s(now_ms - started_ms) - INTERVAL_S):
                await change.wait()


def pause_s(took_ms: int) -> float:
    """Returns how long a stream waits after an update that took so long."""
    return max(INTERVAL_S, (SHARE - 1) * took_ms / 1000)


def _event(kind: str, number: int, value: bytes) -> bytes:
    return b'event: %b\ndata: {"view":%d,"%b":%b}\n\n' % (kind.encode(), number, kind.encode(), value)
