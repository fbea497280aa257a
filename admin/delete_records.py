"""Deletes of records (DeleteRecords): one request for each leader, repeated until the deadline, and never to more than was meant.

What is sent is always an offset, the same one in every attempt. A topic is known by its id from the beginning of the call on, or by the
one that the caller expects; an attempt that could meet another topic of the same name asks the leader for the topic's id first, on the
connection by which the delete follows. What remains is that a topic is deleted, created again and led by the same broker between its two
answers, for DeleteRecords itself names no ids.

Before the deadline a part of the time is kept for a last question: where the logs start of which it isn't known what became of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.anywhere import ANSWER_MS
from lowtide.admin.attempts import Attempts, Done, Located, Outcome, Retry
from lowtide.admin.cluster import view_from
from lowtide.admin.deletion import (
    DeletedRecords,
    DeleteFacts,
    DeleteRecordsError,
    DeleteResult,
    DeleteStage,
    DeleteTarget,
    LeaderOnlyUnsupportedError,
    check_topic_ids,
    checked_targets,
)
from lowtide.admin.errors import AdminError, BrokerAnsweredError, ConnectionFailedError, code_name
from lowtide.admin.leaders import Leaders
from lowtide.admin.offsets import ListedOffset, OffsetSpec, list_offsets
from lowtide.admin.resolution import needs_looking_up, resolve
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.types import UNKNOWN_OFFSET, BrokerId, Offset, TopicId, TopicPartition, topic_id_text

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.admin.patience import Deadline

LEADER_ONLY_SINCE: Final = 3

LAST_QUESTION_MS: Final = 2000
"""What is kept of the time for the last question, at most; a quarter where the time is short."""


class _Delete:
    """One partition's delete while it lasts."""

    __slots__ = (
        "accepted",
        "code",
        "leader_log_start_offset",
        "low_watermark",
        "offset",
        "stage",
        "unanswered",
        "was_sent",
    )

    def __init__(self, offset: Offset) -> None:
        self.offset = offset
        self.stage = DeleteStage.FINDING_LEADER
        self.was_sent = False
        self.unanswered = 0
        """Requests that were sent, and whose outcome is not known."""
        self.accepted = False
        """A leader has taken it on and let it wait: it may happen after we have gone."""
        self.code: int | None = None
        self.low_watermark = UNKNOWN_OFFSET
        self.leader_log_start_offset = UNKNOWN_OFFSET


async def delete_records(
    cluster: Cluster,
    targets: Mapping[TopicPartition, DeleteTarget],
    deadline: Deadline,
    *,
    leader_only: bool = False,
    topic_ids: Mapping[str, TopicId] | None = None,
) -> dict[TopicPartition, DeleteResult]:
    """See `AdminClient.delete_records`."""
    names = checked_targets(targets)
    check_topic_ids(topic_ids or {})
    if not names:
        return {}
    view = await cluster.view((partition.topic for partition in names), deadline)
    expected = dict(topic_ids or {})
    results: dict[TopicPartition, DeleteResult] = {}
    meant: dict[TopicPartition, DeleteTarget] = {}
    for partition, target in names.items():
        mismatch = _mismatch(partition, expected, view)
        if mismatch is None:
            meant[partition] = target
        else:
            results[partition] = DeleteRecordsError(partition, DeleteStage.FINDING_LEADER, mismatch)
    for name, topic in view.topics.items():
        if topic.topic_id is not None:
            expected.setdefault(name, topic.topic_id)
    resolved = await resolve(cluster, meant, view, deadline)
    needs_check = topic_ids is not None or any(needs_looking_up(target) for target in meant.values())
    deletion = Deletion(cluster, deadline, expected, view, leader_only=leader_only, check_first=needs_check)
    offsets: dict[TopicPartition, Offset] = {}
    for partition, found in resolved.items():
        if isinstance(found, DeleteRecordsError):
            results[partition] = found
        else:
            offsets[partition] = found
    results |= await deletion.run(offsets)
    return {partition: results[partition] for partition in names}


async def resolve_targets(
    cluster: Cluster, targets: Mapping[TopicPartition, DeleteTarget], deadline: Deadline
) -> dict[TopicPartition, Offset | DeleteRecordsError]:
    """See `AdminClient.resolve_delete_targets`."""
    names = checked_targets(targets)
    if not names:
        return {}
    view = await cluster.view((topic for topic, _ in names), deadline)
    return await resolve(cluster, names, view, deadline)


def _mismatch(partition: TopicPartition, expected: Mapping[str, TopicId], view: ClusterView) -> str | None:
    """Why this isn't the topic that is meant, or None: it is, its id is not known yet, or no id was given."""
    meant = expected.get(partition.topic)
    if meant is None or partition.topic not in view.topics:
        return None
    found = view.topic_id(partition.topic)
    if found is None:
        return "a certain topic is meant, but the broker doesn't tell topic ids"
    if found != meant:
        return f"topic {partition.topic} was created again: its id is {topic_id_text(found)}, {topic_id_text(meant)} is meant"
    return None


class Deletion:
    """One call, once all offsets are known."""

    def __init__(
        self,
        cluster: Cluster,
        deadline: Deadline,
        expected: Mapping[str, TopicId],
        view: ClusterView,
        *,
        leader_only: bool,
        check_first: bool,
    ) -> None:
        """`view`: that of the call's beginning, by which the first attempt finds the leaders.

        `check_first`: the first attempt has to ask them for the topics' ids too, not only later ones.
        """
        self._cluster = cluster
        self._deadline = deadline
        self._answer_by = deadline.earlier(min(LAST_QUESTION_MS, deadline.timeout_ms // 4))
        self._expected = expected
        self._leader_only = leader_only
        self._check_first = check_first
        self._leaders = Leaders(cluster, self._answer_by, view)
        self._deletes: dict[TopicPartition, _Delete] = {}

    async def run(self, offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, DeleteResult]:
        """Delete each partition up to its offset, exclusive. Errors: AuthenticationFailedError."""
        self._deletes = {partition: _Delete(offset) for partition, offset in offsets.items()}
        attempts = Attempts[TopicPartition, DeletedRecords](self._cluster, self._answer_by, self._locate, self._send)
        await attempts.run(list(offsets))
        results: dict[TopicPartition, DeleteResult] = {**attempts.done}
        for partition, error in attempts.failed.items():
            if isinstance(error, BrokerAnsweredError):
                self._deletes[partition].code = error.code
            results[partition] = error if isinstance(error, DeleteRecordsError) else self._failed(partition, str(error))
        results |= await self._unfinished(attempts.unfinished)
        return results

    # ------------------------------------------------------------------ attempts
    async def _locate(self, partitions: Collection[TopicPartition], number: int) -> Located[TopicPartition]:
        view = await self._leaders.view(partitions, number)
        located = self._leaders.place(partitions, view)
        for partition in partitions:
            self._deletes[partition].stage = DeleteStage.FINDING_LEADER
        return self._of_those_meant(located, view)

    def _of_those_meant(self, located: Located[TopicPartition], view: ClusterView) -> Located[TopicPartition]:
        """Without the partitions whose topic is another one now."""
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
        self, broker_id: BrokerId, partitions: list[TopicPartition], number: int
    ) -> Mapping[TopicPartition, Outcome[DeletedRecords]]:
        for partition in partitions:
            self._deletes[partition].stage = DeleteStage.SENDING
        async with self._cluster.broker(broker_id, self._answer_by, waits=True) as handle:
            if self._leader_only and handle.versions.highest(ApiKey.DELETE_RECORDS) < LEADER_ONLY_SINCE:
                return {partition: self._unsupported(partition, handle) for partition in partitions}
            outcomes: dict[TopicPartition, Outcome[DeletedRecords]] = {}
            if number > 1 or self._check_first:
                view = await view_from(handle, dict.fromkeys(partition.topic for partition in partitions))
                located = self._of_those_meant(self._leaders.place(partitions, view), view)
                outcomes |= located.others
                partitions = located.placed.pop(broker_id, [])
                for other, elsewhere in located.placed.items():
                    outcomes |= dict.fromkeys(elsewhere, Retry(f"broker {broker_id} says that broker {other} leads it"))
            if partitions:
                outcomes |= await self._delete(handle, partitions)
            return outcomes

    def _wait_ms(self) -> int:
        """How long the broker may let the request wait.

        Half of a request's time at most, so that a broker that hangs is distinguished from one that waits for its
        replicas; a delete that ran out of it is sent again.
        """
        remaining_ms = self._answer_by.remaining_ms()
        return max(
            0, min(remaining_ms - min(ANSWER_MS, remaining_ms // 10), self._cluster.settings.request_timeout_ms // 2)
        )

    async def _delete(
        self, handle: BrokerHandle, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[DeletedRecords]]:
        by_topic: dict[str, list[DeleteRecordsPartition]] = {}
        for partition in partitions:
            row = DeleteRecordsPartition(partition_index=partition.partition, offset=self._deletes[partition].offset)
            by_topic.setdefault(partition.topic, []).append(row)
        topics = [DeleteRecordsTopic(name=name, partitions=rows) for name, rows in by_topic.items()]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=self._wait_ms(), leader_only=self._leader_only)
        version = handle.choose(type(request), at_least=LEADER_ONLY_SINCE if self._leader_only else 0)
        for partition in partitions:
            delete = self._deletes[partition]
            delete.stage, delete.was_sent = DeleteStage.WAITING, True
            delete.unanswered += 1  # Until there is an answer, whatever ends the waiting.
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
        for topic in response.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
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
                    outcomes[partition] = Retry(
                        f"replicas haven't confirmed it; their low watermark is {row.low_watermark}"
                    )
                elif is_retriable(row.error_code):
                    outcomes[partition] = self._leaders.on_error(partition, row.error_code, "the leader refused")
                else:
                    outcomes[partition] = self._failed(partition, code_name(row.error_code))
        return outcomes

    # ------------------------------------------------------------------ ends
    def _failed(
        self, partition: TopicPartition, reason: str, *, leader_done: bool | None = False
    ) -> DeleteRecordsError:
        """The final error of a partition, with what is known."""
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
        reason = f"{code.name}: deletes of the leader alone need DeleteRecords version {LEADER_ONLY_SINCE}, the broker has {highest}"
        return LeaderOnlyUnsupportedError(
            partition, DeleteStage.SENDING, reason, DeleteFacts(self._deletes[partition].offset, code)
        )

    async def _unfinished(self, reasons: Mapping[TopicPartition, str]) -> dict[TopicPartition, DeleteResult]:
        """What is known of the deletes that the time ran out on."""
        unknown = [partition for partition in reasons if self._leader_done(partition) is None]
        starts: Mapping[TopicPartition, ListedOffset | AdminError] = {}
        if unknown:
            starts = await list_offsets(self._cluster, dict.fromkeys(unknown, OffsetSpec.EARLIEST), self._deadline)
        results: dict[TopicPartition, DeleteResult] = {}
        for partition, reason in reasons.items():
            delete = self._deletes[partition]
            done = self._leader_done(partition)
            start = starts.get(partition)
            if isinstance(start, ListedOffset):
                delete.leader_log_start_offset = max(delete.leader_log_start_offset, start.offset)
                done = start.offset >= delete.offset
            results[partition] = self._failed(
                partition, f"not done within {self._deadline.timeout_ms} ms: {reason}", leader_done=done
            )
        return results

    def _leader_done(self, partition: TopicPartition) -> bool | None:
        """Whether the leader has deleted, as far as the answers so far tell."""
        delete = self._deletes[partition]
        if delete.leader_log_start_offset != UNKNOWN_OFFSET and delete.leader_log_start_offset >= delete.offset:
            return True
        return None if delete.was_sent else False
