"""Asks all brokers with a replica whether their files are clean (EraseRecords), and before that whether they can erase.

ApiVersions does not list the requests, so a probe is an empty request. A broker that is not live is asked later, and
named in the result. What was deleted or erased takes effect there when it returns, but its files keep the records until
then, and perhaps longer. A broker that goes away during the call is asked until the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from lowtide.admin.attempts import Attempts, Done, Located, Outcome, RetryLater
from lowtide.admin.call import AdminCall, failure, partition_rows
from lowtide.admin.errors import (
    AdminError,
    AuthenticationFailedError,
    BrokerAnsweredError,
    DeadlineExceededError,
    UnsupportedVersionError,
)
from lowtide.admin.observation import ask_lowtide
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.protocol.schema import ApiMessage

PARTITIONS_PER_REQUEST: Final = 1_000
"""A broker erases at most so many partitions at once."""

PROBE_MS: Final = 5_000
"""How long the client waits to learn whether brokers know a request; a quarter of short times."""


class CleanedReplicas(NamedTuple):
    """The brokers with a replica of a partition."""

    erased_by: tuple[BrokerId, ...]
    """The brokers whose files are clean."""
    not_erased_by: Mapping[BrokerId, str]
    """The others, each with a reason."""


class _Replica(NamedTuple):
    broker_id: BrokerId
    partition: TopicPartition


class Probe(NamedTuple):
    """An empty request in the version that a call needs."""

    request: ApiMessage
    version: int


def replicas_of(view: ClusterView, partition: TopicPartition) -> tuple[BrokerId, ...]:
    """Returns the brokers with a replica; none for an unknown partition."""
    found = view.partition(partition)
    return () if isinstance(found, int) else found.replicas


async def unable_brokers(
    call: AdminCall, partitions: Collection[TopicPartition], view: ClusterView, probes: Sequence[Probe]
) -> dict[BrokerId, str]:
    """Returns the live brokers with a replica that do not know a request, each with a reason.

    Unreachable ones are asked later. Errors: AuthenticationFailedError.
    """
    kept_ms = max(call.deadline.remaining_ms() - min(PROBE_MS, call.deadline.timeout_ms // 4), 0)
    probing, unable = AdminCall(call.cluster, call.deadline.earlier(kept_ms)), dict[BrokerId, str]()

    async def ask(broker_id: BrokerId) -> None:
        try:
            for request, version in probes:
                await ask_lowtide(probing, broker_id, request, version)
        except UnsupportedVersionError as error:
            unable[broker_id] = str(error)
        except AuthenticationFailedError:
            raise
        except AdminError:
            pass

    brokers = {broker for partition in partitions for broker in replicas_of(view, partition)}
    await asyncio.gather(*(ask(broker) for broker in sorted(brokers) if broker in view.brokers))
    return unable


async def clean_replicas(
    call: AdminCall, goals: Mapping[TopicPartition, EraseGoal], before: ClusterView, erasure_id: UUID
) -> dict[TopicPartition, CleanedReplicas]:
    """Waits until all files of all replicas are clean, or the deadline passes.

    The ledger gets the answers under the erasure id. `before` is the view from the call's beginning. Replicas that are
    not in sync in the end are named: they may still fetch the records. Errors: AuthenticationFailedError.
    """
    return await _CleanPhase(call, goals, before, erasure_id).run() if goals else {}


class _CleanPhase:
    """The last phase of a call: the records are deleted, or erasures name them."""

    def __init__(
        self, call: AdminCall, goals: Mapping[TopicPartition, EraseGoal], before: ClusterView, erasure_id: UUID
    ) -> None:
        self._call = call
        self._goals = goals
        self._before = before
        self._erasure_id = erasure_id
        self._topic_ids: dict[str, TopicId] = {}

    async def run(self) -> dict[TopicPartition, CleanedReplicas]:
        cluster, deadline = self._call.cluster, self._call.deadline
        view, attempts = self._before, Attempts[_Replica, bool](cluster, deadline, self._locate, self._send)
        unreachable: str | None = None
        replicas: list[_Replica] = []
        try:
            topics = dict.fromkeys(partition.topic for partition in self._goals)
            view = await self._call.view(topics)
            self._topic_ids = {name: topic.topic_id or ZERO_TOPIC_ID for name, topic in view.topics.items()}
            replicas = self._replicas(view)
            await attempts.run(replicas)
            if deadline.remaining_ms():
                view = await self._call.view(topics)
        except DeadlineExceededError as error:  # The deletes are done nevertheless.
            unreachable = str(error)
        replicas = replicas or self._replicas(view)
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
        clean = {partition: list[BrokerId]() for partition in self._goals}
        others = {partition: dict[BrokerId, str]() for partition in self._goals}
        for each in replicas:
            if each in missing:
                others[each.partition][each.broker_id] = missing[each]
            else:
                clean[each.partition].append(each.broker_id)
        return {each: CleanedReplicas(tuple(sorted(clean[each])), others[each]) for each in self._goals}

    def _replicas(self, view: ClusterView) -> list[_Replica]:
        return [_Replica(broker, partition) for partition in self._goals for broker in replicas_of(view, partition)]

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
        for _, partition in replicas:
            name, goal = partition.topic, self._goals[partition]
            rows = topics.setdefault(
                name, EraseRecordsTopic(name=name, topic_id=self._topic_ids.get(name, ZERO_TOPIC_ID), partitions=[])
            )
            rows.partitions.append(
                EraseRecordsPartition(
                    partition_index=partition.partition, offset=goal.offset, erasures_end=goal.erasures_end
                )
            )
        request = EraseRecordsRequest(
            topics=list(topics.values()), timeout_ms=self._call.wait_ms(), erasure_id=self._erasure_id.bytes
        )
        try:
            response = await ask_lowtide(self._call, broker_id, request, 1)
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
