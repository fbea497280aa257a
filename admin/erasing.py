"""Deletes of which the records are erased too (EraseRecords): an ordinary delete first, then a request to each broker with a replica.

Before anything is deleted all these brokers are asked whether they know the request, which isn't advertised: one without rows. A delete
without the erasing that was asked for would promise something else. A broker that isn't live is asked later, and named: the delete holds
there too once it is back, but its files have the records until then, and perhaps after. One that goes away during the call is asked until
the time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.admin.anywhere import outcome_of_error, wait_ms
from lowtide.admin.attempts import Attempts, Done, Located, Outcome, Retry
from lowtide.admin.delete_records import delete_records
from lowtide.admin.deletion import (
    DeletedRecords,
    DeleteFacts,
    DeleteResult,
    DeleteStage,
    DeleteTarget,
    ErasedRecords,
    EraseUnsupportedError,
    checked_targets,
)
from lowtide.admin.errors import (
    AdminError,
    AuthenticationFailedError,
    BrokerAnsweredError,
    DeadlineExceededError,
    UnsupportedVersionError,
)
from lowtide.admin.observation import ask_lowtide
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.admin.patience import Deadline

PARTITIONS_PER_REQUEST: Final = 1_000
"""As many as a broker erases at once."""

PROBE_MS: Final = 5_000
"""For the question whether a broker knows the request; a quarter where the time is short."""


class _Replica(NamedTuple):
    broker_id: BrokerId
    partition: TopicPartition


async def erase_records(
    cluster: Cluster,
    targets: Mapping[TopicPartition, DeleteTarget],
    deadline: Deadline,
    *,
    topic_ids: Mapping[str, TopicId] | None = None,
) -> dict[TopicPartition, DeleteResult]:
    """See `AdminClient.delete_records`."""
    names = checked_targets(targets)
    if not names:
        return {}
    view = await cluster.view(dict.fromkeys(partition.topic for partition in names), deadline)
    replicas = {partition: _replicas(view, partition) for partition in names}
    unable = await _unable(
        cluster, {broker for brokers in replicas.values() for broker in brokers if broker in view.brokers}, deadline
    )
    results: dict[TopicPartition, DeleteResult] = {}
    for partition, brokers in replicas.items():
        reasons = [unable[broker] for broker in brokers if broker in unable]
        if reasons:
            facts = DeleteFacts(None, ErrorCode.UNSUPPORTED_VERSION)
            results[partition] = EraseUnsupportedError(
                partition, DeleteStage.SENDING, f"nothing is deleted: {reasons[0]}", facts
            )
    able = {partition: target for partition, target in names.items() if partition not in results}
    results |= await delete_records(cluster, able, deadline, topic_ids=topic_ids)
    deleted = {partition: result for partition, result in results.items() if isinstance(result, DeletedRecords)}
    results |= await _Erasure(cluster, deadline, deleted, view).run(deleted)
    return {partition: results[partition] for partition in names}


def _replicas(view: ClusterView, partition: TopicPartition) -> tuple[BrokerId, ...]:
    found = view.partition(partition)
    return () if isinstance(found, int) else found.replicas


async def _unable(cluster: Cluster, brokers: Collection[BrokerId], deadline: Deadline) -> dict[BrokerId, str]:
    """The brokers that don't know the request, each with a clause. What can't be reached is asked later."""
    request = EraseRecordsRequest(topics=[], timeout_ms=0)
    patience = deadline.earlier(max(deadline.remaining_ms() - min(PROBE_MS, deadline.timeout_ms // 4), 0))

    async def ask(broker_id: BrokerId) -> str | None:
        try:
            await ask_lowtide(cluster, broker_id, request, patience)
        except UnsupportedVersionError as error:
            return str(error)
        except AuthenticationFailedError:
            raise
        except AdminError:
            return None
        return None

    asked = list(brokers)
    answers = await asyncio.gather(*(ask(broker_id) for broker_id in asked))
    return {broker_id: answer for broker_id, answer in zip(asked, answers, strict=True) if answer is not None}


def _replicas_of(view: ClusterView, partitions: Collection[TopicPartition]) -> list[_Replica]:
    return [_Replica(broker_id, partition) for partition in partitions for broker_id in _replicas(view, partition)]


class _Erasure:
    """The second half of a call: the deletes are done."""

    def __init__(
        self,
        cluster: Cluster,
        deadline: Deadline,
        deleted: Mapping[TopicPartition, DeletedRecords],
        before: ClusterView,
    ) -> None:
        """`before` is the cluster as it was when the call began."""
        self._cluster = cluster
        self._deadline = deadline
        self._deleted = deleted
        self._before = before
        self._topic_ids: dict[str, TopicId] = {}

    async def run(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, ErasedRecords]:
        """Erase at all replicas; those that aren't in sync when all is done are named: they may fetch what they lack at any time."""
        if not partitions:
            return {}
        view, attempts = self._before, Attempts[_Replica, bool](self._cluster, self._deadline, self._locate, self._send)
        unreachable: str | None = None
        replicas: list[_Replica] = []
        try:
            view = await self._view(partitions)
            self._topic_ids = {name: topic.topic_id or ZERO_TOPIC_ID for name, topic in view.topics.items()}
            replicas = _replicas_of(view, partitions)
            await attempts.run(replicas)
            if self._deadline.remaining_ms():
                view = await self._view(partitions)
        except DeadlineExceededError as error:  # The deletes are done all the same.
            unreachable = str(error)
        replicas = replicas or _replicas_of(view, partitions)
        missing: dict[_Replica, str] = {each: str(error) for each, error in attempts.failed.items()}
        missing |= {
            each: f"not done within {self._deadline.timeout_ms} ms: {why}" for each, why in attempts.unfinished.items()
        }
        for each in replicas:
            found = view.partition(each.partition)
            if unreachable is not None:
                missing.setdefault(each, unreachable)
            elif each in attempts.done and not isinstance(found, int) and each.broker_id not in found.isr:
                missing[each] = "it isn't in sync, and may fetch what it lacks yet"
        return {
            partition: ErasedRecords.of(
                self._deleted[partition],
                tuple(
                    sorted(each.broker_id for each in replicas if each.partition == partition and each not in missing)
                ),
                {each.broker_id: missing[each] for each in replicas if each.partition == partition and each in missing},
            )
            for partition in partitions
        }

    async def _view(self, partitions: Collection[TopicPartition]) -> ClusterView:
        return await self._cluster.view(dict.fromkeys(partition.topic for partition in partitions), self._deadline)

    async def _locate(self, replicas: Collection[_Replica], _: int) -> Located[_Replica]:
        located = Located[_Replica]()
        live = await self._cluster.brokers(self._deadline)
        for each in replicas:
            if each.broker_id in live:
                located.put(each.broker_id, each)
            elif each.broker_id in self._before.brokers:
                located.others[each] = Retry("it isn't live any more")
            else:
                located.others[each] = AdminError("it isn't live")
        return located

    async def _send(self, broker_id: BrokerId, replicas: list[_Replica], _: int) -> Mapping[_Replica, Outcome[bool]]:
        outcomes: dict[_Replica, Outcome[bool]] = {}
        for start in range(0, len(replicas), PARTITIONS_PER_REQUEST):
            outcomes |= await self._ask(broker_id, replicas[start : start + PARTITIONS_PER_REQUEST])
        return outcomes

    async def _ask(self, broker_id: BrokerId, replicas: list[_Replica]) -> Mapping[_Replica, Outcome[bool]]:
        topics: dict[str, EraseRecordsTopic] = {}
        for _, (name, number) in replicas:
            rows = topics.setdefault(
                name, EraseRecordsTopic(name=name, topic_id=self._topic_ids.get(name, ZERO_TOPIC_ID), partitions=[])
            )
            offset = self._deleted[TopicPartition(name, number)].low_watermark
            rows.partitions.append(EraseRecordsPartition(partition_index=number, offset=offset))
        request = EraseRecordsRequest(topics=list(topics.values()), timeout_ms=wait_ms(self._cluster, self._deadline))
        try:
            response = await ask_lowtide(self._cluster, broker_id, request, self._deadline)
        except UnsupportedVersionError as error:  # It knew the request before, or wasn't there yet.
            return dict.fromkeys(replicas, Retry(str(error)))
        if response.error_code:
            return dict.fromkeys(replicas, outcome_of_error("it refused", response.error_code, None))
        outcomes: dict[_Replica, Outcome[bool]] = {}
        for topic in response.topics:
            for row in topic.partitions:
                key = _Replica(broker_id, TopicPartition(topic.name, row.partition_index))
                if row.error_code == ErrorCode.NONE:
                    outcomes[key] = Done(True)
                elif row.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    outcomes[key] = BrokerAnsweredError(row.error_code, "it failed", row.error_message)
                else:
                    outcomes[key] = outcome_of_error("it refused", row.error_code, row.error_message)
        return outcomes
