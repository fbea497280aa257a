"""Deletes records (DeleteRecords): sends one request to each leader, and repeats it until the deadline.

Every attempt sends the same offset. The topic id is that of the call's beginning, or the one that the caller expects.
An attempt that could meet another topic of the same name first asks the leader for the topic's id, on the connection of
the delete. One case remains: the topic is deleted, created again and led by the same broker between these two requests,
because DeleteRecords has no topic ids.

Some time before the deadline is kept for a last request: where logs start whose deletes have an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.attempts import Attempts, Done, Located, Outcome, RetryLater
from lowtide.admin.call import ANSWER_MS, AdminCall, by_topic, partition_rows
from lowtide.admin.cluster import view_from
from lowtide.admin.deletion import (
    DeletedRecords,
    DeleteFacts,
    DeleteRecordsError,
    DeleteResult,
    DeleteStage,
    DeleteTarget,
    LeaderOnlyUnsupportedError,
)
from lowtide.admin.errors import AdminError, BrokerAnsweredError, ConnectionFailedError, code_name
from lowtide.admin.leaders import LeaderFinder
from lowtide.admin.offsets import ListedOffset, OffsetSpec, offsets_at
from lowtide.admin.resolution import needs_looking_up, resolve
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.types import UNKNOWN_OFFSET, BrokerId, Offset, TopicId, TopicPartition, topic_id_text

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle
    from lowtide.admin.cluster_view import ClusterView

LEADER_ONLY_SINCE: Final = 3

LAST_QUESTION_MS: Final = 2000
"""Time that is kept for the last request; a quarter of short times."""


@dataclass(slots=True)
class _Delete:
    """The state of one partition's delete during the call."""

    offset: Offset
    stage: DeleteStage = DeleteStage.FINDING_LEADER
    attempts: int = 0
    was_sent: bool = False
    unanswered: int = 0
    """Requests that were sent and have no answer."""
    accepted: bool = False
    """A leader has accepted the delete, which may finish after the call."""
    code: int | None = None
    low_watermark: Offset = UNKNOWN_OFFSET
    leader_log_start_offset: Offset = UNKNOWN_OFFSET


async def delete_below(
    call: AdminCall,
    targets: Mapping[TopicPartition, DeleteTarget],
    *,
    leader_only: bool = False,
    topic_ids: Mapping[str, TopicId] | None = None,
) -> dict[TopicPartition, DeleteResult]:
    """Resolves targets and deletes the records below them. See `delete_records`."""
    if not targets:
        return {}
    view = await call.view(partition.topic for partition in targets)
    expected = dict(topic_ids or {})
    results: dict[TopicPartition, DeleteResult] = {}
    wanted: dict[TopicPartition, DeleteTarget] = {}
    for partition, target in targets.items():
        mismatch = _mismatch(partition, expected, view)
        if mismatch is None:
            wanted[partition] = target
        else:
            results[partition] = DeleteRecordsError(partition, DeleteStage.FINDING_LEADER, mismatch)
    for name, topic in view.topics.items():
        if topic.topic_id is not None:
            expected.setdefault(name, topic.topic_id)
    resolved = await resolve(call, wanted, view)
    check_first = topic_ids is not None or any(needs_looking_up(target) for target in wanted.values())
    attempts = DeleteAttempts(call, expected, view, leader_only=leader_only, check_first=check_first)
    results |= {key: found for key, found in resolved.items() if isinstance(found, DeleteRecordsError)}
    results |= await attempts.run({key: found for key, found in resolved.items() if isinstance(found, int)})
    return {partition: results[partition] for partition in targets}


def _mismatch(partition: TopicPartition, expected: Mapping[str, TopicId], view: ClusterView) -> str | None:
    """Returns why the topic is not the expected one; None if it is, or if an id is unknown."""
    wanted = expected.get(partition.topic)
    if wanted is None or partition.topic not in view.topics:
        return None
    found = view.topic_id(partition.topic)
    if found is None:
        return "a topic id is given, but the broker returns no topic ids"
    if found != wanted:
        ids = f"its id is {topic_id_text(found)}, not {topic_id_text(wanted)}"
        return f"topic {partition.topic} was created again: {ids}"
    return None


class DeleteAttempts:
    """The attempts of one call whose offsets are resolved."""

    def __init__(
        self,
        call: AdminCall,
        expected: Mapping[str, TopicId],
        view: ClusterView,
        *,
        leader_only: bool,
        check_first: bool,
    ) -> None:
        """`view` is from the call's beginning. The first attempt finds the leaders in it.

        Later attempts ask the leaders for the topic ids. With `check_first` the first attempt does too.
        """
        kept_ms = min(LAST_QUESTION_MS, call.deadline.timeout_ms // 4)
        self._call = call
        self._attempts_call = AdminCall(call.cluster, call.deadline.earlier(kept_ms))
        self._expected = expected
        self._leader_only = leader_only
        self._check_first = check_first
        self._leaders = LeaderFinder(self._attempts_call, view)
        self._deletes: dict[TopicPartition, _Delete] = {}

    async def run(self, offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, DeleteResult]:
        """Deletes the records of each partition below its offset. Errors: AuthenticationFailedError."""
        self._deletes = {partition: _Delete(offset) for partition, offset in offsets.items()}
        call = self._attempts_call
        attempts = Attempts[TopicPartition, DeletedRecords](call.cluster, call.deadline, self._locate, self._send)
        await attempts.run(list(offsets))
        results: dict[TopicPartition, DeleteResult] = {**attempts.done}
        for partition, error in attempts.failed.items():
            if isinstance(error, BrokerAnsweredError):
                self._deletes[partition].code = error.code
            results[partition] = error if isinstance(error, DeleteRecordsError) else self._failed(partition, str(error))
        results |= await self._unfinished(attempts.unfinished)
        return results

    # ------------------------------------------------------------------ attempts
    async def _locate(self, partitions: Collection[TopicPartition]) -> Located[TopicPartition]:
        view = await self._leaders.view(partitions)
        located = self._leaders.place(partitions, view)
        for partition in partitions:
            self._deletes[partition].stage = DeleteStage.FINDING_LEADER
            self._deletes[partition].attempts += 1
        return self._without_other_topics(located, view)

    def _without_other_topics(self, located: Located[TopicPartition], view: ClusterView) -> Located[TopicPartition]:
        """Returns the partitions whose topic is still the expected one; the others have failed."""
        kept = Located[TopicPartition](others=located.others)
        for broker_id, partitions in located.placed.items():
            for partition in partitions:
                mismatch = _mismatch(partition, self._expected, view)
                if mismatch is None:
                    kept.put(broker_id, partition)
                else:
                    kept.others[partition] = self._failed(partition, mismatch)
        return kept

    async def _send(
        self, broker_id: BrokerId, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[DeletedRecords]]:
        for partition in partitions:
            self._deletes[partition].stage = DeleteStage.SENDING
        is_repeated = any(self._deletes[partition].attempts > 1 for partition in partitions)
        call = self._attempts_call
        async with call.cluster.broker(broker_id, call.deadline, waits=True) as handle:
            if self._leader_only and handle.versions.highest(ApiKey.DELETE_RECORDS) < LEADER_ONLY_SINCE:
                return {partition: self._unsupported(partition, handle) for partition in partitions}
            outcomes: dict[TopicPartition, Outcome[DeletedRecords]] = {}
            if is_repeated or self._check_first:
                view = await view_from(handle, dict.fromkeys(partition.topic for partition in partitions))
                located = self._without_other_topics(self._leaders.place(partitions, view), view)
                outcomes |= located.others
                partitions = located.placed.pop(broker_id, [])
                for other, elsewhere in located.placed.items():
                    reason = f"broker {broker_id} says that broker {other} leads it"
                    outcomes |= dict.fromkeys(elsewhere, RetryLater(reason))
            if partitions:
                outcomes |= await self._delete(handle, partitions)
            return outcomes

    def _wait_ms(self) -> int:
        """Returns how long the broker may hold the request.

        At most half of a request's timeout, so that a broker which hangs differs from one that waits for its replicas.
        """
        remaining_ms = self._attempts_call.deadline.remaining_ms()
        longest_ms = self._call.cluster.settings.request_timeout_ms // 2
        return max(0, min(remaining_ms - min(ANSWER_MS, remaining_ms // 10), longest_ms))

    async def _delete(
        self, handle: BrokerHandle, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[DeletedRecords]]:
        rows = {
            key: DeleteRecordsPartition(partition_index=key.partition, offset=self._deletes[key].offset)
            for key in partitions
        }
        topics = [DeleteRecordsTopic(name=name, partitions=some) for name, some in by_topic(rows).items()]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=self._wait_ms(), leader_only=self._leader_only)
        version = handle.choose(type(request), at_least=LEADER_ONLY_SINCE if self._leader_only else 0)
        for partition in partitions:
            delete = self._deletes[partition]
            delete.stage, delete.was_sent = DeleteStage.WAITING, True
            delete.unanswered += 1
        try:
            response = await handle.ask_in(request, version)
        except ConnectionFailedError as error:
            if not error.was_sent:
                for partition in partitions:
                    self._deletes[partition].stage = DeleteStage.SENDING
                    self._deletes[partition].unanswered -= 1
            raise
        return self._answered(response, set(partitions))

    def _answered(self, response: Any, asked: set[TopicPartition]) -> dict[TopicPartition, Outcome[DeletedRecords]]:
        outcomes: dict[TopicPartition, Outcome[DeletedRecords]] = {}
        for partition, row in partition_rows(response.topics):
            if partition not in asked:
                continue
            delete = self._deletes[partition]
            delete.code = row.error_code
            delete.low_watermark, delete.leader_log_start_offset = row.low_watermark, row.leader_log_start_offset
            delete.stage = DeleteStage.ANSWERED
            delete.unanswered -= 1
            if row.error_code == ErrorCode.NONE:
                outcomes[partition] = Done(DeletedRecords(row.low_watermark, row.leader_log_start_offset))
            elif row.error_code == ErrorCode.REQUEST_TIMED_OUT:
                delete.stage, delete.accepted = DeleteStage.WAITING, True
                reason = f"replicas have not confirmed it; their low watermark is {row.low_watermark}"
                outcomes[partition] = RetryLater(reason)
            elif is_retriable(row.error_code):
                outcomes[partition] = self._leaders.on_error(partition, row.error_code, "the leader refused")
            else:
                outcomes[partition] = self._failed(partition, _refusal(partition, row.error_code))
        return outcomes

    # ------------------------------------------------------------------ ends
    def _failed(
        self, partition: TopicPartition, reason: str, *, leader_done: bool | None = False
    ) -> DeleteRecordsError:
        """Returns the final error of a partition, with the known facts."""
        delete = self._deletes[partition]
        under_way = delete.unanswered > 0 or delete.accepted
        done = None if leader_done is False and under_way else leader_done
        looking = delete.stage in (DeleteStage.FINDING_LEADER, DeleteStage.SENDING)
        stage = DeleteStage.WAITING if under_way and looking else delete.stage
        facts = DeleteFacts(delete.offset, delete.code, done, delete.low_watermark, delete.leader_log_start_offset)
        return DeleteRecordsError(partition, stage, reason.removeprefix(f"{partition}: "), facts)

    def _unsupported(self, partition: TopicPartition, handle: BrokerHandle) -> LeaderOnlyUnsupportedError:
        highest = handle.versions.highest(ApiKey.DELETE_RECORDS)
        code = ErrorCode.UNSUPPORTED_VERSION
        reason = f"{code.name}: leader_only needs DeleteRecords version {LEADER_ONLY_SINCE}, the broker has {highest}"
        return LeaderOnlyUnsupportedError(
            partition, DeleteStage.SENDING, reason, DeleteFacts(self._deletes[partition].offset, code)
        )

    async def _unfinished(self, reasons: Mapping[TopicPartition, str]) -> dict[TopicPartition, DeleteResult]:
        """Returns the errors of deletes that were not done in time, after a last look at the log starts."""
        unknown = [partition for partition in reasons if self._leader_done(partition) is None]
        starts: Mapping[TopicPartition, ListedOffset | AdminError] = {}
        if unknown:
            starts = await offsets_at(self._call, dict.fromkeys(unknown, OffsetSpec.EARLIEST))
        results: dict[TopicPartition, DeleteResult] = {}
        for partition, reason in reasons.items():
            delete = self._deletes[partition]
            done = self._leader_done(partition)
            start = starts.get(partition)
            if isinstance(start, ListedOffset):
                delete.leader_log_start_offset = max(delete.leader_log_start_offset, start.offset)
                done = start.offset >= delete.offset
            late = f"not done within {self._call.deadline.timeout_ms} ms: {reason}"
            results[partition] = self._failed(partition, late, leader_done=done)
        return results

    def _leader_done(self, partition: TopicPartition) -> bool | None:
        """Returns whether the leader has deleted, according to the answers so far."""
        delete = self._deletes[partition]
        if delete.leader_log_start_offset != UNKNOWN_OFFSET and delete.leader_log_start_offset >= delete.offset:
            return True
        return None if delete.was_sent else False


def _refusal(partition: TopicPartition, code: int) -> str:
    """Returns why a leader refused, in a clause. Its answer has no room for a text."""
    if code == ErrorCode.POLICY_VIOLATION:
        return f"{code_name(code)}: the topic may be held; `lowtide topics explain {partition.topic}` shows it"
    return code_name(code)
