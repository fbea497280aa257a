"""Log start and end offsets of partitions on other brokers, for the lag of groups.

A coordinator knows the committed offsets of its groups, but ends are at the leaders. For partitions without an in-sync
replica here, leaders are asked with ListOffsets in the background, at most every `INTERVAL_MS` and only while scrapes
need it; no scrape waits.

Guards: one round at a time, one request at a time of at most `PARTITIONS_PER_REQUEST` partitions. An answer is valid
for `YOUNG_MS`; after that the series is missing rather than wrong.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from lowtide.broker.context import BrokerContext
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.types import BrokerId, TopicPartition

PURPOSE: Final = "metrics"
INTERVAL_MS: Final = 5_000
YOUNG_MS: Final = 60_000
PARTITIONS_PER_REQUEST: Final = 1_000
REQUEST_MS: Final = 5_000
_VERSION: Final = 5
_LATEST: Final = -1
_EARLIEST: Final = -2


class Ends(NamedTuple):
    """The readable range of a partition; the end is exclusive."""

    log_start_offset: int
    high_watermark: int


class RemoteEnds:
    """Asks other brokers. Used from the event loop only."""

    def __init__(self, broker: BrokerContext, peers: PeerClients) -> None:
        self._broker = broker
        self._peers = peers
        self._wanted: dict[TopicPartition, None] = {}
        self._found: dict[TopicPartition, tuple[int, Ends]] = {}
        self._asked_ms = -INTERVAL_MS
        self._round: asyncio.Task[None] | None = None

    def of(self, key: TopicPartition) -> Ends | None:
        """Returns the recent ends of a partition, and requests new ones."""
        self._wanted[key] = None
        found = self._found.get(key)
        if found is None or self._broker.clock.monotonic_ms() - found[0] > YOUNG_MS:
            return None
        return found[1]

    def end_scrape(self) -> None:
        """Starts a round if it is due, for the next scrape."""
        wanted, self._wanted = self._wanted, {}
        now_ms = self._broker.clock.monotonic_ms()
        is_running = self._round is not None and not self._round.done()
        if wanted and not is_running and now_ms - self._asked_ms >= INTERVAL_MS:
            self._asked_ms = now_ms
            self._round = self._broker.tasks.spawn(self._ask(list(wanted)), name="ends of partitions")

    async def _ask(self, wanted: list[TopicPartition]) -> None:
        image = self._broker.metadata.image
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        for key in wanted:
            topic = image.topics.get(key.topic)
            if topic is not None and key.partition < len(topic.partitions):
                by_leader.setdefault(topic.partitions[key.partition].leader, []).append(key)
        found: dict[TopicPartition, tuple[int, Ends]] = {}
        for leader, keys in sorted(by_leader.items()):
            for start in range(0, len(keys), PARTITIONS_PER_REQUEST):
                some = keys[start : start + PARTITIONS_PER_REQUEST]
                starts = await self._list(leader, some, _EARLIEST)
                ends = await self._list(leader, some, _LATEST)
                now_ms = self._broker.clock.monotonic_ms()
                found.update(
                    (key, (now_ms, Ends(starts[key], ends[key]))) for key in some if key in starts and key in ends
                )
        kept = {key: self._found[key] for key in wanted if key in self._found}
        self._found = kept | found

    async def _list(self, leader: BrokerId, keys: list[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """Returns the offsets of the partitions that the broker answers for."""
        node = self._broker.metadata.image.brokers.get(leader)
        if node is None:
            return {}
        topics: dict[str, ListOffsetsTopic] = {}
        for topic, number in keys:
            rows = topics.setdefault(topic, ListOffsetsTopic(name=topic, partitions=[])).partitions
            rows.append(ListOffsetsPartition(partition_index=number, timestamp=timestamp))
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=list(topics.values()))
        try:
            answer = await self._peers.client_of(node, PURPOSE).request(
                ApiKey.LIST_OFFSETS, _VERSION, request, REQUEST_MS
            )
        except PeerError:
            return {}
        return {
            TopicPartition(topic.name, row.partition_index): row.offset
            for topic in answer.topics
            for row in topic.partitions
            if row.error_code == ErrorCode.NONE
        }
