"""Reads partitions for a Fetch: for consumers at the leader or a follower, and for followers at the leader.

The offsets of a partition in one response are from one moment (KAFKA-7104).

A follower's position is noted before the read, once its leader epoch, registration and range are checked and its log
does not diverge. So the response has the high watermark that follows from it. A throttled follower gets everything but
records (KIP-73). A follower serves consumers only under rule DR7. Below its log start the response has that log start,
so the consumer need not ask another broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from lowtide.broker.partitions.fetch.fetch_errors import failed_row, tell_leader
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan
from lowtide.broker.partitions.fetch.fetch_targets import (
    NO_RECORDS,
    READ_AT_ONCE_BYTES,
    FetchOutcome,
    FetchRules,
    FetchTarget,
    read_records,
)
from lowtide.broker.partitions.fetch.records_only import read_records_only
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from lowtide.protocol.schema import NO_ROWS
from lowtide.protocol.types import UNKNOWN_BROKER_EPOCH, BrokerEpoch, BrokerId
from lowtide.replication import epoch_ends
from lowtide.replication.follower_reads import NO_REPLICA, preferred_read_replica
from lowtide.replication.leadership import FollowerFetch, not_a_replica
from lowtide.replication.partition import Partition
from lowtide.storage.errors import FailureKind, StorageError

_FOLLOWER_READS_SINCE: Final = 11

TRUST_PART: Final = 0.8
"""A follower trusts its leader's report for this part of `replica.lag.time.max.ms` (rule DR7)."""


Answers = list[tuple[FetchTarget, PartitionData]]


class FetchReader:
    """Reads partitions for fetches."""

    __slots__ = ("_monotonic_ms", "_own_epoch", "_replicas", "endpoints")

    def __init__(
        self,
        replicas: ReplicaManager,
        endpoints: Callable[[], list[NodeEndpoint]],
        own_epoch: Callable[[], BrokerEpoch] = lambda: UNKNOWN_BROKER_EPOCH,
        monotonic_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`endpoints` returns the brokers' addresses, sent with NOT_LEADER_OR_FOLLOWER (KIP-951).

        `own_epoch` returns this broker's registration if followers here may serve consumers.
        """
        self._replicas = replicas
        self.endpoints = endpoints
        self._own_epoch = own_epoch
        self._monotonic_ms = monotonic_ms

    def read(
        self,
        targets: Iterable[FetchTarget],
        rules: FetchRules,
        *,
        notes: bool = False,
        begun: FetchOutcome | None = None,
    ) -> FetchOutcome:
        """Reads `targets` in order, up to `maximum_bytes`. The first batch is whole, whatever the limits.

        With `notes` it notes a follower's positions; not when the same fetch reads again. `begun` is the outcome of
        earlier targets, to which these are added.
        """
        outcome = FetchOutcome([], 0, False, 0) if begun is None else begun
        left = rules.maximum_bytes if begun is None else max(rules.maximum_bytes - begun.read_bytes, 0)
        for target in targets:
            partition = self.find(target, rules)
            if isinstance(partition, ErrorCode):
                target.unwatch()
                self._replicas.traffic.errors["Fetch", partition] += 1
                answer = failed_row(target.partition, partition, aborted=NO_ROWS)
                tell_leader(self._replicas, answer, target, rules)
                outcome.answers.append((target, answer))
                continue
            outcome.waitable += 1
            target.traffic = traffic = partition.traffic
            traffic.fetch_requests += 1
            if target.session is not None and target.watched is not partition:
                target.watch(partition)
            try:
                answer = self._read_partition(partition, target, rules, left, outcome, notes=notes)
            except StorageError as error:
                self._replicas.on_read_failed(partition, error)
                traffic.failed_fetch_requests += 1
                answer = failed_row(target.partition, ErrorCode.KAFKA_STORAGE_ERROR, aborted=None)
            if (
                answer.error_code != ErrorCode.NONE
                or answer.diverging_epoch is not None
                or answer.preferred_read_replica >= 0
            ):
                outcome.ends_wait = True
                if answer.error_code != ErrorCode.NONE:
                    self._replicas.traffic.errors["Fetch", answer.error_code] += 1
            if answer.records is not NO_RECORDS:
                size = target.read_bytes
                outcome.read_bytes += size
                left = left - size if size < left else 0  # max() costs a call.
            outcome.answers.append((target, answer))
        return outcome

    def find(self, target: FetchTarget, rules: FetchRules) -> Partition | ErrorCode:
        """Returns the partition of a target, by topic id in versions that have them."""
        topic = target.topic
        if rules.api_version >= TOPIC_IDS_SINCE:
            image = self._replicas.image
            name = None if image is None else image.topic_names.get(target.topic_id)
            if name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            topic = target.topic = name
        return self._replicas.find(topic, target.partition)

    def check(self, partition: Partition, target: FetchTarget, rules: FetchRules) -> ErrorCode:
        """Returns whether leader and leader epoch allow this read."""
        epoch = target.current_leader_epoch
        if partition.is_leader and (epoch < 0 or epoch == partition.leader_epoch):
            return ErrorCode.NONE
        error = partition.check_leadership(epoch if epoch >= 0 else -1)
        if error != ErrorCode.NOT_LEADER_OR_FOLLOWER or rules.is_follower or rules.api_version < _FOLLOWER_READS_SINCE:
            return error
        limit_ms = int(partition.lag_time_max_ms * TRUST_PART)
        serves = partition.may_serve_as_follower(self._own_epoch(), self._monotonic_ms(), limit_ms)
        return ErrorCode.NONE if serves else error

    def _read_partition(
        self,
        partition: Partition,
        target: FetchTarget,
        rules: FetchRules,
        left: int,
        outcome: FetchOutcome,
        *,
        notes: bool,
    ) -> PartitionData:
        target.at_end = False
        epoch, error, fetch = target.current_leader_epoch, ErrorCode.NONE, None
        if not partition.is_leader or (epoch != partition.leader_epoch and epoch >= 0):
            error = self.check(partition, target, rules)
        if rules.is_follower and error == ErrorCode.NONE:
            image = self._replicas.image
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if image is not None:
                reported = rules.broker_epoch
                fetch = FollowerFetch(
                    rules.replica_id,
                    reported if reported != UNKNOWN_BROKER_EPOCH else assumed_epoch(rules.replica_id, image),
                    target.fetch_offset,
                    target.log_start_offset,
                    epoch,
                    target.last_fetched_epoch,
                    None if target.session is None else target.session.times,
                )
                leadership = partition.leadership
                error = not_a_replica(fetch) if leadership is None else leadership.check_fetch(fetch, image)
        if error != ErrorCode.NONE:
            answer = failed_row(target.partition, error, aborted=None)
            tell_leader(self._replicas, answer, target, rules, partition)
            return answer
        log, offset = partition.log, target.fetch_offset
        # Above the end it is the epochs that say more, where the reader tells its last one.
        if offset < log.log_start_offset or (offset > log.log_end_offset and target.last_fetched_epoch < 0):
            answer = failed_row(target.partition, ErrorCode.OFFSET_OUT_OF_RANGE, aborted=None)
            if not partition.is_leader and offset < log.log_start_offset:
                answer.log_start_offset = log.log_start_offset
            return answer
        diverging: EpochEndOffset | None = None
        last_epoch = target.last_fetched_epoch
        if last_epoch >= 0 and (last_epoch != partition.leader_epoch or offset > log.log_end_offset):
            found = epoch_ends.diverging_epoch(partition, offset, last_epoch)
            if isinstance(found, ErrorCode):
                return failed_row(target.partition, found, aborted=None)
            if found is not None:
                diverging = EpochEndOffset(epoch=found.leader_epoch, end_offset=found.end_offset)
        if fetch is not None and diverging is None:
            if notes:
                target.follower = self._replicas.led.on_fetch(partition, fetch)
                outcome.noted += target.follower is not None
            outcome.ends_wait = outcome.ends_wait or has_log_start_to_tell(target, partition)
        return self._records_of(partition, target, rules, left, diverging, one=outcome.read_bytes == 0)

    def _records_of(
        self,
        partition: Partition,
        target: FetchTarget,
        rules: FetchRules,
        left: int,
        diverging: EpochEndOffset | None,
        *,
        one: bool,
    ) -> PartitionData:
        """Reads at an offset that is in range; with `one` at least a batch, also beyond the limits."""
        log, offset = partition.log, target.fetch_offset
        high_watermark = log.high_watermark
        last_stable = log.last_stable_offset if log.transactions.any else high_watermark
        answer = PartitionData(
            partition_index=target.partition,
            error_code=ErrorCode.NONE,
            high_watermark=high_watermark,
            last_stable_offset=last_stable,
            log_start_offset=log.log_start_offset,
            aborted_transactions=NO_ROWS if rules.read_committed else None,
            records=NO_RECORDS,
            diverging_epoch=diverging,
        )
        if diverging is not None:
            return answer
        if rules.rack and partition.leadership is not None and self._replicas.image is not None:
            replica = preferred_read_replica(partition.leadership, self._replicas.image, rules.rack, offset)
            if replica != NO_REPLICA:
                answer.preferred_read_replica = replica
                return answer
        end_offset = (
            log.log_end_offset if rules.is_follower else last_stable if rules.read_committed else high_watermark
        )
        target.at_end = offset >= end_offset
        if target.at_end or (rules.is_follower and not self.may_send(partition, target, rules)):
            return answer
        # Clients of librdkafka take several answers in a row without a record for batches that are too large, and give
        # up. A follower needs the empty ones too.
        maximum_bytes, seeks = min(target.partition_max_bytes, left), not rules.is_follower
        try:
            read = (
                read_records_only(log, target, answer, maximum_bytes, end_offset, one)
                if seeks and target.log_start_offset >= 0 and log.erasures.known
                else log.read(offset, maximum_bytes, end_offset=end_offset, minimum_one_batch=one, seeks_records=seeks)
            )
        except StorageError as error:
            if one or error.kind is not FailureKind.NO_RESOURCE:
                raise
            return answer  # All files are open. The client asks for the rest, as at a limit of bytes.
        if read.error_code != ErrorCode.NONE:
            return failed_row(target.partition, read.error_code, aborted=None)
        if read.slice is not None:
            answer.records = read.slice
            target.read_bytes = read.slice.size
            if rules.read_committed and not rules.is_follower:
                answer.aborted_transactions = [
                    AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                    for entry in log.aborted_transactions(read.slice, offset, end_offset)
                ]
        return answer

    def may_send(self, partition: Partition, target: FetchTarget, rules: FetchRules) -> bool:
        """Returns whether a follower gets records: it asks for some, and is in sync or not throttled."""
        if target.partition_max_bytes <= 0:
            return False
        if rules.replica_id in partition.in_sync_replicas:
            return True
        return self._replicas.leader_throttle.wait_ms(*partition.topic_partition) == 0

    def note_sent(self, outcome: FetchOutcome) -> None:
        """Counts the bytes sent to a follower."""
        for target, answer in outcome.answers:
            if answer.records is not NO_RECORDS:
                self._replicas.leader_throttle.record(target.topic, target.partition, target.read_bytes)


def assumed_epoch(broker_id: BrokerId, image: MetadataImage) -> BrokerEpoch:
    """Returns the registration of a follower whose version of Fetch does not report it; -1 if all must report it."""
    registered = None if image.log_start_reporting else image.broker_epoch(broker_id)
    return UNKNOWN_BROKER_EPOCH if registered is None else registered


def may_wait(plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules) -> bool:
    """Returns whether the fetch waits: too few bytes, nothing urgent, and a partition to wait for."""
    if outcome.read_bytes >= rules.minimum_bytes or outcome.ends_wait or rules.maximum_wait_ms <= 0:
        return False
    return outcome.waitable > 0 or plan.has_idle


def respond(plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader) -> FetchResponse:
    """Returns the response: all partitions, or those with news in an incremental session."""
    sent = sent_of(plan, outcome, rules, reader)
    if 0 < outcome.read_bytes <= READ_AT_ONCE_BYTES:
        read_records([answer for _, answer in sent])
    return response_of(sent, plan, rules, reader)


def sent_of(plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader) -> Answers:
    """Returns the partitions to send. Counts them as sent, and tells the session."""
    sent: Answers = []
    session = plan.session
    for target, answer in outcome.answers:
        if answer.records is not NO_RECORDS and (traffic := target.traffic) is not None:
            if outcome.unsent is not None:
                outcome.unsent[traffic] = outcome.unsent.get(traffic, 0) + target.read_bytes
            elif rules.is_follower:
                traffic.replication_bytes_out += target.read_bytes
            else:
                traffic.bytes_out += target.read_bytes
        if target.follower is not None and answer.error_code == ErrorCode.NONE and answer.diverging_epoch is None:
            target.follower.sent_log_start = answer.log_start_offset
        if session is not None:
            news = target.has_news(answer)
            target.tell(answer)
            session.on_answered(target, answer)
            if plan.incremental and not news:
                continue
        sent.append((target, answer))
    if rules.is_follower:
        reader.note_sent(outcome)
    return sent


def response_of(sent: Answers, plan: FetchPlan, rules: FetchRules, reader: FetchReader) -> FetchResponse:
    """Returns the message with these partitions."""
    responses: list[FetchableTopicResponse] = []
    by_topic: dict[Any, FetchableTopicResponse] = {}
    leaders: set[BrokerId] = set()
    for target, answer in sent:
        if answer.current_leader is not None:
            leaders.add(answer.current_leader.leader_id)
        of = target.topic_id if rules.api_version >= TOPIC_IDS_SINCE else target.topic
        topic = by_topic.get(of)
        if topic is None:
            topic = by_topic[of] = FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id, partitions=[])
            responses.append(topic)
        topic.partitions.append(answer)
    endpoints = [endpoint for endpoint in reader.endpoints() if endpoint.node_id in leaders] if leaders else []
    return FetchResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        session_id=plan.session_id,
        responses=responses,
        node_endpoints=endpoints,
    )


def has_log_start_to_tell(target: FetchTarget, partition: Partition) -> bool:
    """Returns whether this follower was not sent our log start yet, nor reported it (rule DR5)."""
    follower = target.follower
    return follower is not None and partition.log.log_start_offset > max(
        follower.sent_log_start, follower.log_start_offset
    )
