"""Searches a replica of a compacted log for its leader, which asks with FindRecords (docs/adr/0024).

Guards: the search counts for the leader epoch and the registration of the request, and only if the log has reached the
end of the leader's search. While the log is copied to another directory there is no search: the copy may have an old
version of a record that the log has compacted away. That the replica took part is on the disk before the answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from lowtide.broker.client_waits import client_wait
from lowtide.broker.partitions.older_versions import both, ends_of, up_to
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import FoundRecords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.broker.network.peer_client import PeerClients
    from lowtide.broker.partitions.log_searches import LogSearches
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.metadata.session import MetadataSession
    from lowtide.protocol.messages.find_records import FindRecordsRequest
    from lowtide.protocol.types import LeaderEpoch, Offset, TopicId
    from lowtide.replication.partition import Partition
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry
    from lowtide.storage.erasures.record_search import KeySelector, RecordSelector
    from lowtide.storage.log.log import Log

NOTED_AGAIN_S: Final = 0.01
"""How often it is checked whether the disk has the note: a flush takes some milliseconds."""

MOVES: Final = "A replica is being moved to another log directory; ask again when the move is done."


class SearchParts(NamedTuple):
    """The parts of a broker that searches for erasures use."""

    replicas: ReplicaManager
    searches: LogSearches
    session: MetadataSession
    peers: PeerClients | None
    """None for a broker without a cluster."""
    clock: Clock
    random: Random
    tasks: TaskRegistry


class WantedRecords(NamedTuple):
    """What a leader asks a follower for: versions of keys, records that offsets or a header name, or both."""

    keys: KeySelector | None
    ends: Mapping[bytes, Offset]
    """Up to which offset (inclusive) versions of each key count; empty if all do."""
    named: RecordSelector | None


async def note_search(replicas: ReplicaManager, log: Log, search_id: UUID) -> bool:
    """Notes durably that a replica takes part in a search. Returns False if its directory has failed."""
    change = log.erasures.note_search(search_id)
    while not log.erasures.is_durable(change):
        if log.offline or log.erasures.changes < change:
            return False
        replicas.log_manager.flush(log)
        await asyncio.sleep(NOTED_AGAIN_S)
    return search_id in log.erasures.searches


def is_moving(replicas: ReplicaManager, log: Log) -> bool:
    """Returns whether a log is being copied to another directory."""
    return replicas.log_manager.moves.move_of(log) is not None


def why_not_searched(
    partition: Partition, topic_id: TopicId, leader_epoch: LeaderEpoch, end_offset: Offset
) -> ErrorCode:
    """Returns why a replica can't be searched for its leader up to `end_offset` (exclusive); NONE if it can.

    Errors: INCONSISTENT_TOPIC_ID, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER if it leads,
    OFFSET_NOT_AVAILABLE if its log ends below.
    """
    if topic_id not in (ZERO_TOPIC_ID, partition.log.topic_id):
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if leader_epoch != partition.leader_epoch:
        is_older = leader_epoch < partition.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
    if partition.is_leader:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    is_there = UNKNOWN_OFFSET < end_offset <= partition.log.log_end_offset and not partition.log.truncating
    return ErrorCode.NONE if is_there else ErrorCode.OFFSET_NOT_AVAILABLE


class ReplicaSearches:
    """Searches this broker's replicas for their leaders."""

    def __init__(self, parts: SearchParts) -> None:
        self._parts = parts

    async def search(
        self, request: FindRecordsRequest, wanted: WantedRecords
    ) -> tuple[SearchedLog, dict[bytes, Offset]] | Refusal:
        """Searches the only partition of a leader's request, and notes durably that the replica has taken part.

        Returns what was found, and the keys of the named records with their highest offsets.
        Errors: STALE_BROKER_EPOCH for another registration; those of `why_not_searched`; REQUEST_TIMED_OUT;
        REASSIGNMENT_IN_PROGRESS while the log moves; KAFKA_STORAGE_ERROR.
        """
        topic, row = request.topics[0], request.topics[0].partitions[0]
        key = TopicPartition(topic.name, row.partition_index)

        def checked() -> Partition | Refusal:
            if self._parts.session.broker_epoch != request.replica_epoch:
                return Refusal(ErrorCode.STALE_BROKER_EPOCH, "")
            partition = self._parts.replicas.find(*key)
            if isinstance(partition, ErrorCode):
                return Refusal(partition, "")
            error = why_not_searched(partition, topic.topic_id, row.leader_epoch, row.end_offset)
            if error is ErrorCode.NONE and is_moving(self._parts.replicas, partition.log):
                return Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, MOVES)
            return partition if error is ErrorCode.NONE else Refusal(error, "")

        partition = checked()
        if isinstance(partition, Refusal):
            return partition
        log = partition.log
        try:
            async with client_wait(asyncio.get_running_loop().time() + max(request.timeout_ms, 0) / 1000):
                found = await self._found(partition, wanted, row.end_offset)
                if isinstance(found, SearchFailure):
                    return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, found.sentence)
                is_noted = await note_search(self._parts.replicas, log, UUID(bytes=request.search_id))
        except TimeoutError:
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, "")
        again = checked()
        if isinstance(again, Refusal):
            return again
        if again is not partition or again.log is not log or not is_noted:
            return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        return found

    async def _found(
        self, partition: Partition, wanted: WantedRecords, end_offset: Offset
    ) -> tuple[SearchedLog, dict[bytes, Offset]] | SearchFailure:
        """Searches for the versions of keys, and for the named records; at least one of them is wanted."""
        found, first_offset, searches = FoundRecords(), end_offset, self._parts.searches
        ends: dict[bytes, Offset] = {}
        if wanted.named is not None:
            named = await searches.search(partition, wanted.named, end_offset, with_keys=True)
            if isinstance(named, SearchFailure):
                return named
            found, first_offset, ends = named.records, named.first_offset, ends_of(named)
        if wanted.keys is not None:
            by_key = await searches.search(partition, wanted.keys, end_offset, with_keys=bool(wanted.ends))
            if isinstance(by_key, SearchFailure):
                return by_key
            found = both(found, up_to(wanted.ends, by_key) if wanted.ends else by_key.records)
            first_offset = by_key.first_offset
        return SearchedLog(first_offset, end_offset, found), ends
