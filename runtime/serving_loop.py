"""The event loop of a server process: uvloop's, without its false report about closed connections."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvloop

_ON_TLS: Final = "Fatal error on SSL protocol"
_CLOSED: Final = "unable to perform operation on <TCPTransport closed=True"


def new_serving_loop() -> asyncio.AbstractEventLoop:
    """Returns a loop for `asyncio.Runner`, which closes it."""
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(report)
    return loop


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Passes an uncaught error to asyncio's own handler, which logs it.

    One is ignored: if TLS bytes arrive for a connection that was closed in the same pass of the loop, uvloop decrypts
    them and writes to the closed transport. Nothing is lost, and the connection's owner knows that it is closed.
    """
    error = context.get("exception")
    if context.get("message") == _ON_TLS and isinstance(error, RuntimeError) and str(error).startswith(_CLOSED):
        return
    loop.default_exception_handler(context)
