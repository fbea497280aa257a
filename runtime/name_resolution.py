"""Looks up host names in a thread, so that a name server that doesn't answer blocks neither the loop nor a stop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from lowtide.runtime.threads import start_thread

Resolve = Callable[[str], object]
"""Looks a name up, blocking. Errors: OSError."""

LITERAL_CHARACTERS: Final = frozenset("0123456789.")


def is_literal(host: str) -> bool:
    """Returns whether it is an IPv4 or IPv6 address already."""
    return ":" in host or LITERAL_CHARACTERS.issuperset(host)


def _of_the_system(name: str) -> object:
    return socket.getaddrinfo(name, None)


async def unresolved(hosts: Sequence[str], within_s: float, resolve: Resolve = _of_the_system) -> dict[str, str]:
    """Returns the names among `hosts` that don't resolve within `within_s` in total, with the reason.

    Addresses aren't looked up. Names are looked up in sequence, in a daemon thread. Errors: OSError if no thread can
    start.
    """
    names = [host for host in dict.fromkeys(hosts) if not is_literal(host)]
    reasons = dict.fromkeys(names, f"no answer within {within_s:g} s")
    if not names:
        return reasons
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def on_answer(name: str, reason: str | None) -> None:
        if reason is None:
            reasons.pop(name, None)
        else:
            reasons[name] = reason
        if name == names[-1]:
            done.set()

    def look_up() -> None:
        for name in names:
            reason = None
            try:
                resolve(name)
            except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long.
                reason = getattr(error, "strerror", None) or str(error)
            with suppress(RuntimeError):  # The loop is closed: nothing waits any more.
                loop.call_soon_threadsafe(on_answer, name, reason)

    start_thread(threading.Thread(target=look_up, name="name resolution", daemon=True))
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await done.wait()
    return dict(reasons)
