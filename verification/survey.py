"""Reads every replica of every partition to its end, while no delete is pending, after the cluster has recovered.

It reads below the deletes too, before and after an election of the preferred leaders. At the end of a run each replica
leads once, where the cluster allows it: the order of the replicas is changed, which moves no data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lowtide.admin.errors import AdminError
from lowtide.protocol.types import BrokerId, Offset, TopicPartition
from lowtide.verification.operations import Result

if TYPE_CHECKING:
    from lowtide.verification.requests import RecordedRequests
    from lowtide.verification.workload import ClusterLeaders

RETRY_S: Final = 0.2
ELECTION_S: Final = 20.0


@dataclass(slots=True)
class SurveyResult:
    """One survey: which replicas were read to the end, and which were not."""

    at_ms: int
    read: list[tuple[TopicPartition, BrokerId]] = field(default_factory=list)
    unread: list[tuple[TopicPartition, BrokerId]] = field(default_factory=list)
    led: list[tuple[TopicPartition, BrokerId]] = field(default_factory=list)
    """Replicas that were elected and then read as leaders."""


class ReplicaSurvey:
    """Surveys the partitions of a run."""

    def __init__(
        self, requests: RecordedRequests, leaders: ClusterLeaders, *, recovery_s: float, reads_followers: bool
    ) -> None:
        self._requests = requests
        self._leaders = leaders
        self._recovery_s = recovery_s
        self._reads_followers = reads_followers
        self._partitions = tuple(requests.history.judges)

    async def run(self, *, all_lead: bool) -> SurveyResult:
        """Waits until the partitions are in sync, and reads them. `all_lead`: each replica is made the leader once."""
        result = SurveyResult(self._requests.now_ms())
        await self._until(self._recovery_s, self._is_in_sync)
        await asyncio.gather(*(self._read_replicas(partition, result) for partition in self._partitions))
        if all_lead:
            for _ in range(max(len(self._replicas(partition)) for partition in self._partitions)):
                await self._let_next_lead(result)
        else:
            await self._elect_preferred()
        leaders = [(partition, self._leader(partition)) for partition in self._partitions]
        await asyncio.gather(
            *(self._read_whole(partition, leader, leader=True) for partition, leader in leaders if leader is not None)
        )
        return result

    # ------------------------------------------------------------------ metadata
    def _replicas(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        known = self._leaders.known(partition)
        return () if known is None else known.replicas

    def _leader(self, partition: TopicPartition) -> BrokerId | None:
        known = self._leaders.known(partition)
        return None if known is None else known.leader

    def _is_in_sync(self, partition: TopicPartition) -> bool:
        known = self._leaders.known(partition)
        return known is not None and known.leader is not None and set(known.isr) == set(known.replicas)

    async def _until(self, limit_s: float, condition: Callable[[TopicPartition], bool]) -> bool:
        """Waits until a condition holds for all partitions. Returns whether it does."""
        until_ms = self._requests.now_ms() + limit_s * 1000
        while True:
            await self._leaders.refresh()
            if all(condition(partition) for partition in self._partitions):
                return True
            if self._requests.now_ms() >= until_ms:
                return False
            await asyncio.sleep(RETRY_S)

    # ------------------------------------------------------------------ elections
    async def _elect_preferred(self) -> None:
        """Elects the preferred leaders, if the client may: what is read then comes from leaders after an election."""
        try:
            await self._requests.client.elect_leaders(self._partitions, timeout=ELECTION_S)
        except AdminError:
            return
        await self._leaders.refresh()

    async def _let_next_lead(self, result: SurveyResult) -> None:
        """Puts each partition's second replica first, elects it as the leader, and reads it."""
        wanted: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        for partition in self._partitions:
            replicas = self._replicas(partition)
            if len(replicas) > 1:
                wanted[partition] = (*replicas[1:], replicas[0])
        if not wanted:
            return
        try:
            await self._requests.client.alter_reassignments(wanted, timeout=ELECTION_S)
            await self._until(ELECTION_S, lambda each: each not in wanted or self._replicas(each) == wanted[each])
            await self._elect_preferred()
            await self._until(ELECTION_S, lambda each: each not in wanted or self._leader(each) == wanted[each][0])
        except AdminError:
            return
        leads = [each for each, replicas in wanted.items() if self._leader(each) == replicas[0]]
        done = await asyncio.gather(*(self._read_whole(each, wanted[each][0], leader=True) for each in leads))
        result.led += [(each, wanted[each][0]) for each, is_read in zip(leads, done, strict=True) if is_read]

    # ------------------------------------------------------------------ reading
    async def _read_replicas(self, partition: TopicPartition, result: SurveyResult) -> None:
        known = self._leaders.known(partition)
        if known is None:
            return
        for broker in known.replicas:
            leads = broker == known.leader
            if not leads and not self._reads_followers:
                continue
            is_read = broker in known.isr and await self._read_whole(partition, broker, leader=leads)
            (result.read if is_read else result.unread).append((partition, broker))

    async def _read_whole(self, partition: TopicPartition, broker: BrokerId, *, leader: bool) -> bool:
        """Reads a replica from below its deletes to the end of what was acknowledged.

        Returns whether it answered to the end. Records that it does not return in the time for recovery are missing.
        """
        requests, judge = self._requests, self._requests.history.judges[partition]
        deleted: Offset = judge.deletes[-1].offset if judge.deletes else 0
        if leader:
            await requests.list_earliest(partition, broker)
        for start in {0, deleted // 2, deleted - 1} if deleted else ():
            await requests.read(partition, broker, start, leader=leader)
        position, end = deleted, judge.acknowledged_end
        last_ms = requests.now_ms()
        while position < end:
            read = await requests.read(partition, broker, position, leader=leader)
            if read.result is Result.OK and read.end > position:
                position, last_ms = read.end, requests.now_ms()
                continue
            if read.result is Result.REFUSED and position < judge.possible_delete:
                position = judge.possible_delete  # A delete without an answer was done.
                continue
            if requests.now_ms() - last_ms > self._recovery_s * 1000:
                if not self._is_in_sync(partition):
                    return False
                read = await requests.read(partition, broker, position, leader=leader, expected_end=end)
                return read.result is not Result.UNKNOWN
            await asyncio.sleep(RETRY_S)
            if leader and self._leader(partition) != broker:
                return False
            await self._leaders.refresh()
        return True
