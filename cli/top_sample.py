"""Samples of a cluster for `lowtide top`: asks all brokers concurrently, within a limited time.

Data that do not arrive in time stay as they were, and `silent` names them. Brokers other than Lowtide's get Lowtide's
requests only every `UNKNOWN_REST_S`, because each costs a connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_description import ClusterDescription
from lowtide.admin.errors import AdminError, UnsupportedVersionError
from lowtide.admin.group_lags import Lag, find_lags
from lowtide.admin.log_dirs import LogDir, replicas_in
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.protocol.messages.describe_deletes import DescribeDeletesResponse, WaitingDelete
from lowtide.protocol.messages.describe_health import DescribeHealthResponse
from lowtide.protocol.types import BrokerId, Offset, TopicPartition
from lowtide.runtime.clock import Clock

PARTITIONS_MAX: Final = 5_000
"""How many partitions' ends are requested in a round; topics of further partitions have no rate."""

GROUPS_MAX: Final = 500
WAITING_MAX: Final = 50
"""Pending deletes of each broker."""

UNKNOWN_REST_S: Final = 60

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSample:
    """A topic. `end` is the sum of its partitions' ends, or None if one is unknown."""

    partitions: int
    end: Offset | None
    without_leader: int
    under_replicated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a cluster at a time of the monotonic clock."""

    at_ms: int
    cluster: ClusterDescription | None = None
    topics: Mapping[str, TopicSample] = field(default_factory=dict)
    log_dirs: Mapping[BrokerId, Mapping[str, LogDir]] = field(default_factory=dict)
    health: Mapping[BrokerId, DescribeHealthResponse] = field(default_factory=dict)
    deletes: Mapping[BrokerId, DescribeDeletesResponse] = field(default_factory=dict)
    groups: Mapping[str, Sequence[Lag]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    """What did not answer in this round."""

    @property
    def has_lowtide(self) -> bool:
        """Whether any broker is Lowtide's."""
        return bool(self.health or self.deletes)

    @property
    def waiting(self) -> list[tuple[BrokerId, WaitingDelete]]:
        """Pending deletes with their leaders, the oldest first."""
        rows = [(broker_id, row) for broker_id, answer in self.deletes.items() for row in answer.waiting]
        return sorted(rows, key=lambda each: (each[1].asked_at_ms, each[0]))

    @property
    def topic_bytes(self) -> dict[str, int]:
        """The bytes of all replicas of each topic."""
        sizes = Counter[str]()
        for _, key, replica in replicas_in(self.log_dirs):
            sizes[key.topic] += replica.size_bytes
        return sizes


class Sampler:
    """Takes samples of one cluster."""

    def __init__(self, client: AdminClient, clock: Clock, round_s: float) -> None:
        """`round_s` limits each request of a round; they are sent concurrently, in two steps."""
        self._client = client
        self._clock = clock
        self._round_s = round_s
        self._last = Sample(at_ms=clock.monotonic_ms())
        self._asked_again_ms: dict[BrokerId, int] = {}
        """When brokers other than Lowtide's are asked again."""

    async def take(self) -> Sample:
        """Takes the next sample."""
        client, last, silent = self._client, self._last, list[str]()

        async def or_before(what: str, question: Awaitable[T], before: T) -> T:
            try:
                async with asyncio.timeout(self._round_s + 0.5):
                    return await question
            except (AdminError, TimeoutError) as error:
                silent.append(f"{what}: {error}" if str(error) else f"{what}: no answer in time")
                return before

        cluster = await or_before("the cluster", client.describe_cluster(timeout=self._round_s), last.cluster)
        brokers = [] if cluster is None else [each.broker_id for each in cluster.brokers]
        if cluster is not None and not silent:
            topics, log_dirs, groups, (health, deletes) = await asyncio.gather(
                or_before("topics", self._topics(), last.topics),
                or_before("log directories", self._log_dirs(brokers, silent), last.log_dirs),
                or_before("groups", self._groups(), last.groups),
                or_before("brokers", self._lowtide(brokers, silent), (last.health, last.deletes)),
            )
            last = replace(last, topics=topics, log_dirs=log_dirs, groups=groups, health=health, deletes=deletes)
        self._last = replace(last, at_ms=self._clock.monotonic_ms(), cluster=cluster, silent=tuple(silent))
        return self._last

    async def _topics(self) -> Mapping[str, TopicSample]:
        found = await self._client.list_topics(timeout=self._round_s)
        wanted: list[TopicPartition] = []
        for name, topic in sorted(found.items()):
            if len(wanted) + len(topic.partitions) <= PARTITIONS_MAX:
                wanted += [
                    TopicPartition(name, number) for number, each in topic.partitions.items() if each.leader is not None
                ]
        listed = await self._client.list_offsets(dict.fromkeys(wanted, OffsetSpec.LATEST), timeout=self._round_s)
        samples = {}
        for name, topic in found.items():
            rows = [listed.get(TopicPartition(name, number)) for number in topic.partitions]
            ends = [row.offset for row in rows if isinstance(row, ListedOffset)]
            samples[name] = TopicSample(
                partitions=len(topic.partitions),
                end=sum(ends) if len(ends) == len(rows) else None,
                without_leader=sum(each.leader is None for each in topic.partitions.values()),
                under_replicated=sum(len(each.isr) < len(each.replicas) for each in topic.partitions.values()),
            )
        return samples

    async def _log_dirs(
        self, brokers: Sequence[BrokerId], silent: list[str]
    ) -> Mapping[BrokerId, Mapping[str, LogDir]]:
        found = await self._client.describe_log_dirs(brokers, timeout=self._round_s)
        return self._kept(found, self._last.log_dirs, silent)

    async def _groups(self) -> Mapping[str, Sequence[Lag]]:
        listed = await self._client.list_groups(timeout=self._round_s)
        kinds = {name: listed.groups[name].kind for name in sorted(listed.groups)[:GROUPS_MAX]}
        lags, _ = await find_lags(self._client, kinds, timeout=self._round_s)
        return lags

    async def _lowtide(
        self, brokers: Sequence[BrokerId], silent: list[str]
    ) -> tuple[Mapping[BrokerId, DescribeHealthResponse], Mapping[BrokerId, DescribeDeletesResponse]]:
        now_ms = self._clock.monotonic_ms()
        asked = [broker_id for broker_id in brokers if self._asked_again_ms.get(broker_id, 0) <= now_ms]
        if not asked:
            return {}, {}
        health, deletes = await asyncio.gather(
            self._client.describe_health(asked, timeout=self._round_s),
            self._client.describe_deletes(asked, waiting_max=WAITING_MAX, finished_max=0, timeout=self._round_s),
        )
        for broker_id, answer in health.items():
            if isinstance(answer, UnsupportedVersionError):
                self._asked_again_ms[broker_id] = now_ms + UNKNOWN_REST_S * 1000
        return self._kept(health, self._last.health, silent), self._kept(deletes, {}, [])

    @staticmethod
    def _kept(found: Mapping[BrokerId, Any], before: Mapping[BrokerId, Any], silent: list[str]) -> dict[BrokerId, Any]:
        """Returns the answers; for a broker that is away, its last one."""
        kept = {}
        for broker_id, answer in found.items():
            if not isinstance(answer, AdminError):
                kept[broker_id] = answer
            elif not isinstance(answer, UnsupportedVersionError):
                silent.append(f"broker {broker_id}: {answer}")
                if broker_id in before:
                    kept[broker_id] = before[broker_id]
        return kept
