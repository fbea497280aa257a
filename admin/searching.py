"""Searches records of a topic, in all of its partitions at once. It runs where the client runs.

    search = Search(client, SearchRequest(topic="flights", conditions=Conditions(text=b"EWR")))
    await search.run(show)

Hits are reported as they are found. The search ends at its number of hits, at a limit of time or bytes, when nothing is
left, or when its task is cancelled; `outcome` then says where a later search goes on.

Guards: what it does at once takes about a millisecond. Other work of the event loop gets its turn in between, because a
broker's own console searches on the broker's loop. Batches that decompress to more than some 100 KiB are decompressed
in a thread. A damaged batch does not end a search; it is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from lowtide.admin.batch_rows import Payload, ReadableBatch, UnreadableBatchError, fetched_batches
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
from lowtide.admin.search_conditions import Conditions, Matcher
from lowtide.admin.search_walk import WINDOW_BYTES_MAX, FirstHits, Hit, OffsetWindow, PartitionWalk, next_walk
from lowtide.admin.slices import Slices, payload_of
from lowtide.admin.value_decoding import ValueDecoder
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.tasks import TaskRegistry

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.admin.records import FetchedRecords

WALKS_AT_ONCE: Final = 4
"""Partitions that are searched at once: while one answer is searched, others are on their way."""

PIECE_BYTES: Final = 1 << 20
"""Bytes are found in pieces of this size, each in a fraction of a millisecond."""

RECORDS_OF_A_STEP: Final = 32
"""How many records are read between two looks at the clock."""

TROUBLES_MAX: Final = 5
"""The sentences about batches and partitions that are kept; more are counted."""

HITS_MAX: Final = 10_000
"""The most hits of a search, which are in memory at once."""

OnHits = Callable[[Sequence[Hit]], Awaitable[None]]
Place: TypeAlias = OffsetSpec | Timestamp | Mapping[int, Offset]
"""Where to begin: a place in all partitions, or offsets by partition. Partitions that it leaves out are searched
wholly."""


class SearchEnd(Enum):
    """Why a search ended."""

    COMPLETE = "complete"
    """Nothing is left."""
    HITS = "hits"
    """It has all hits that were asked for."""
    BYTES = "bytes"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """The limits of a search."""

    hits: int = 50
    bytes_read: int = 1 << 30
    ms: int = 30_000
    held_bytes: int = 32 << 20
    """The bytes of all hits together: large ones are fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What to search, and where."""

    topic: str
    partitions: tuple[int, ...] | None = None
    """None for all."""
    conditions: Conditions = field(default_factory=Conditions)
    backwards: bool = True
    """Whether the newest records come first."""
    place: Place = OffsetSpec.LATEST
    """Where to begin: backwards an exclusive end."""
    until: Place | None = None
    """Where to end: forwards an exclusive end. None for the end of the log."""
    limits: SearchLimits = field(default_factory=SearchLimits)
    control: bool = False
    """Whether markers are rows, if there are no conditions."""
    read_committed: bool = False


@dataclass(slots=True)
class SearchFigures:
    """How far a search has come."""

    bytes_read: int = 0
    records: int = 0
    hits: int = 0
    """All hits, those that were left out too."""
    troubles: list[str] = field(default_factory=list)
    troubles_total: int = 0

    def add_trouble(self, sentence: str) -> None:
        """Notes something that can't be searched."""
        self.troubles_total += 1
        if len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(sentence)


class Search:
    """One search. `run` it once; its figures may be read meanwhile."""

    def __init__(self, client: AdminClient, request: SearchRequest, decoder: ValueDecoder | None = None) -> None:
        self.request = request
        self.progress = SearchFigures()
        self.matcher = Matcher(request.conditions, decoder or ValueDecoder())
        self.walks: Sequence[PartitionWalk] = ()
        self.ends: Mapping[int, tuple[Offset, Offset]] = {}
        """Log start and high watermark of each partition, when the search began."""
        self.begins: Mapping[int, Offset] = {}
        """Where the search of each partition began: backwards an exclusive end."""
        self._client = client
        self._clock = clock = client.cluster.ports.clock
        self._first = FirstHits(request.limits.hits, request.limits.held_bytes, backwards=request.backwards)
        self._slices = Slices(clock)
        self._computing = asyncio.Lock()
        self._needles = request.conditions.needles
        self._began_ms = clock.monotonic_ms()
        self._view: ClusterView | None = None

    @property
    def hits(self) -> list[Hit]:
        """The first hits, in the order of the search."""
        return self._first.hits

    @property
    def end(self) -> SearchEnd | None:
        """Why it ends; None while it goes on."""
        limits = self.request.limits
        if all(walk.is_done for walk in self.walks):
            return SearchEnd.HITS if self._first.has_left_out else SearchEnd.COMPLETE
        if self._first.is_settled(self.walks):
            return SearchEnd.HITS
        if self.progress.bytes_read >= limits.bytes_read:
            return SearchEnd.BYTES
        if self._clock.monotonic_ms() - self._began_ms >= limits.ms:
            return SearchEnd.TIME
        return None

    def next_offsets(self) -> dict[int, Offset]:
        """Returns where a later search goes on, by partition."""
        return {walk.number: self._first.next_offset(walk) for walk in self.walks}

    @property
    def share(self) -> float:
        """The searched share of all offsets, from 0 to 1."""
        total = sum(walk.total for walk in self.walks)
        return 1.0 if not total else sum(walk.searched for walk in self.walks) / total

    async def run(self, on_hits: OnHits) -> None:
        """Searches, and reports hits as they are found.

        Errors: AdminError, such as BrokerAnsweredError for an unknown topic; those of `on_hits`.
        """
        self.walks = await self._begin()
        tasks = TaskRegistry(lambda *_: None)  # Their errors are raised here.
        busy: dict[asyncio.Task[None], PartitionWalk] = {}
        try:
            while True:
                while len(busy) < WALKS_AT_ONCE and self.end is None:
                    walk = next_walk(each for each in self.walks if each not in busy.values())
                    if walk is None:
                        break
                    busy[tasks.spawn(self._go(walk, on_hits), name="search a window")] = walk
                if not busy:
                    return
                done, _ = await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del busy[task]
                    await task
        finally:
            await tasks.cancel_all()

    # ------------------------------------------------------------------ where to search
    async def _begin(self) -> list[PartitionWalk]:
        """Finds the offsets to search, and the leaders. Errors: AdminError."""
        request, client = self.request, self._client
        numbers = request.partitions
        if numbers is None:
            described = (await client.describe_topics([request.topic]))[request.topic]
            if not isinstance(described, TopicDescription):
                raise described
            numbers = tuple(sorted(described.partitions))
        self._view = await client.call().view([request.topic])
        lows = await self._offsets(numbers, OffsetSpec.EARLIEST)
        highs = await self._offsets(numbers, OffsetSpec.LATEST)
        numbers = tuple(number for number in numbers if number in lows and number in highs)
        self.ends = {number: (lows[number], highs[number]) for number in numbers}
        begins = await self._offsets(numbers, request.place)
        untils = {} if request.until is None else await self._offsets(numbers, request.until)
        walks = []
        for number in numbers:
            low, high = self.ends[number]
            first, last = (untils, begins) if request.backwards else (begins, untils)
            low = max(low, min(first.get(number, low), high))
            high = max(low, min(last.get(number, high), high))
            walks.append(PartitionWalk(number, low, high, backwards=request.backwards))
        self.begins = {walk.number: walk.high if request.backwards else walk.low for walk in walks}
        return walks

    async def _offsets(self, numbers: Sequence[int], place: Place) -> dict[int, Offset]:
        """Returns the offsets of a place; those of partitions that have none are left out.

        Errors: AdminError, if all partitions fail.
        """
        if isinstance(place, Mapping):
            return dict(place)
        keys = {TopicPartition(self.request.topic, number): place for number in numbers}
        committed = self.request.read_committed and place is OffsetSpec.LATEST
        listed = await self._client.list_offsets(keys, read_committed=committed) if keys else {}
        found: dict[int, Offset] = {}
        failed: list[AdminError] = []
        for key, each in listed.items():
            if not isinstance(each, ListedOffset):
                failed.append(each)
            elif each.offset >= 0:
                found[key.partition] = each.offset
            elif isinstance(place, Timestamp):
                found[key.partition] = 1 << 62  # All records are older.
        if failed and not found:
            raise failed[0]
        for error in failed:
            self.progress.add_trouble(f"{error}")
        return found

    # ------------------------------------------------------------------ one window
    async def _go(self, walk: PartitionWalk, on_hits: OnHits) -> None:
        """Searches the next window of a walk."""
        key = TopicPartition(self.request.topic, walk.number)
        try:
            await self._search_window(walk, key)
        except BrokerAnsweredError as error:
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._skip_deleted(walk, key)
                return
            walk.fail()
            self.progress.add_trouble(f"{error}")
            return
        except AdminError as error:
            walk.fail()
            self.progress.add_trouble(f"{error}")
            return
        new = self._first.take_new()
        if new:
            await on_hits(new)

    async def _skip_deleted(self, walk: PartitionWalk, key: TopicPartition) -> None:
        """Continues at the log start. Errors: AdminError."""
        low = (await self._client.list_offsets({key: OffsetSpec.EARLIEST}))[key]
        if isinstance(low, ListedOffset) and low.offset > walk.window().begin:
            walk.on_deleted(low.offset)
        else:
            walk.fail()
            self.progress.add_trouble(f"{key} has no offset {walk.window().begin}")

    async def _search_window(self, walk: PartitionWalk, key: TopicPartition) -> None:
        """Searches the next window of a walk. Errors: AdminError."""
        window = walk.window()
        offset, begin, taken = window.begin, window.begin, 0
        edge_ms: int | None = None
        while offset < window.end:
            fetched = await self._client.fetch_records(
                key,
                offset,
                max_bytes=walk.bytes_for(window, offset, taken),
                read_committed=self.request.read_committed,
                view=self._view,
            )
            self.progress.bytes_read += len(fetched.records)
            batches, following = self._batches(fetched, key, offset, window.end)
            if batches and walk.backwards and offset == begin:
                begin = max(walk.low, min(begin, batches[0].header.base_offset))
                edge_ms = batches[0].header.base_timestamp
            if batches and not walk.backwards:
                edge_ms = batches[-1].header.max_timestamp
            taken += sum(each.header.size_bytes for each in batches)
            async with self._computing:
                for batch in batches:
                    await self._search_batch(walk.number, batch, OffsetWindow(begin, window.end))
            if following <= offset:
                break
            offset = following
            if not walk.backwards:
                break
            if taken > WINDOW_BYTES_MAX and offset < window.end and walk.on_too_wide():
                return
        walk.on_window(OffsetWindow(begin, window.end if walk.backwards else offset), taken, edge_ms)

    def _batches(
        self, fetched: FetchedRecords, key: TopicPartition, offset: Offset, end: Offset
    ) -> tuple[list[ReadableBatch], Offset]:
        """Returns the batches of an answer below `end` (exclusive), and the offset after all batches."""
        try:
            batches = list(fetched_batches(fetched))
        except ProtocolError as error:
            self.progress.add_trouble(f"{key}: the batches at offset {offset} and later can't be read: {error}.")
            batches = []
        following = max(offset, batches[-1].header.next_offset) if batches else offset
        return [
            each for each in batches if offset <= each.header.last_offset and each.header.base_offset < end
        ], following

    async def _search_batch(self, number: int, batch: ReadableBatch, window: OffsetWindow) -> None:
        """Keeps the rows of a batch that meet the conditions."""
        header = batch.header
        if batch.is_aborted:
            return
        try:
            batch.check()
            await self._slices.rest()
            if header.is_control:
                if self.request.control and not self.request.conditions.has_any:
                    self._first.add(number, batch.marker())
                return
            self.progress.records += header.record_count
            payload = await payload_of(batch)
            await self._slices.rest()
            for needle in self._needles:
                if not await self._contains(payload, needle):
                    return
            await self._search_records(number, batch, payload, window)
        except UnreadableBatchError as error:
            self.progress.add_trouble(f"{TopicPartition(self.request.topic, number)}: {error}.")

    async def _contains(self, payload: Payload, needle: bytes) -> bool:
        """Returns whether a payload contains some bytes."""
        for begin in range(0, len(payload), PIECE_BYTES):
            if payload.find(needle, begin, begin + PIECE_BYTES + len(needle) - 1) >= 0:
                return True
            await self._slices.rest()
        return False

    async def _search_records(self, number: int, batch: ReadableBatch, payload: Payload, window: OffsetWindow) -> None:
        """Keeps the records of a batch that meet the conditions. Errors: UnreadableBatchError."""
        has_conditions = self.request.conditions.has_any
        expensive = self.request.conditions.where is not None
        records = batch.records(payload, self._needles[0] if self._needles else b"")
        for step, record in enumerate(records):
            if expensive or step % RECORDS_OF_A_STEP == 0:
                await self._slices.rest()
            if record is None or not window.begin <= record.offset < window.end:
                continue
            if not has_conditions or await self.matcher.meets(record):
                self.progress.hits += 1
                self._first.add(number, record)
