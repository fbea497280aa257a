"""What a follower asks one leader next: the partitions, in a fetch session that repeats nothing (KIP-227), and how long it may wait.

Partitions whose state may have changed are noted (`touch`), and only those are visited for the next request, however many there are.

Guards rule DR5: a log start that was received and isn't durable yet holds the next request for its commit, shortly, and then makes its wait
short; so does a partition that is left out only because it waits for the disk. One that is throttled stays in, and asks for no records:
a follower that is moved slowly still has deletes at once. Guards DR6 and DR8: an answer counts for the leader epoch,
the topic id and the registration under which it was asked for.

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
from lowtide.replication.follower import Following
from lowtide.replication.follower_phase import Phase
from lowtide.replication.follower_reads import AnsweredFetches

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.protocol.messages.fetch import FetchResponse, PartitionData

FETCH_VERSION: Final = 17
"""Topic ids, diverging epochs, and who fetches with which broker epoch."""

OLD_FETCH_VERSION: Final = 4
"""What brokers fetch with that don't report log starts yet (KIP-107): topics by name, no session, no epochs."""

HOLD_MS: Final = 5
"""How long a request waits for the disk at most."""

SHORT_WAIT_MS: Final = 10
"""How long the leader may keep a request that lacks something which comes soon."""

THROTTLE_MS_MAX: Final = 1000
"""After so long a throttled partition is looked at again, for the throttle may have been changed or taken away."""

_SESSION_EPOCH_MAX: Final = 2**31 - 1

Throttle: TypeAlias = "Callable[[Following], int]"

RowId: TypeAlias = tuple[TopicId | str, int]


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`replica.fetch.*` of the configuration."""

    partition_bytes: int = 1 << 20
    response_bytes: int = 10 << 20
    minimum_bytes: int = 1
    wait_ms: int = 500
    backoff_ms: int = 1000


class Fetch(msgspec.Struct, kw_only=True):
    """A request that is to be sent, and what its answer is measured by."""

    request: FetchRequest
    version: int
    broker_epoch: BrokerEpoch
    sent_ms: int


def _unthrottled(_following: Following) -> int:
    return 0


class FetchPlan:
    """Which partitions to fetch from a leader, and when. One for each leader."""

    def __init__(self, broker_id: BrokerId, *, version: int = FETCH_VERSION, throttle: Throttle = _unthrottled) -> None:
        """`broker_id` is our own. `version` is `FETCH_VERSION` or `OLD_FETCH_VERSION`.

        `throttle` says for how long a partition may not fetch records; it is asked for those that aren't in sync.
        """
        self._throttle = throttle
        self.followed: dict[TopicPartition, Following] = {}
        self.version = version
        self.session = AnsweredFetches()
        """For those who ask whether followers may be read."""
        self._broker_id = broker_id
        self._broker_epoch: BrokerEpoch = -1
        self._by_row: dict[RowId, Following] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._sent: dict[RowId, FetchPartition] = {}
        self._forgotten: dict[RowId, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._limits = FetchLimits()
        self._delayed: list[tuple[int, int, Following]] = []
        self._order = count()
        self._awaited: dict[TopicPartition, Following] = {}
        self._hold_until_ms = 0

    # ------------------------------------------------------------------ which partitions
    def add(self, following: Following) -> None:
        """Follow a partition, perhaps in a new leader epoch."""
        self.remove(following.key)
        self.followed[following.key] = following
        self._by_row[self._row_id(following)] = following
        self.touch(following)
        if _awaits_disk(following):
            # What was received in another leader epoch, perhaps from another leader, whose plan handles it.
            self._awaited[following.key] = following

    def remove(self, key: TopicPartition) -> None:
        """Follow it no more."""
        known = self.followed.pop(key, None)
        if known is not None:
            known.has_left = True
            row_id = self._row_id(known)
            del self._by_row[row_id]
            self._awaited.pop(key, None)
            known.partition.follower_reads.leave_session()
            self._leave_out(row_id)

    def touch(self, following: Following) -> None:
        """Its state may have changed."""
        self._changed[following.key] = None

    def delay(self, following: Following, until_ms: int) -> None:
        """Leave it out until then."""
        following.delayed_until_ms = until_ms
        heapq.heappush(self._delayed, (until_ms, next(self._order), following))
        self.touch(following)

    def end_delay(self, following: Following) -> None:
        """Ask for it again now."""
        following.delayed_until_ms = 0
        self.touch(following)

    def wait_for_disk(self, following: Following) -> None:
        """What it reports depends on something that is on its way to the disk: `on_disk` is to be called when that is done."""
        self._awaited[following.key] = following
        self.touch(following)

    def on_disk(self) -> None:
        """Something that partitions wait for is done, or may be.

        Looks at all that wait: once for many, not for each.
        """
        for key, following in list(self._awaited.items()):
            if not _awaits_disk(following):
                del self._awaited[key]
                self.touch(following)

    def on_disk_of(self, following: Following) -> None:
        """Something that this partition waits for is done, or may be."""
        if following.key in self._awaited and not _awaits_disk(following):
            del self._awaited[following.key]
            self.touch(following)

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed partition may be asked for again."""
        return self._delayed[0][0] if self._delayed else None

    def hold_ms(self, now_ms: int) -> int:
        """How long the next request should wait for the disk."""
        held = any(following.phase is not Phase.SETTLING for following in self._awaited.values())
        return max(self._hold_until_ms - now_ms, 0) if held else 0

    # ------------------------------------------------------------------ requests
    def next_fetch(self, now_ms: int, broker_epoch: BrokerEpoch, limits: FetchLimits) -> Fetch | None:
        """The next request, sent under our registration `broker_epoch`; None while no partition can be fetched."""
        self._wake_delayed(now_ms)
        self.on_disk()
        if broker_epoch != self._broker_epoch or limits.partition_bytes != self._limits.partition_bytes:
            self.begin_anew()
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

    def begin_anew(self) -> None:
        """The next request names everything; a session that the leader may still have is replaced by it."""
        self._session_epoch = 0
        self._sent.clear()
        self._forgotten.clear()
        self.session = AnsweredFetches()

    def on_answer(
        self, fetch: Fetch, response: FetchResponse, now_ms: int
    ) -> list[tuple[Following, PartitionData]] | ErrorCode:
        """The partitions for which the answer counts; an error is one of the session as a whole, and the next request begins a new one."""
        if response.error_code != ErrorCode.NONE:
            self.begin_anew()
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = 0
            return ErrorCode(response.error_code)
        if fetch.broker_epoch != self._broker_epoch:
            self.begin_anew()
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
                following.partition.follower_reads.leave_session()  # It is named: that nothing is new isn't what this answer says.
                if sent is not None and _is_answer_to(following, sent):
                    rows.append((following, row))
                    self.touch(following)
                else:
                    is_lost = True
        self.session.sent_ms = fetch.sent_ms
        if is_lost:
            # The session's leader takes it for known, and wouldn't tell it again before something changes: a delete
            # waited for that.
            self.begin_anew()
        self._hold_until_ms = now_ms + HOLD_MS
        return rows

    def _continue_session(self, fetch: Fetch, session_id: int) -> None:
        if fetch.version == OLD_FETCH_VERSION:
            return
        if fetch.request.session_epoch == 0:
            self._session_id = session_id
            self._session_epoch = 1 if session_id else 0
        elif session_id != self._session_id:
            self.begin_anew()
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
        """The next request takes the partition out of the session, unless it names the partition again."""
        if self._sent.pop(row_id, None) is not None and self._session_epoch:
            self._forgotten[row_id] = None

    def _row(self, following: Following, now_ms: int) -> FetchPartition:
        log = following.log
        # With a limit of 0 a leader sends one batch, if not more; to followers ours send none.
        maximum_bytes = 0 if self._is_throttled(following, now_ms) else max(self._limits.partition_bytes, 1)
        return FetchPartition(
            partition=following.key.partition,
            current_leader_epoch=following.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.leader_epochs.latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=maximum_bytes,
        )

    def _is_throttled(self, following: Following, now_ms: int) -> bool:
        """Whether it may have no records now. It is looked at again in time."""
        if following.is_in_sync:
            return False
        if following.throttled_until_ms <= now_ms:
            wait_ms = self._throttle(following)
            if wait_ms == 0:
                return False
            following.throttled_until_ms = now_ms + min(wait_ms, THROTTLE_MS_MAX)
            heapq.heappush(self._delayed, (following.throttled_until_ms, next(self._order), following))
        return True

    def _row_id(self, following: Following) -> RowId:
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
        """How long the leader may wait: shortly, while something is missing that comes soon."""
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


def _is_ready(following: Following, now_ms: int) -> bool:
    """Whether it may be fetched."""
    if following.phase is not Phase.FETCHING or following.delayed_until_ms > now_ms:
        return False
    log = following.log
    return not (log.offline or log.truncating or following.waits_for_flush)


def _awaits_disk(following: Following) -> bool:
    """Whether something of it is on its way to the disk."""
    log = following.log
    if log.offline:
        return False
    return (
        following.phase is Phase.SETTLING
        or bool(log.truncating)
        or log.log_start_pending > log.log_start_offset
        or following.waits_for_flush
    )


def _is_answer_to(following: Following, sent: FetchPartition) -> bool:
    """Whether the partition is as it was when it was asked for."""
    return (
        following.leader_epoch == sent.current_leader_epoch
        and following.phase is Phase.FETCHING
        and following.log.log_end_offset == sent.fetch_offset
        and not following.log.truncating
    )
