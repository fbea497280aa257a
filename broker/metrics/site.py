"""The HTTP route `/metrics`: the page in the requested format, compressed if accepted."""

from __future__ import annotations

from aiohttp import web

from lowtide.broker.metrics.collector import Collector, PageKind
from lowtide.broker.metrics.exposition import accepted_format


class MetricsSite:
    """The route of the metrics."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self._page)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        is_packed = "gzip" in request.headers.get("Accept-Encoding", "").lower()
        kind = PageKind(accepted_format(request.headers.get("Accept", "")), is_packed)
        pieces = await self._collector.page(kind)
        response = web.StreamResponse(headers={"Content-Type": kind.form.value, "Vary": "Accept, Accept-Encoding"})
        if is_packed:
            response.headers["Content-Encoding"] = "gzip"
        response.content_length = sum(map(len, pieces))
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response
