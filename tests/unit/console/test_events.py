"""A stream takes at most its share of the event loop, and shows a change of its own visitor at once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from lowtide.console import events
from lowtide.console.events import INTERVAL_S, SHARE, pause_s
from lowtide.console.work import SessionWork
from lowtide.runtime.clock import Clock
from lowtide.runtime.tasks import TaskRegistry


@pytest.mark.parametrize("took_ms", [0, 1, 30, 31, 65, 190, 1_000, 20_000])
def test_an_update_takes_at_most_its_share_of_the_time(took_ms: int):
    pause = pause_s(took_ms)
    assert pause >= INTERVAL_S
    assert took_ms / (took_ms + 1000 * pause) <= 1 / SHARE + 1e-9


class Visit:
    """A stream of one view, whose updates take twenty seconds each; it is the stream's clock, session and response."""

    streams, used_ms = 0, 0

    def __init__(self) -> None:
        self.now_ms, self.count = 0, 0
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        self.work = SessionWork(cast("Clock", self), cast("Any", None), cast("TaskRegistry", None))

    def monotonic_ms(self) -> int:
        return self.now_ms

    def touch(self, now_ms: int) -> None:
        self.used_ms = now_ms

    async def read(self) -> int:
        self.now_ms += 20_000
        self.count += 1
        return self.count

    async def write(self, event: bytes) -> None:
        self.written.put_nowait(event)


@pytest.mark.parametrize("when", ["in the pause", "in the update"])
async def test_a_visitor_sees_their_own_change_at_once(monkeypatch: pytest.MonkeyPatch, when: str):
    """Protects from old offsets on the page after a reset: on a busy machine a pause took minutes."""
    monkeypatch.setattr(events, "INTERVAL_S", 0.01)
    visit = Visit()

    async def read() -> int:
        value = await visit.read()
        if when == "in the update" and value == 1:
            visit.work.forget_answers()
        return value

    stream = asyncio.create_task(events._send(cast("Any", visit), [read], cast("Any", visit), cast("Clock", visit)))
    try:
        assert b'"value":1}' in await visit.written.get()
        if when == "in the pause":
            await asyncio.sleep(0)
            visit.work.forget_answers()
        assert b'"value":2}' in await asyncio.wait_for(visit.written.get(), 30)
        await asyncio.sleep(0)
        assert visit.written.empty()
    finally:
        stream.cancel()
