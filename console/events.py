"""Server-sent events: a view, and again whenever it has changed.

Between two looks lies at least `INTERVAL_S`, and twenty times what the look took: a stream takes at most a twentieth of
the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lowtide.admin.errors import AdminError, ClientClosedError
from lowtide.console.answers import RefusedError, encoded, refused
from lowtide.console.sessions import STREAMS_MAX, Session

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock

INTERVAL_S: Final = 1.5
SHARE: Final = 20
SILENT_S: Final = 15.0
"""After so long without a change a comment is sent: a peer that is gone is noticed by it."""

LIVES_S: Final = 15 * 60.0
"""Then the stream ends and the browser asks again, which shows whether the session still is."""


async def stream(
    request: web.Request, session: Session, look: Callable[[], Awaitable[Any]], clock: Clock, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with events until the peer goes. Errors: RefusedError before the first one."""
    if session.streams >= STREAMS_MAX:
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, f"{STREAMS_MAX} pages of this visitor are live already.")
    response = web.StreamResponse(headers={**headers, "Cache-Control": "no-store", "Content-Type": "text/event-stream"})
    session.streams += 1
    try:
        await response.prepare(request)
        await _send(response, look, session, clock)
    except ConnectionError:
        pass  # The peer has gone.
    finally:
        session.streams -= 1
    return response


async def _send(
    response: web.StreamResponse, look: Callable[[], Awaitable[Any]], session: Session, clock: Clock
) -> None:
    begun_ms = said_ms = clock.monotonic_ms()
    last = b""
    while clock.monotonic_ms() - begun_ms < LIVES_S * 1000:
        looked_ms = clock.monotonic_ms()
        kind, value = b"value", b""
        try:
            value = encoded(await look())
        except ClientClosedError:
            return
        except (AdminError, RefusedError) as error:
            sentence = error.sentence if isinstance(error, RefusedError) else refused(error).sentence
            kind, value = b"trouble", encoded({"error": sentence})
        now_ms = clock.monotonic_ms()
        session.is_as_before(now_ms)
        if value != last:
            await response.write(b"event: " + kind + b"\ndata: " + value + b"\n\n")
            last, said_ms = value, now_ms
        elif now_ms - said_ms > SILENT_S * 1000:
            await response.write(b": nothing has changed\n\n")
            said_ms = now_ms
        await asyncio.sleep(max(INTERVAL_S, SHARE * (now_ms - looked_ms) / 1000 - 1))
