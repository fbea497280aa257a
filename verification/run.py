"""One run: creates topics, lets clients work, makes faults round by round, surveys the replicas, deletes the topics.

Topics are deleted however the run ends. In every second round no delete begins once the fault begins, so that nothing
hides what it brings back; in the others deletes go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowtide.admin.cluster_description import ClusterDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.finding import SearchedPartition
from lowtide.admin.topics import NewTopic
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.tasks import TaskRegistry
from lowtide.verification.history import OperationHistory
from lowtide.verification.requests import FOLLOWERS_SINCE, RecordedRequests
from lowtide.verification.survey import ReplicaSurvey, SurveyResult
from lowtide.verification.workload import ClusterLeaders, DeleteWorkload

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster import BrokerHandle
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.verification.faults import FaultResult

CLEANUP_S: Final = 60.0
READY_S: Final = 60.0

SEGMENT_BYTES: Final = 1 << 20
"""Kafka's smallest: a long run deletes whole segments too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What to do. Times are in seconds."""

    prefix: str
    duration_s: float
    topics: int
    partitions: int
    replication_factor: int
    """0 is three, or the number of brokers if that is smaller."""
    round_s: float
    """The mean time between two faults, or between two surveys without faults."""
    recovery_s: float
    """How long replicas may take to be in sync, and then to return what was acknowledged."""


@dataclass(slots=True)
class RunResult:
    """What a run did and found. It is complete as far as the run got."""

    history: OperationHistory
    cluster: ClusterDescription
    replication_factor: int
    topics: list[str]
    erases: bool = False
    reads_followers: bool = True
    elections: int = 0
    duration_ms: int = 0
    is_finished: bool = False
    surveys: list[SurveyResult] = field(default_factory=list)
    remaining_topics: dict[str, str] = field(default_factory=dict)
    """Topics that could not be deleted at the end, with the reasons."""


class VerificationRun:
    """A run against a cluster. `prepare`, then `run`, then `clean_up`."""

    def __init__(
        self,
        client: AdminClient,
        plan: RunPlan,
        clock: Clock,
        random: Random,
        faults: Callable[[int], Awaitable[FaultResult]] | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._clock = clock
        self._random = random
        self._faults = faults
        self._on_progress = on_progress
        self._created: list[str] = []

    async def prepare(self) -> RunResult:
        """Creates the topics. Errors: AdminError; then `clean_up` deletes those that exist."""
        plan, client = self._plan, self._client
        cluster = await client.describe_cluster()
        factor = plan.replication_factor or min(3, len(cluster.brokers))
        topics = [f"{plan.prefix}-{number}" for number in range(plan.topics)]
        configs: dict[str, str | float | bool] = {
            "cleanup.policy": "delete",
            "retention.ms": -1,
            "retention.bytes": -1,
            "segment.bytes": SEGMENT_BYTES,
            "min.insync.replicas": max(1, factor - 1),
            "unclean.leader.election.enable": "false",
        }
        self._created = topics
        created = await client.create_topics(
            NewTopic(name=name, partitions=plan.partitions, replication_factor=factor, configs=configs)
            for name in topics
        )
        self._created = [name for name, each in created.items() if not isinstance(each, BrokerAnsweredError)]
        for each in created.values():
            if isinstance(each, AdminError):
                raise each
        partitions = [TopicPartition(name, number) for name in topics for number in range(plan.partitions)]
        result = RunResult(OperationHistory(partitions), cluster, factor, topics)
        result.reads_followers = await self._followers_answer()
        result.erases = await self._can_erase(partitions)
        return result

    async def _followers_answer(self) -> bool:
        call = self._client.call()
        return await call.cluster.ask_any(_followers_answer_at, call.deadline)

    async def _can_erase(self, partitions: list[TopicPartition]) -> bool:
        """Returns whether the brokers are Lowtide's and erase keys: no other brokers know the request."""
        found = await self._client.find_records(partitions, keys=[b"nobody"], timeout=READY_S)
        return all(isinstance(each, SearchedPartition) for each in found.values())

    async def run(self, result: RunResult) -> None:
        """Works, makes faults and surveys until the time is over. `result` grows meanwhile. Errors: AdminError."""
        requests = RecordedRequests(self._client, result.history, self._clock)
        leaders = ClusterLeaders(requests, result.topics)
        workload = DeleteWorkload(requests, leaders, self._random)
        survey = ReplicaSurvey(
            requests, leaders, recovery_s=self._plan.recovery_s, reads_followers=result.reads_followers
        )
        workload.start(erases=result.erases, reads_followers=result.reads_followers)
        tasks = TaskRegistry(_raised_where_awaited)
        rounds = tasks.spawn(self._rounds(result, requests, workload, survey), name="rounds")
        try:
            await asyncio.wait([rounds, workload.failure], return_when=asyncio.FIRST_COMPLETED)
            if workload.failure.done():
                workload.failure.result()
            rounds.result()
            result.is_finished = True
        finally:
            await tasks.cancel_all()
            await workload.stop()
            workload.failure.cancel()
            result.elections, result.duration_ms = leaders.elections, requests.now_ms()

    async def _rounds(
        self, result: RunResult, requests: RecordedRequests, workload: DeleteWorkload, survey: ReplicaSurvey
    ) -> None:
        end_ms, number = self._plan.duration_s * 1000, 0
        while True:
            pause_s = self._random.uniform(0.5, 1.5) * self._plan.round_s
            remaining_s = (end_ms - requests.now_ms()) / 1000
            await asyncio.sleep(max(min(pause_s, remaining_s), 0))
            is_last = pause_s >= remaining_s
            if self._faults is not None and not is_last:
                number += 1
                if number % 2:
                    workload.hold_deletes()
                if result.erases:
                    await workload.erase_before_fault()
                await self._fault(result.history, requests, number)
            await workload.pause_deletes()
            found = await survey.run(all_lead=is_last)
            result.surveys.append(found)
            self._on_progress(_progress(result, number, found))
            if is_last:
                return
            workload.resume_deletes()

    async def _fault(self, history: OperationHistory, requests: RecordedRequests, number: int) -> None:
        assert self._faults is not None
        fault = history.begin_fault(number, requests.now_ms())
        fault.exit_code, fault.error = await self._faults(number)
        history.end_fault(fault, requests.now_ms())
        if fault.exit_code != 0:
            reason = fault.error or f"exit code {fault.exit_code}"
            self._on_progress(f"round {number}: the fault command failed: {reason}")

    async def clean_up(self) -> dict[str, str]:
        """Deletes the topics. Returns those that remain, with the reasons."""
        if not self._created:
            return {}
        try:
            deleted = await self._client.delete_topics(self._created, timeout=CLEANUP_S)
        except AdminError as error:
            return dict.fromkeys(self._created, str(error))
        return {name: str(error) for name, error in deleted.items() if error is not None and not _is_unknown(error)}


def _raised_where_awaited(_: str, error: BaseException) -> None:
    """Does nothing: `run` raises it."""


def _is_unknown(error: AdminError) -> bool:
    return getattr(error, "name", "") == "UNKNOWN_TOPIC_OR_PARTITION"


async def _followers_answer_at(handle: BrokerHandle) -> bool:
    return handle.versions.highest(ApiKey.FETCH) >= FOLLOWERS_SINCE


def _progress(result: RunResult, number: int, found: SurveyResult) -> str:
    history = result.history
    deletes = sum(len(judge.deletes) for judge in history.judges.values())
    read, unread = len(found.read), len(found.unread)
    return (
        f"{found.at_ms // 1000} s, {number} faults: {deletes} deletes acknowledged, {read} of {read + unread} replicas "
        f"read to the end, {len(history.anomalies)} anomalies"
    )
