"""Deletes records and erases them from files (EraseRecords).

After an ordinary delete the client sends a request to each broker with a replica.

Before anything is deleted, the client sends all these brokers an empty request, to learn whether they know it;
ApiVersions does not list it. A broker that is not live is asked later, and named in the result. The delete takes effect
there when it returns, but its files keep the records until then, and perhaps longer. A broker that goes away during the
call is asked until the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.admin.attempts import Attempts, Done, Located, Outcome, RetryLater
from lowtide.admin.call import AdminCall, failure, partition_rows
from lowtide.admin.delete_attempts import delete_below
from lowtide.admin.deletion import (
    DeletedRecords,
    DeleteFacts,
    DeleteResult,
    DeleteStage,
    DeleteTarget,
    ErasedRecords,
    EraseUnsupportedError,
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
    from lowtide.admin.cluster_view import ClusterView

PARTITIONS_PER_REQUEST: Final = 1_000
"""A broker erases at most so many partitions at once."""

PROBE_MS: Final = 5_000
"""How long the client waits to learn whether brokers know the request; a quarter of short times."""


class _Replica(NamedTuple):
    broker_id: BrokerId
    partition: TopicPartition


async def erase_below(
    call: AdminCall, targets: Mapping[TopicPartition, DeleteTarget], topic_ids: Mapping[str, TopicId] | None
) -> dict[TopicPartition, DeleteResult]:
    """Deletes records, then erases them. See `delete_records`."""
    view = await call.view(partition.topic for partition in targets)
    replicas = {partition: _replicas(view, partition) for partition in targets}
    asked = {broker for brokers in replicas.values() for broker in brokers if broker in view.brokers}
    unable = await _unable(call, asked)
    results: dict[TopicPartition, DeleteResult] = {}
    for partition, brokers in replicas.items():
        reasons = [unable[broker] for broker in brokers if broker in unable]
        if reasons:
            facts = DeleteFacts(None, ErrorCode.UNSUPPORTED_VERSION)
            results[partition] = EraseUnsupportedError(
                partition, DeleteStage.SENDING, f"nothing is deleted: {reasons[0]}", facts
            )
    able = {partition: target for partition, target in targets.items() if partition not in results}
    results |= await delete_below(call, able, topic_ids=topic_ids)
    deleted = {partition: result for partition, result in results.items() if isinstance(result, DeletedRecords)}
    results |= await _ErasePhase(call, deleted, view).run(deleted)
    return {partition: results[partition] for partition in targets}


def _replicas(view: ClusterView, partition: TopicPartition) -> tuple[BrokerId, ...]:
    found = view.partition(partition)
    return () if isinstance(found, int) else found.replicas


async def _unable(call: AdminCall, brokers: Collection[BrokerId]) -> dict[BrokerId, str]:
    """Returns the brokers that do not know the request, each with a reason. Unreachable ones are asked later."""
    kept_ms = max(call.deadline.remaining_ms() - min(PROBE_MS, call.deadline.timeout_ms // 4), 0)
    probe, unable = AdminCall(call.cluster, call.deadline.earlier(kept_ms)), dict[BrokerId, str]()

    async def ask(broker_id: BrokerId) -> None:
        try:
            await ask_lowtide(probe, broker_id, EraseRecordsRequest(topics=[], timeout_ms=0))
        except UnsupportedVersionError as error:
            unable[broker_id] = str(error)
        except AuthenticationFailedError:
            raise
        except AdminError:
            pass

    await asyncio.gather(*map(ask, brokers))
    return unable


def _replicas_of(view: ClusterView, partitions: Collection[TopicPartition]) -> list[_Replica]:
    return [_Replica(broker_id, partition) for partition in partitions for broker_id in _replicas(view, partition)]


class _ErasePhase:
    """The second phase of a call, after the deletes."""

    def __init__(self, call: AdminCall, deleted: Mapping[TopicPartition, DeletedRecords], before: ClusterView) -> None:
        """`before` is the view from the call's beginning."""
        self._call = call
        self._deleted = deleted
        self._before = before
        self._topic_ids: dict[str, TopicId] = {}

    async def run(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, ErasedRecords]:
        """Erases at all replicas.

        Replicas that are not in sync in the end are named: they may still fetch the records.
        """
        if not partitions:
            return {}
        cluster, deadline = self._call.cluster, self._call.deadline
        view, attempts = self._before, Attempts[_Replica, bool](cluster, deadline, self._locate, self._send)
        unreachable: str | None = None
        replicas: list[_Replica] = []
        try:
            topics = dict.fromkeys(partition.topic for partition in partitions)
            view = await self._call.view(topics)
            self._topic_ids = {name: topic.topic_id or ZERO_TOPIC_ID for name, topic in view.topics.items()}
            replicas = _replicas_of(view, partitions)
            await attempts.run(replicas)
            if deadline.remaining_ms():
                view = await self._call.view(topics)
        except DeadlineExceededError as error:  # The deletes are done nevertheless.
            unreachable = str(error)
        replicas = replicas or _replicas_of(view, partitions)
        missing: dict[_Replica, str] = {each: str(error) for each, error in attempts.failed.items()}
        missing |= {
            each: f"not done within {deadline.timeout_ms} ms: {why}" for each, why in attempts.unfinished.items()
        }
        for each in replicas:
            found = view.partition(each.partition)
            if unreachable is not None:
                missing.setdefault(each, unreachable)
            elif each in attempts.done and not isinstance(found, int) and each.broker_id not in found.isr:
                missing[each] = "it is not in sync, and may still fetch the records"
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

    async def _locate(self, replicas: Collection[_Replica]) -> Located[_Replica]:
        located = Located[_Replica]()
        live = await self._call.cluster.brokers(self._call.deadline)
        for each in replicas:
            if each.broker_id in live:
                located.put(each.broker_id, each)
            elif each.broker_id in self._before.brokers:
                located.others[each] = RetryLater("it is no longer live")
            else:
                located.others[each] = AdminError("it is not live")
        return located

    async def _send(self, broker_id: BrokerId, replicas: list[_Replica]) -> Mapping[_Replica, Outcome[bool]]:
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
        request = EraseRecordsRequest(topics=list(topics.values()), timeout_ms=self._call.wait_ms())
        try:
            response = await ask_lowtide(self._call, broker_id, request)
        except UnsupportedVersionError as error:  # It knew the request before, or was away.
            return dict.fromkeys(replicas, RetryLater(str(error)))
        if response.error_code:
            return dict.fromkeys(replicas, failure("it refused", response.error_code))
        outcomes: dict[_Replica, Outcome[bool]] = {}
        for partition, row in partition_rows(response.topics):
            key = _Replica(broker_id, partition)
            if row.error_code == ErrorCode.NONE:
                outcomes[key] = Done(True)
            elif row.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                outcomes[key] = BrokerAnsweredError(row.error_code, "it failed", row.error_message)
            else:
                outcomes[key] = failure("it refused", row.error_code, row.error_message)
        return outcomes
