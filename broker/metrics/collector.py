"""Writes and caches the metrics page, in turns with other work.

One page of each kind is written per `KEPT_MS`, or per `RESTS` times the time it took, however many clients ask; all get
the same bytes. So clients can use at most a tenth of the loop. A disconnected client does not stop the page: it is
cached for the next one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from lowtide.broker.metrics.exposition import Format, Page
from lowtide.broker.metrics.merged_page import MergedPage
from lowtide.broker.metrics.recent_times import RecentRequestTimes
from lowtide.broker.metrics.record_times import ProducedTimes
from lowtide.broker.metrics.registry import SUBJECTS
from lowtide.broker.metrics.remote_ends import RemoteEnds
from lowtide.broker.metrics.sources import IdleShare, Scrape, ScrapeMemory, Sources

KEPT_MS: Final = 1_000
"""The minimum time for which a page is cached. Prometheus scrapes every fifteen seconds."""

RESTS: Final = 9
"""The cache time as a multiple of the writing time: the page of 10,000 partitions is cached for ten seconds."""

_GZIP_LEVEL: Final = 1
"""A piece of fifty kilobytes takes half a millisecond and shrinks to a twentieth."""

_GZIP_FORMAT: Final = 31
"""The largest window, with a gzip header (`zlib.compressobj`)."""


class PageKind(NamedTuple):
    """The variant of a page."""

    form: Format = Format.TEXT
    is_packed: bool = False
    """Compressed with gzip."""
    is_own: bool = False
    """Without the other brokers of this machine."""


OtherPages: TypeAlias = Callable[[Format], Awaitable[Sequence[tuple[int, bytes]]]]
"""Returns the pages of the other brokers of this machine that answer, by id."""


class Collector:
    """Writes the metrics pages of one broker."""

    def __init__(
        self, sources: Sources, *, has_partitions: Callable[[], bool], others: OtherPages | None = None
    ) -> None:
        """`has_partitions()` returns whether to write series of single partitions.

        `others`: for several brokers with one page.
        """
        self._sources = sources
        self._others = others
        self._has_partitions = has_partitions
        self._for_later = ScrapeMemory(
            RecentRequestTimes(sources.host.dispatcher.times),
            IdleShare(),
            ProducedTimes(sources.broker.worker),
            RemoteEnds(sources.broker, sources.peers),
        )
        self._pages: dict[PageKind, asyncio.Task[Sequence[bytes]]] = {}
        """The pages that are being written, or cached."""

    async def page(self, kind: PageKind = PageKind()) -> Sequence[bytes]:  # noqa: B008 - immutable
        """Returns the page in pieces, possibly cached."""
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
        if kind.is_packed:  # Compresses the page that other clients read uncompressed.
            packed: list[bytes] = []
            await turns.walk(_pack(await self.page(kind._replace(is_packed=False)), packed))
            return packed
        if self._others is not None and not kind.is_own:
            return await self._merged(self._others, kind)
        page = Page(kind.form)
        await turns.walk(self._steps(page))
        return page.finish()

    async def _merged(self, ask_others: OtherPages, kind: PageKind) -> Sequence[bytes]:
        others, own = await asyncio.gather(ask_others(kind.form), self.page(kind._replace(is_own=True)))
        broker, merged = self._sources.broker, MergedPage(kind.form)
        for node_id, pieces in sorted([(broker.config.node_id, own), *((node_id, [page]) for node_id, page in others)]):
            await broker.turns.walk(merged.add(node_id, pieces))
        return merged.finish()

    def _steps(self, page: Page) -> Iterator[None]:
        scrape = Scrape(self._sources, self._for_later, partitions=self._has_partitions())
        yield from scrape.read_partitions()
        for subject in SUBJECTS:
            yield from subject.write(scrape, page)


def _pack(pieces: Sequence[bytes], packed: list[bytes]) -> Iterator[None]:
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    for piece in pieces:
        packed.append(packer.compress(piece))
        yield
    packed.append(packer.flush())
