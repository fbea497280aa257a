"""Follows a topic: records as they are written, in all of its partitions, as fast as somebody can read them.

    follow = Follow(client, FollowRequest(topic="flights"))
    await follow.begin()
    while True:
        found = await follow.round()

Guards: a round returns a bounded number of rows, the newest ones, and counts those that it left out. A follower that
falls behind skips to the end of a partition instead of reading what nobody could read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowtide.admin.batch_rows import UnreadableBatchError, fetched_batches
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.admin.records import FetchedRecords, FetchTerms, fetch_each
from lowtide.admin.search_conditions import Conditions, Matcher
from lowtide.admin.search_walk import FirstHits, Hit
from lowtide.admin.slices import Slices, payload_of
from lowtide.admin.value_decoding import ValueDecoder
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.types import Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

WAIT_MS: Final = 500
"""How long a leader waits for new records."""

FETCH_BYTES: Final = 256 << 10
"""The bytes of a partition in one round."""

BEHIND_MAX: Final = 10_000
"""If a partition has more unread offsets, following continues at its end and counts those in between as left out."""

HELD_BYTES: Final = 8 << 20
"""The bytes of the rows of one round."""

RECORDS_OF_A_STEP: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRequest:
    """What to follow."""

    topic: str
    partitions: tuple[int, ...] | None = None
    """None for all that there are when it begins."""
    conditions: Conditions = field(default_factory=Conditions)
    offsets: Mapping[int, Offset] = field(default_factory=dict)
    """Where to go on, by partition; others begin at their ends."""
    rows: int = 200
    """The most rows of a round."""
    control: bool = False
    """Whether markers are rows, if there are no conditions."""


@dataclass(slots=True)
class FollowRound:
    """What was written since the last round."""

    hits: Sequence[Hit]
    """The oldest first."""
    skipped: int
    """Offsets that were not read, and rows that were too many."""
    troubles: Sequence[str]


class Follow:
    """Follows the partitions of a topic."""

    def __init__(self, client: AdminClient, request: FollowRequest, decoder: ValueDecoder | None = None) -> None:
        self.request = request
        self.offsets: dict[int, Offset] = {}
        """The next offset of each partition."""
        self.records = 0
        """How many records were read."""
        self._client = client
        self._matcher = Matcher(request.conditions, decoder or ValueDecoder())
        self._slices = Slices(client.cluster.ports.clock)
        self._turn = 0

    async def begin(self) -> None:
        """Finds the ends of all partitions. Errors: AdminError."""
        request = self.request
        numbers = request.partitions
        if numbers is None:
            described = (await self._client.describe_topics([request.topic]))[request.topic]
            if not isinstance(described, TopicDescription):
                raise described
            numbers = tuple(described.partitions)
        self.offsets = await self._listed(numbers, OffsetSpec.LATEST)
        self.offsets |= {number: each for number, each in request.offsets.items() if number in self.offsets}

    async def _listed(self, numbers: Sequence[int], place: OffsetSpec) -> dict[int, Offset]:
        """Returns offsets. Errors: AdminError."""
        keys = {TopicPartition(self.request.topic, number): place for number in numbers}
        found: dict[int, Offset] = {}
        for key, each in (await self._client.list_offsets(keys)).items():
            if not isinstance(each, ListedOffset):
                raise each
            found[key.partition] = each.offset
        return found

    async def round(self) -> FollowRound:
        """Waits for new records, up to `WAIT_MS`. Errors: AdminError, if no partition can be read."""
        wanted = self._wanted()
        terms = FetchTerms(max_bytes=FETCH_BYTES, wait_ms=WAIT_MS)
        answers = await fetch_each(self._client.call(), wanted, terms)
        first = FirstHits(self.request.rows, HELD_BYTES, backwards=True)
        skipped, matching, troubles = 0, 0, list[str]()
        failed = [each for each in answers.values() if isinstance(each, AdminError)]
        for key, answer in answers.items():
            if isinstance(answer, FetchedRecords):
                matching += await self._read(key, answer, first, troubles)
                skipped += self._skip(key, answer)
            elif isinstance(answer, BrokerAnsweredError) and answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                skipped += await self._begin_again(key)
                failed.remove(answer)
            else:
                troubles.append(f"{answer}")
        if failed and len(failed) == len(answers):
            raise failed[0]
        hits = first.hits[::-1]
        return FollowRound(hits, skipped + matching - len(hits), troubles)

    def _wanted(self) -> dict[TopicPartition, Offset]:
        """Returns what to fetch. Each round begins with another partition, because an answer may be full."""
        numbers = sorted(self.offsets)
        self._turn = (self._turn + 1) % max(1, len(numbers))
        return {
            TopicPartition(self.request.topic, number): self.offsets[number]
            for number in numbers[self._turn :] + numbers[: self._turn]
        }

    async def _read(self, key: TopicPartition, answer: FetchedRecords, first: FirstHits, troubles: list[str]) -> int:
        """Adds the rows of an answer that meet the conditions; returns how many there are."""
        found, begin = 0, self.offsets[key.partition]
        has_conditions = self.request.conditions.has_any
        try:
            batches = list(fetched_batches(answer))
        except ProtocolError as error:
            troubles.append(f"{key}: the batches at offset {begin} and later can't be read: {error}.")
            batches = []
        for batch in batches:
            self.offsets[key.partition] = max(self.offsets[key.partition], batch.header.next_offset)
            try:
                batch.check()
                await self._slices.rest()
                if batch.header.is_control:
                    if self.request.control and not has_conditions and batch.header.base_offset >= begin:
                        first.add(key.partition, batch.marker())
                        found += 1
                    continue
                self.records += batch.header.record_count
                for step, record in enumerate(batch.records(await payload_of(batch))):
                    if step % RECORDS_OF_A_STEP == 0:
                        await self._slices.rest()
                    if record is None or record.offset < begin:
                        continue
                    if not has_conditions or await self._matcher.meets(record):
                        first.add(key.partition, record)
                        found += 1
            except UnreadableBatchError as error:
                troubles.append(f"{key}: {error}.")
        return found

    def _skip(self, key: TopicPartition, answer: FetchedRecords) -> int:
        """Goes to the end of a partition that is far behind; returns how many offsets are left out."""
        behind = answer.high_watermark - self.offsets[key.partition]
        if behind <= BEHIND_MAX:
            return 0
        self.offsets[key.partition] = answer.high_watermark
        return behind

    async def _begin_again(self, key: TopicPartition) -> int:
        """Continues after a delete or a truncation; returns how many offsets are left out. Errors: AdminError."""
        begin = self.offsets[key.partition]
        low = (await self._listed([key.partition], OffsetSpec.EARLIEST))[key.partition]
        high = (await self._listed([key.partition], OffsetSpec.LATEST))[key.partition]
        self.offsets[key.partition] = low if begin < low else high
        await asyncio.sleep(0)
        return max(0, self.offsets[key.partition] - begin)
