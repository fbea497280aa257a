"""Reading for a Fetch, and the Fetch that waits for more.

A fetch is answered at once when it has to be (`min_bytes` are there, the read met an error or a diverging epoch, or nothing may be
waited for); else it waits until one of its partitions has more. Cases, after Kafka's `DelayedFetch`: A, B leadership or replica gone;
C partition unknown; D directory offline; E leader epoch fenced (all four: the key is released, and the read finds the error); F the
offset lies in an older segment than the end, and G enough bytes: the key is advanced, and the bytes are counted. A log start that rises
does not end the wait of a consumer; the read at the end finds it.

Within one answer the offsets told of a partition are from one moment (KAFKA-7104): nothing can come between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from lowtide.broker.delayed.queue import DelayedRequest
from lowtide.broker.fetch_session import FetchPlan, FetchTarget
from lowtide.broker.pending import Pending
from lowtide.broker.replica_manager import ReplicaManager
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError

READ_COMMITTED = 1
_NO_RECORDS = b""
_NODE_ENDPOINTS_SINCE = 16


class FetchRules(msgspec.Struct, kw_only=True, gc=False):
    """The limits of one fetch."""

    api_version: int
    read_committed: bool
    is_follower: bool
    minimum_bytes: int
    maximum_bytes: int
    maximum_wait_ms: int


class FetchOutcome(msgspec.Struct):
    """What one pass over the partitions read."""

    answers: list[tuple[FetchTarget, PartitionData]]
    read_bytes: int
    ends_wait: bool
    waitable: int


class FetchReader:
    """Reads partitions for fetches."""

    __slots__ = ("_endpoints", "_replicas")

    def __init__(self, replicas: ReplicaManager, endpoints: Any) -> None:
        """`endpoints()` gives the brokers' `NodeEndpoint`s, told with NOT_LEADER_OR_FOLLOWER (KIP-951)."""
        self._replicas = replicas
        self._endpoints = endpoints

    def read(self, targets: Iterable[FetchTarget], rules: FetchRules) -> FetchOutcome:
        """Read in the order of `targets` until `maximum_bytes` are found; the first batch is whole, whatever the limits."""
        outcome = FetchOutcome([], 0, False, 0)
        left = rules.maximum_bytes
        for target in targets:
            partition = self.find(target, rules)
            if isinstance(partition, ErrorCode):
                answer = _failed(target.partition, partition, aborted=[])
                outcome.answers.append((target, answer))
                continue
            outcome.waitable += 1
            try:
                answer = self._read_partition(partition, target, rules, left, minimum_one_batch=outcome.read_bytes == 0)
            except StorageError as error:
                self._replicas.on_read_failed(partition, error)
                answer = _failed(target.partition, ErrorCode.KAFKA_STORAGE_ERROR, aborted=None)
            if answer.error_code != ErrorCode.NONE or answer.diverging_epoch is not None:
                outcome.ends_wait = True
            size = len(answer.records or _NO_RECORDS)
            outcome.read_bytes += size
            left = max(left - size, 0)
            outcome.answers.append((target, answer))
        return outcome

    def find(self, target: FetchTarget, rules: FetchRules) -> Partition | ErrorCode:
        """The partition of a target; by topic id in the versions that have them."""
        topic = target.topic
        if rules.api_version >= TOPIC_IDS_SINCE:
            image = self._replicas.image
            name = image.topic_names.get(target.topic_id) if image is not None and target.topic_id != ZERO_TOPIC_ID else None
            if name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            topic = target.topic = name
        return self._replicas.find(topic, target.partition)

    def _read_partition(
        self, partition: Partition, target: FetchTarget, rules: FetchRules, left: int, *, minimum_one_batch: bool
    ) -> PartitionData:
        aborted: list[Any] | None = [] if rules.read_committed else None
        error = partition.check_leadership(target.current_leader_epoch if target.current_leader_epoch >= 0 else -1)
        if rules.is_follower and error == ErrorCode.NONE:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error != ErrorCode.NONE:
            return self._refused(partition, target, rules, error)
        log = partition.log
        high_watermark, log_start_offset, last_stable = log.high_watermark, log.log_start_offset, log.last_stable_offset
        diverging: EpochEndOffset | None = None
        records: Any = _NO_RECORDS
        if target.last_fetched_epoch >= 0:
            if target.fetch_offset < log_start_offset:
                return _failed(target.partition, ErrorCode.OFFSET_OUT_OF_RANGE, aborted=None)
            found = partition.diverging_epoch(target.fetch_offset, target.last_fetched_epoch)
            if isinstance(found, ErrorCode):
                return _failed(target.partition, found, aborted=None)
            if found is not None:
                diverging = EpochEndOffset(epoch=found.leader_epoch, end_offset=found.end_offset)
        if diverging is None:
            end_offset = last_stable if rules.read_committed else high_watermark
            read = log.read(
                target.fetch_offset, min(target.maximum_bytes, left), end_offset=end_offset, minimum_one_batch=minimum_one_batch
            )
            if read.error_code != ErrorCode.NONE:
                return _failed(target.partition, read.error_code, aborted=None)
            records = _NO_RECORDS if read.slice is None else read.slice
        return PartitionData(
            partition_index=target.partition,
            error_code=ErrorCode.NONE,
            high_watermark=high_watermark,
            last_stable_offset=last_stable,
            log_start_offset=log_start_offset,
            aborted_transactions=aborted,
            records=records,
            diverging_epoch=diverging,
        )

    @staticmethod
    def _refused(partition: Partition, target: FetchTarget, rules: FetchRules, error: int) -> PartitionData:
        answer = _failed(target.partition, error, aborted=None)
        told = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if error in told and rules.api_version >= _NODE_ENDPOINTS_SINCE:
            answer.current_leader = LeaderIdAndEpoch(leader_id=partition.leader_id, leader_epoch=partition.leader_epoch)
        return answer

    def available_bytes(self, targets: Iterable[FetchTarget], rules: FetchRules, *, found: int) -> int | None:
        """About how many bytes a read would find, counting no further than `minimum_bytes`; None when it would meet an error.

        `found` is how many of the partitions were there when the wait began: one that is gone is an error, one that never was is none.
        """
        total = 0
        for target in targets:
            partition = self.find(target, rules)
            if isinstance(partition, ErrorCode):
                continue
            found -= 1
            log = partition.log
            if partition.check_leadership(target.current_leader_epoch if target.current_leader_epoch >= 0 else -1) != ErrorCode.NONE:
                return None
            end_offset = log.last_stable_offset if rules.read_committed else log.high_watermark
            if target.fetch_offset > log.log_end_offset:
                return None
            if target.fetch_offset < end_offset:
                total += log.bytes_between(max(target.fetch_offset, log.log_start_offset), end_offset, target.maximum_bytes)
                if total >= rules.minimum_bytes:
                    return total
        return total if found <= 0 else None

    def high_watermark_of(self, target: FetchTarget, rules: FetchRules) -> tuple[TopicPartition, int] | None:
        """The key of a target and its high watermark, None where there is nothing to wait for."""
        partition = self.find(target, rules)
        return None if isinstance(partition, ErrorCode) else (partition.topic_partition, partition.log.high_watermark)

    def endpoints(self) -> list[NodeEndpoint]:
        """Where the brokers listen."""
        endpoints: list[NodeEndpoint] = self._endpoints()
        return endpoints


class DelayedFetch(DelayedRequest):
    """A fetch that waits for `minimum_bytes` or its deadline."""

    __slots__ = ("_deadline_ms", "_found", "_plan", "_reader", "_replicas", "_rules", "_targets", "pending")

    def __init__(
        self,
        reader: FetchReader,
        replicas: ReplicaManager,
        plan: FetchPlan,
        targets: list[FetchTarget],
        rules: FetchRules,
        deadline_ms: int,
    ) -> None:
        super().__init__()
        self._reader = reader
        self._replicas = replicas
        self._plan = plan
        self._targets = targets
        self._rules = rules
        self._deadline_ms = deadline_ms
        self._found = 0
        self.pending: Pending[FetchResponse] = Pending()
        self.pending.on_abandoned = self._forget

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def _forget(self) -> None:
        self._replicas.fetches.remove(self)

    def try_complete(self) -> bool:
        """Read and answer when enough is there, or when a read would meet an error."""
        available = self._reader.available_bytes(self._targets, self._rules, found=self._found)
        if available is not None and available < self._rules.minimum_bytes:
            return False
        self.complete_late()
        return True

    def complete_late(self) -> None:
        """Read anew and answer with what there is."""
        outcome = self._reader.read(self._targets, self._rules)
        self.pending.complete(respond(self._plan, outcome, self._rules, self._reader))

    def fail(self) -> None:
        """Close the connection."""
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """One more record than now, of each partition."""
        found = (self._reader.high_watermark_of(target, self._rules) for target in self._targets)
        wanted = [(entry[0], entry[1] + 1) for entry in found if entry is not None]
        self._found = len(wanted)
        return wanted


def respond(plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader) -> FetchResponse:
    """The answer: all partitions, or in an incremental session those with news."""
    responses: list[FetchableTopicResponse] = []
    by_topic: dict[Any, FetchableTopicResponse] = {}
    redirected = False
    session = plan.session
    for target, answer in outcome.answers:
        if session is not None:
            news = target.has_news(answer)
            target.tell(answer)
            if plan.incremental and not news:
                continue
            # A request on another connection may have forgotten the partition while this one waited.
            if len(answer.records or _NO_RECORDS) > 0 and target.key in session.targets:
                session.targets.move_to_end(target.key)
        redirected = redirected or answer.current_leader is not None
        of = target.topic_id if rules.api_version >= TOPIC_IDS_SINCE else target.topic
        topic = by_topic.get(of)
        if topic is None:
            topic = by_topic[of] = FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id, partitions=[])
            responses.append(topic)
        topic.partitions.append(answer)
    endpoints = reader.endpoints() if redirected else []
    return FetchResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, session_id=plan.session_id, responses=responses, node_endpoints=endpoints
    )


def _failed(partition: int, error: int, *, aborted: list[Any] | None) -> PartitionData:
    """A partition that could not be read tells no offsets."""
    return PartitionData(
        partition_index=partition,
        error_code=error,
        high_watermark=UNKNOWN_OFFSET,
        last_stable_offset=UNKNOWN_OFFSET,
        log_start_offset=UNKNOWN_OFFSET,
        aborted_transactions=aborted,
        records=_NO_RECORDS,
    )
