"""Answers the probes of orchestrators.

`/health/live`: whether the event loop answers. `/health/ready`: whether clients can be sent here; if not, 503 and the
reasons.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from lowtide.broker.http.readiness import Readiness
from lowtide.runtime.http_app import answers_probes, decides_itself

IN_SYNC: Final = "in_sync"
"""The query parameter that asks for replicas in sync too, whatever is configured."""

KEPT_MS: Final = 1_000
"""How often all partitions are examined at most, however many probes come."""


class HealthSite:
    """Answers probes. A login needs no rights."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._looking = asyncio.Lock()
        self._found: list[str] = []
        self._found_ms = -KEPT_MS

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/health/live", self._live)
        app.router.add_get("/health/ready", self._ready)

    @decides_itself
    @answers_probes
    async def _live(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"live": True})

    @decides_itself
    @answers_probes
    async def _ready(self, request: web.Request) -> web.StreamResponse:
        readiness = self._readiness
        reasons = readiness.reasons()
        if readiness.wants_in_sync or IN_SYNC in request.query:
            reasons += await self._out_of_sync()
        return web.json_response(
            {"ready": not reasons, "broker": readiness.broker_id, "reasons": reasons}, status=503 if reasons else 200
        )

    async def _out_of_sync(self) -> list[str]:
        """Returns the reason, if partitions are not in sync."""
        turns = self._readiness.turns
        async with self._looking:
            if turns.now_ms() - self._found_ms >= KEPT_MS:
                found: list[str] = []
                await turns.walk(self._readiness.out_of_sync(found))
                self._found, self._found_ms = found, turns.now_ms()
            return self._found
