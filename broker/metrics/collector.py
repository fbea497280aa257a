"""The page of metrics: read and written in turns with other work, and kept for a moment.

However many clients ask at once, and however often, one page of each kind is written in `KEPT_MS`, or in `RESTS` times
as long as it took; the others get the same bytes. So who asks without a pause takes a tenth of the loop at most. A
client that goes away ends nothing: the page is kept for the next.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from lowtide.broker.metrics.exposition import Format, Page
from lowtide.broker.metrics.merged_page import MergedPage
from lowtide.broker.metrics.recent_times import Recent
from lowtide.broker.metrics.record_times import RecordTimes
from lowtide.broker.metrics.registry import SUBJECTS
from lowtide.broker.metrics.remote_ends import RemoteEnds
from lowtide.broker.metrics.sources import IdleShare, Kept, Scrape, Sources
from lowtide.broker.slices import walk_in_slices

KEPT_MS: Final = 1_000
"""A page is given out for so long at least. Prometheus asks each fifteen seconds."""

RESTS: Final = 9
"""And for so many times the time that it took, so that clients feel little of it: that of 10,000 partitions for ten seconds."""

_GZIP_LEVEL: Final = 1
"""A piece of fifty kilobytes takes half a millisecond, and a twentieth of its size."""

_GZIP_FORMAT: Final = 31
"""The largest window, with gzip's header (`zlib.compressobj`)."""


class PageKind(NamedTuple):
    """What a client asks for."""

    form: Format = Format.TEXT
    is_packed: bool = False
    """By gzip."""
    is_own: bool = False
    """Without the brokers beside this one."""


OtherPages: TypeAlias = Callable[[Format], Awaitable[Sequence[tuple[int, bytes]]]]
"""Gives the pages of the other brokers of this machine, those that answer, by their ids."""


class Collector:
    """Writes pages of metrics. One for each broker."""

    def __init__(
        self, sources: Sources, *, has_partitions: Callable[[], bool], others: OtherPages | None = None
    ) -> None:
        """`has_partitions()`: whether there are to be series of single partitions.

        `others`: where several brokers have one page.
        """
        self._sources = sources
        self._others = others
        self._has_partitions = has_partitions
        self._for_later = Kept(
            Recent(sources.host.dispatcher.times),
            IdleShare(),
            RecordTimes(sources.broker.worker),
            RemoteEnds(sources.broker, sources.peers),
        )
        self._pages: dict[PageKind, asyncio.Task[Sequence[bytes]]] = {}
        """Those that are being written, and those that are given out."""

    async def page(self, kind: PageKind = PageKind()) -> Sequence[bytes]:  # noqa: B008 - it doesn't change
        """The page in pieces, as it was written a moment ago."""
        task = self._pages.get(kind)
        if task is None:
            began_ms = self._sources.broker.turns.now_ms()
            task = self._pages[kind] = self._sources.broker.tasks.spawn(self._write(kind), name="metrics")
            task.add_done_callback(lambda _task: self._keep(kind, self._sources.broker.turns.now_ms() - began_ms))
        return await asyncio.shield(task)

    def _keep(self, kind: PageKind, took_ms: int) -> None:
        asyncio.get_running_loop().call_later(max(KEPT_MS, RESTS * took_ms) / 1000, self._pages.pop, kind, None)

    async def _write(self, kind: PageKind) -> Sequence[bytes]:
        turns = self._sources.broker.turns
        if kind.is_packed:  # Of the page that others read plain.
            packed: list[bytes] = []
            await walk_in_slices(turns, _pack(await self.page(kind._replace(is_packed=False)), packed))
            return packed
        if self._others is not None and not kind.is_own:
            return await self._merged(self._others, kind)
        page = Page(kind.form)
        await walk_in_slices(turns, self._steps(page))
        return page.finish()

    async def _merged(self, ask_others: OtherPages, kind: PageKind) -> Sequence[bytes]:
        others, own = await asyncio.gather(ask_others(kind.form), self.page(kind._replace(is_own=True)))
        broker, merged = self._sources.broker, MergedPage(kind.form)
        for node_id, pieces in sorted([(broker.config.node_id, own), *((node_id, [page]) for node_id, page in others)]):
            await walk_in_slices(broker.turns, merged.add(node_id, pieces))
        return merged.finish()

    def _steps(self, page: Page) -> Iterator[None]:
        scrape = Scrape(self._sources, self._for_later, partitions=self._has_partitions())
        yield from scrape.read_partitions()
        for subject in SUBJECTS:
            yield from subject.write(scrape, page)


def _pack(pieces: Sequence[bytes], packed: list[bytes]) -> Iterator[None]:
    """Compress pieces as one stream."""
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    for piece in pieces:
        packed.append(packer.compress(piece))
        yield
    packed.append(packer.flush())
