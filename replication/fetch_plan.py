"""Builds a follower's next fetch from one leader: the partitions, the fetch session (KIP-227) and the wait time.

Partitions whose state may have changed are marked by `touch`. Only these are visited for the next request.

Guards rule DR5: while a log start that was received is not durable yet, the next request waits shortly for its commit,
and after that asks the leader for a short wait. The same holds for a partition that is left out only because it waits
for the disk. A throttled partition stays in the request and asks for no records, so a follower that catches up slowly
still learns of deletes at once. Guards DR6 and DR8: an answer is valid only for the leader epoch, the topic id and the
registration under which it was requested.

Time is passed in, requests are values. Sources: KIP-227, Kafka's FetchSessionHandler.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerEpoch, BrokerId, TopicId, TopicPartition
from lowtide.replication.follower import FollowedPartition
from lowtide.replication.follower_phase import Phase
from lowtide.replication.follower_reads import AnsweredFetches

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.protocol.messages.fetch import FetchResponse, PartitionData

FETCH_VERSION: Final = 17
"""The first version with topic ids, diverging epochs and the broker epoch of the follower."""

OLD_FETCH_VERSION: Final = 4
"""The version for leaders that don't report log starts yet (KIP-107): topics by name, no session, no epochs."""

HOLD_MS: Final = 5
"""The longest time that a request waits for the disk."""

SHORT_WAIT_MS: Final = 10
"""The longest wait at the leader while a followed partition waits for the disk, and will be fetched soon."""

THROTTLE_MS_MAX: Final = 1000
"""The interval at which the throttle of a partition is checked again: the quota may have changed."""

_SESSION_EPOCH_MAX: Final = 2**31 - 1

Throttle: TypeAlias = "Callable[[FollowedPartition], int]"

RowId: TypeAlias = tuple[TopicId | str, int]


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The `replica.fetch.*` configuration."""

    partition_bytes: int = 1 << 20
    response_bytes: int = 10 << 20
    minimum_bytes: int = 1
    wait_ms: int = 500
    backoff_ms: int = 1000


class Fetch(msgspec.Struct, kw_only=True):
    """A request to send, and the state that its answer is checked against."""

    request: FetchRequest
    version: int
    broker_epoch: BrokerEpoch
    sent_ms: int


class FollowerFetchPlan:
    """Decides which partitions to fetch from one leader, and when."""

    def __init__(
        self, broker_id: BrokerId, *, version: int = FETCH_VERSION, throttle: Throttle = lambda _following: 0
    ) -> None:
        """`version` is `FETCH_VERSION` or `OLD_FETCH_VERSION`.

        `throttle` returns for how long a partition may not fetch records. It is called only for replicas that are not
        in sync.
        """
        self._throttle = throttle
        self.followed: dict[TopicPartition, FollowedPartition] = {}
        self.version = version
        self.session = AnsweredFetches()
        """Read by the check whether this follower may serve consumers."""
        self._broker_id = broker_id
        self._broker_epoch: BrokerEpoch = -1
        self._by_row: dict[RowId, FollowedPartition] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._sent: dict[RowId, FetchPartition] = {}
        self._forgotten: dict[RowId, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._limits = FetchLimits()
        self._delayed: list[tuple[int, int, FollowedPartition]] = []
        self._order = count()
        self._awaited: dict[TopicPartition, FollowedPartition] = {}
        self._hold_until_ms = 0

    # ------------------------------------------------------------------ which partitions
    def add(self, following: FollowedPartition) -> None:
        """Follows a partition, perhaps in a new leader epoch."""
        self.remove(following.key)
        self.followed[following.key] = following
        self._by_row[self._row_id(following)] = following
        self.touch(following)
        if _awaits_disk(following):
            # Received in another leader epoch, perhaps from another leader, whose plan completes it.
            self._awaited[following.key] = following

    def remove(self, key: TopicPartition) -> None:
        known = self.followed.pop(key, None)
        if known is not None:
            known.has_left = True
            row_id = self._row_id(known)
            del self._by_row[row_id]
            self._awaited.pop(key, None)
            known.partition.follower_reads.leave_session()
            self._leave_out(row_id)

    def touch(self, following: FollowedPartition) -> None:
        """Marks a partition whose state may have changed."""
        self._changed[following.key] = None

    def delay(self, following: FollowedPartition, until_ms: int) -> None:
        following.delayed_until_ms = until_ms
        heapq.heappush(self._delayed, (until_ms, next(self._order), following))
        self.touch(following)

    def end_delay(self, following: FollowedPartition) -> None:
        following.delayed_until_ms = 0
        self.touch(following)

    def wait_for_disk(self, following: FollowedPartition) -> None:
        """Marks a partition whose reported state waits for the disk; the caller calls `on_disk` after the write."""
        self._awaited[following.key] = following
        self.touch(following)

    def on_disk(self) -> None:
        """Checks all partitions that wait for the disk. One call serves many writes."""
        for key, following in list(self._awaited.items()):
            if not _awaits_disk(following):
                del self._awaited[key]
                self.touch(following)

    def on_disk_of(self, following: FollowedPartition) -> None:
        """Checks one partition that may wait for the disk."""
        if following.key in self._awaited and not _awaits_disk(following):
            del self._awaited[following.key]
            self.touch(following)

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed partition may be fetched again."""
        return self._delayed[0][0] if self._delayed else None

    def hold_ms(self, now_ms: int) -> int:
        """Returns how long the next request should wait for the disk."""
        if not self._awaited:
            return 0
        held = any(following.phase is not Phase.SETTLING for following in self._awaited.values())
        return max(self._hold_until_ms - now_ms, 0) if held else 0

    # ------------------------------------------------------------------ requests
    def next_fetch(self, now_ms: int, broker_epoch: BrokerEpoch, limits: FetchLimits) -> Fetch | None:
        """Returns the next request, sent under registration `broker_epoch`; None while no partition can be fetched."""
        self._wake_delayed(now_ms)
        self.on_disk()
        if broker_epoch != self._broker_epoch or limits.partition_bytes != self._limits.partition_bytes:
            self.start_full_session()
        self._broker_epoch, self._limits = broker_epoch, limits
        is_full = self._session_epoch == 0
        rows = self._all_rows(now_ms) if is_full else self._changed_rows(now_ms)
        if not self._sent:
            return None
        request = FetchRequest(
            replica_id=self._broker_id,
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch),
            max_wait_ms=self._wait_ms(now_ms),
            min_bytes=limits.minimum_bytes,
            max_bytes=limits.response_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[
                FetchTopic(topic=name, topic_id=topic_id, partitions=some)
                for (name, topic_id), some in self._by_topic(rows).items()
            ],
            forgotten_topics_data=[] if is_full else self._taken_forgotten(),
        )
        return Fetch(request=request, version=self.version, broker_epoch=broker_epoch, sent_ms=now_ms)

    def start_full_session(self) -> None:
        """Makes the next request a full one, which replaces any session that the leader still has."""
        self._session_epoch = 0
        self._sent.clear()
        self._forgotten.clear()
        self.session = AnsweredFetches()

    def on_answer(
        self, fetch: Fetch, response: FetchResponse, now_ms: int
    ) -> list[tuple[FollowedPartition, PartitionData]] | ErrorCode:
        """Returns the partitions for which the answer is valid, or the error of the session, which starts a new one."""
        if response.error_code != ErrorCode.NONE:
            self.start_full_session()
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = 0
            return ErrorCode(response.error_code)
        if fetch.broker_epoch != self._broker_epoch:
            self.start_full_session()
            return []
        self._continue_session(fetch, response.session_id)
        rows = []
        is_lost = False
        for topic in response.responses:
            topic_of = topic.topic if topic.topic_id == ZERO_TOPIC_ID else topic.topic_id
            for row in topic.partitions:
                row_id = (topic_of, row.partition_index)
                following, sent = self._by_row.get(row_id), self._sent.get(row_id)
                if following is None:
                    continue
                # The answer names it, so this answer doesn't say "unchanged".
                following.partition.follower_reads.leave_session()
                if sent is not None and _is_answer_to(following, sent):
                    rows.append((following, row))
                    self.touch(following)
                else:
                    is_lost = True
        self.session.sent_ms = fetch.sent_ms
        if is_lost:
            # The leader's session considers this row sent and would not repeat it before something changes. A delete
            # once waited for that.
            self.start_full_session()
        self._hold_until_ms = now_ms + HOLD_MS
        return rows

    def _continue_session(self, fetch: Fetch, session_id: int) -> None:
        if fetch.version == OLD_FETCH_VERSION:
            return
        if fetch.request.session_epoch == 0:
            self._session_id = session_id
            self._session_epoch = 1 if session_id else 0
        elif session_id != self._session_id:
            self.start_full_session()
        else:
            self._session_epoch = 1 if self._session_epoch == _SESSION_EPOCH_MAX else self._session_epoch + 1

    def _all_rows(self, now_ms: int) -> dict[RowId, FetchPartition]:
        self._changed.clear()
        self._forgotten.clear()
        self._sent.clear()
        for following in self.followed.values():
            row_id = self._row_id(following)
            if _is_ready(following, now_ms):
                self._sent[row_id] = self._row(following, now_ms)
            else:
                following.partition.follower_reads.leave_session()
        return self._sent

    def _changed_rows(self, now_ms: int) -> dict[RowId, FetchPartition]:
        rows: dict[RowId, FetchPartition] = {}
        changed, self._changed = self._changed, {}
        for key in changed:
            following = self.followed.get(key)
            if following is None:
                continue
            row_id = self._row_id(following)
            if not _is_ready(following, now_ms):
                self._leave_out(row_id)
                continue
            row = self._row(following, now_ms)
            if self._sent.get(row_id) != row:
                rows[row_id] = self._sent[row_id] = row
                self._forgotten.pop(row_id, None)
        return rows

    def _leave_out(self, row_id: RowId) -> None:
        """Removes the partition from the session with the next request, unless that names it again."""
        if self._sent.pop(row_id, None) is not None and self._session_epoch:
            self._forgotten[row_id] = None

    def _row(self, following: FollowedPartition, now_ms: int) -> FetchPartition:
        log = following.log
        # With a limit of 0 other leaders send at least one batch. Ours send none to followers.
        maximum_bytes = 0 if self._is_throttled(following, now_ms) else max(self._limits.partition_bytes, 1)
        return FetchPartition(
            partition=following.key.partition,
            current_leader_epoch=following.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.leader_epochs.latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=maximum_bytes,
        )

    def _is_throttled(self, following: FollowedPartition, now_ms: int) -> bool:
        """Returns whether the partition may fetch no records now, and schedules the next check."""
        if following.is_in_sync:
            return False
        if following.throttled_until_ms <= now_ms:
            wait_ms = self._throttle(following)
            if wait_ms == 0:
                return False
            following.throttled_until_ms = now_ms + min(wait_ms, THROTTLE_MS_MAX)
            heapq.heappush(self._delayed, (following.throttled_until_ms, next(self._order), following))
        return True

    def _row_id(self, following: FollowedPartition) -> RowId:
        name = following.key.topic if self.version == OLD_FETCH_VERSION else following.topic_id
        return (name, following.key.partition)

    def _by_topic(self, rows: dict[RowId, FetchPartition]) -> dict[tuple[str, TopicId], list[FetchPartition]]:
        topics: dict[tuple[str, TopicId], list[FetchPartition]] = {}
        for row_id, row in rows.items():
            following = self._by_row[row_id]
            topics.setdefault((following.key.topic, following.topic_id), []).append(row)
        return topics

    def _taken_forgotten(self) -> list[ForgottenTopic]:
        topics: dict[TopicId, list[int]] = {}
        for name, partition in self._forgotten:
            assert isinstance(name, bytes), "sessions go by topic ids"
            if (following := self._by_row.get((name, partition))) is not None:
                following.partition.follower_reads.leave_session()
            topics.setdefault(name, []).append(partition)
        self._forgotten.clear()
        return [ForgottenTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]

    def _wait_ms(self, now_ms: int) -> int:
        """Returns how long the leader may wait: only shortly while the follower expects something soon."""
        wait_ms = self._limits.wait_ms
        if self._awaited:
            wait_ms = min(wait_ms, SHORT_WAIT_MS)
        due_ms = self.next_due_ms
        if due_ms is not None:
            wait_ms = min(wait_ms, max(due_ms - now_ms, SHORT_WAIT_MS))
        return wait_ms

    def _wake_delayed(self, now_ms: int) -> None:
        while self._delayed and (self._delayed[0][0] <= now_ms or self._delayed[0][2].has_left):
            following = heapq.heappop(self._delayed)[2]
            if not following.has_left:
                self.touch(following)


def _is_ready(following: FollowedPartition, now_ms: int) -> bool:
    if following.phase is not Phase.FETCHING or following.delayed_until_ms > now_ms:
        return False
    log = following.log
    return not (log.offline or log.truncating or following.waits_for_flush)


def _awaits_disk(following: FollowedPartition) -> bool:
    """Returns whether something that the partition reports is on its way to the disk."""
    log = following.log
    if log.offline:
        return False
    return (
        following.phase is Phase.SETTLING
        or bool(log.truncating)
        or log.log_start_pending > log.log_start_offset
        or following.waits_for_flush
    )


def _is_answer_to(following: FollowedPartition, sent: FetchPartition) -> bool:
    """Returns whether the partition is unchanged since the request."""
    return (
        following.leader_epoch == sent.current_leader_epoch
        and following.phase is Phase.FETCHING
        and following.log.log_end_offset == sent.fetch_offset
        and not following.log.truncating
    )
