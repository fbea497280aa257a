"""The share partitions of the partitions that this broker leads, and the share sessions of their members.

A share partition exists only while a session has it, or until its changes are stored.

Source: KIP-932; Kafka's `SharePartitionManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from lowtide.broker.partitions.share.dead_letters import LetterWriter
from lowtide.broker.partitions.share.leader_share_partition import LeaderSharePartition, SharePorts, StateKeeper
from lowtide.broker.partitions.share.share_rules import ShareRules
from lowtide.broker.partitions.share.share_sessions import SessionKey, ShareSession, ShareSessions
from lowtide.broker.partitions.share.share_values import ShareCounts
from lowtide.broker.partitions.timestamp_search import LongRow, Progress, TimestampSearches, Unfinished
from lowtide.broker.promises import Spawn, answer_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import INITIAL_EPOCH
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError
from lowtide.storage.log.timestamps import LongSearch, SearchOn, search_timestamp

if TYPE_CHECKING:
    import asyncio

    from lowtide.broker.config.offset_reset import OffsetReset
    from lowtide.broker.partitions.batch_lane import BatchLane
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.request_context import Client
    from lowtide.broker.turns import Turns
    from lowtide.runtime.clock import Clock


class SharePartitions:
    """The share partitions of one broker."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        *,
        replicas: ReplicaManager,
        keeper: StateKeeper,
        letters: LetterWriter,
        counts: ShareCounts,
        rules_of: Callable[[str], ShareRules],
        sessions_max: Callable[[], int],
        batch_lane: BatchLane,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn,
        log: Any,
    ) -> None:
        """`rules_of` returns a group's configuration, `sessions_max` is `group.share.max.share.sessions`."""
        self.replicas = replicas
        self.rules_of = rules_of
        self.sessions = ShareSessions()
        self.counts = counts
        self._sessions_max = sessions_max
        self._shares: dict[SharePlace, LeaderSharePartition] = {}

        async def begin(partition: Partition, rules: ShareRules) -> Offset:
            return await begin_offset(partition, rules.reset, clock.wall_ms(), replicas.turns, batch_lane, log)

        self._ports = SharePorts(
            keeper=keeper,
            letters=letters,
            rules_of=rules_of,
            leads=self._leads,
            begin_offset=begin,
            is_named=self.sessions.named.__contains__,
            on_ended=self._on_ended,
            counts=counts,
            clock=clock,
            loop=loop,
            spawn=spawn,
            log=log,
        )

        self.fetches = replicas.waiting.share_fetches

    def __len__(self) -> int:
        """Returns the number of share partitions that are loaded or loading."""
        return len(self._shares)

    # ------------------------------------------------------------------ share partitions
    def find(self, place: SharePlace, *, begins: bool) -> LeaderSharePartition | ErrorCode:
        """Returns the share partition of a partition that is led here; with `begins` loads it if needed.

        Errors: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, also if it isn't loaded, NOT_LEADER_OR_FOLLOWER,
        KAFKA_STORAGE_ERROR.
        """
        image = self.replicas.image
        name = None if image is None else image.topic_names.get(place.topic_id)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = self.replicas.find(name, place.partition)
        if isinstance(partition, ErrorCode):
            return partition
        if not partition.is_leader or partition.topic_id != place.topic_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        share = self._shares.get(place)
        if share is not None:
            share.check()
            if not share.has_ended:
                return share
        if not begins:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        share = self._shares[place] = LeaderSharePartition(place, partition, self._ports)
        return share

    def loaded(self) -> list[LeaderSharePartition]:
        """Returns the share partitions that are loaded or loading."""
        return list(self._shares.values())

    def _leads(self, partition: Partition) -> bool:
        return partition.is_leader and self.replicas.find(*partition.topic_partition) is partition

    def _on_ended(self, share: LeaderSharePartition) -> None:
        if self._shares.get(share.place) is share:
            del self._shares[share.place]

    # ------------------------------------------------------------------ sessions
    def follow_session(
        self,
        key: SessionKey,
        epoch: int,
        connection: Client,
        places: Iterable[SharePlace],
        forgotten: Iterable[SharePlace],
    ) -> ShareSession | ErrorCode:
        """Returns the session of a ShareFetch after the request's changes. Errors: those of `ShareSessions`."""
        before = self.sessions.get(key)
        had = list(before.places) if before is not None else []
        if epoch == INITIAL_EPOCH:
            ended = self.sessions.giving_way(key, connection, self._sessions_max())
            if ended is not None:
                self.end_session(ended)
            session = self.sessions.begin(key, connection, places, self._sessions_max())
        else:
            session = self.sessions.follow(key, epoch, places, forgotten)
        self._leave_idle(place for place in had if place not in self.sessions.named)
        return session

    def end_session(self, key: SessionKey) -> None:
        """Closes a member's session, if there is one, and makes its records available again."""
        for place in self.sessions.end(key):
            share = self._shares.get(place)
            if share is not None:
                share.release(key.member_id)

    def _leave_idle(self, places: Iterable[SharePlace]) -> None:
        for place in list(places):
            share = self._shares.get(place)
            if share is not None:
                share.leave_if_idle()

    def on_tick(self) -> None:
        """Ends the sessions of closed connections. Called about once a second."""
        for key in self.sessions.of_lost_connections():
            self.end_session(key)

    def close(self) -> None:
        """Answers all waiting requests: the broker stops."""
        self.fetches.close()
        for share in list(self._shares.values()):
            share.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def begin_offset(
    partition: Partition, reset: OffsetReset, wall_ms: int, turns: Turns, lane: BatchLane, log: Any
) -> Offset:
    """Returns where a group without a start offset begins: `share.auto.offset.reset`.

    A log that can't be searched counts as having no record of the age.
    """
    if reset.is_earliest:
        return partition.log.log_start_offset
    if reset.duration_ms is None:
        return partition.log.high_watermark
    timestamp_ms = wall_ms - reset.duration_ms

    def look_up(progress: Progress) -> Offset | Unfinished | None:
        found = progress.found
        if found is None or found.offset < partition.log.log_start_offset:
            try:
                step = search_timestamp(partition.log, timestamp_ms, progress.start_offset)
            except StorageError as error:
                fail(error)
                return None
            if isinstance(step, LongSearch | SearchOn):
                return Unfinished(partition, step)
            found = step
        return None if found is None else found.offset

    def fail(error: Exception) -> None:
        log.error("offsets could not be read", partition=str(partition.topic_partition), error=str(error))

    found = look_up(Progress())
    if isinstance(found, Unfinished):
        rows: list[Offset | None] = [None]
        searches = TimestampSearches[Offset | None](turns, lane, log)
        searches.add(LongRow(found, look_up, partial(rows.__setitem__, 0), fail))
        await answer_of(searches.start(rows))
        found = rows[0]
    high_watermark = partition.log.high_watermark
    return high_watermark if found is None else min(found, high_watermark)
