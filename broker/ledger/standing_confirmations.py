"""Asks the brokers with a replica whether their files are clean after a standing erasure, so that the ledger says so.

After a request the client asks them. Nobody waits for a standing erasure, so its leader asks, in each round until all
have answered. A new leader asks for what the ledger lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.broker.network.peer_client import PeerError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_ledger_records import CleanKey, CleanReplica, NamedKey, NamedRecords
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.broker.ledger.erasure_ledger import LedgerPartition
    from lowtide.broker.partitions.replica_searches import SearchParts
    from lowtide.protocol.erasure_ledger_records import LedgerEntry
    from lowtide.protocol.messages.erase_records import EraseRecordsResponse
    from lowtide.protocol.types import BrokerId

UNCONFIRMED_MAX: Final = 10_000
"""Replicas that are still asked; beyond that the oldest are forgotten."""

ROWS_MAX: Final = 1_000
ASK_MS: Final = 20_000
PURPOSE: Final = "erasures"

NO_GOAL: Final = EraseGoal(offset=0)


class StandingConfirmations:
    """The replicas that one leader still asks."""

    def __init__(self, parts: SearchParts) -> None:
        self._parts = parts
        self._missing: dict[tuple[bytes, TopicPartition, BrokerId], tuple[LedgerPartition, EraseGoal]] = {}
        self._running = False

    def add(self, erasure_id: bytes, key: TopicPartition, place: LedgerPartition, goal: EraseGoal) -> None:
        """Adds all replicas of a partition, which shall reach the goal.

        Its offset is the leader's log start: a replica may have records below it, which the leader hasn't searched.
        """
        for broker_id in self._replicas(place):
            self._missing.pop((erasure_id, key, broker_id), None)
            self._missing[erasure_id, key, broker_id] = (place, goal)
        while len(self._missing) > UNCONFIRMED_MAX:
            del self._missing[next(iter(self._missing))]

    def resume(self, key: TopicPartition, place: LedgerPartition, entries: Iterable[LedgerEntry]) -> None:
        """Adds the replicas that have not confirmed what the ledger has of a partition: `entries` of standing ones."""
        goals: dict[bytes, EraseGoal] = {}
        clean: dict[tuple[bytes, BrokerId], EraseGoal] = {}
        for entry in entries:
            if isinstance(entry.key, NamedKey) and isinstance(entry.value, NamedRecords):
                erasure_id = bytes(entry.key.erasure_id)
                goal, value = goals.get(erasure_id, NO_GOAL), entry.value
                goals[erasure_id] = EraseGoal(
                    max(goal.offset, value.log_start_offset), max(goal.erasures_end, value.erasures_end)
                )
            elif isinstance(entry.key, CleanKey) and isinstance(entry.value, CleanReplica):
                done = EraseGoal(entry.value.offset, entry.value.erasures_end)
                clean[bytes(entry.key.erasure_id), entry.key.broker_id] = done
        for erasure_id, goal in goals.items():
            for broker_id in self._replicas(place):
                done = clean.get((erasure_id, broker_id), NO_GOAL)
                is_clean = done.offset >= goal.offset and done.erasures_end >= goal.erasures_end
                if goal.erasures_end > 0 and not is_clean:
                    self._missing[erasure_id, key, broker_id] = (place, goal)

    def begin_round(self) -> None:
        """Begins to ask, unless an earlier round still asks."""
        if self._missing and not self._running:
            self._running = True
            self._parts.tasks.spawn(self._round(), name="standing confirmations")

    async def _round(self) -> None:
        try:
            for erasure_id, broker_id in dict.fromkeys((each[0], each[2]) for each in self._missing):
                await self._ask(erasure_id, broker_id)
        finally:
            self._running = False

    async def _ask(self, erasure_id: bytes, broker_id: BrokerId) -> None:
        image, peers = self._parts.session.image, self._parts.peers
        broker = image.brokers.get(broker_id)
        mine = [each for each in self._missing.items() if (each[0][0], each[0][2]) == (erasure_id, broker_id)]
        goals = dict(mine[:ROWS_MAX])
        topics: dict[str, EraseRecordsTopic] = {}
        for row, (place, goal) in goals.items():
            if broker_id not in self._replicas(place):
                del self._missing[row]
                continue
            asked = EraseRecordsPartition(
                partition_index=place.partition, offset=goal.offset, erasures_end=goal.erasures_end
            )
            topic = EraseRecordsTopic(name=row[1].topic, topic_id=place.topic_id, partitions=[])
            topics.setdefault(topic.name, topic).partitions.append(asked)
        if broker is None or peers is None or not topics:
            return
        request = EraseRecordsRequest(topics=list(topics.values()), timeout_ms=ASK_MS, erasure_id=erasure_id)
        try:
            answer: EraseRecordsResponse = await peers.client_of(broker, PURPOSE).request(
                ApiKey.ERASE_RECORDS, 1, request, ASK_MS
            )
        except PeerError:
            return  # The next round asks again.
        for found in answer.topics:
            for each in found.partitions:
                row = (erasure_id, TopicPartition(found.name, each.partition_index), broker_id)
                # There may be a later erasure meanwhile.
                if each.error_code == ErrorCode.NONE and self._missing.get(row) == goals.get(row):
                    self._missing.pop(row, None)

    def _replicas(self, place: LedgerPartition) -> tuple[BrokerId, ...]:
        topic = self._parts.session.image.topic_by_id(place.topic_id)
        is_known = topic is not None and place.partition < len(topic.partitions)
        return topic.partitions[place.partition].replicas if topic is not None and is_known else ()
