"""Members of a group of a simulated cluster, clients that commit its offsets from outside, and offset fetchers.

The leader assigns the partitions of a topic, as clients do; an assignment contains only their numbers. Members send
heartbeats, commit, leave, and die: a dead one is silent for longer than its session, and returns with another member
id, or as its static instance. `group_history` judges what they see.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, BrokerId, Offset
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.coordinated import GROUP, Coordinated
from lowtide.simulation.group_history import GroupHistory

SESSION_TIMEOUT_MS: Final = 1500
REBALANCE_TIMEOUT_MS: Final = 2000
COMMIT_TIMEOUT_MS: Final = 1000

GROUP_SETTINGS: Final = {
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "200",
    "offsets.commit.timeout.ms": str(COMMIT_TIMEOUT_MS),
    "offsets.topic.num.partitions": "2",
}
"""Broker settings: short times, few partitions."""

STABLE_WITHIN_S: Final = 15.0
"""A dead member takes a session and a rebalance, and later members one more rebalance."""

COMMITTED_MS: Final = COMMIT_TIMEOUT_MS + 1500
"""The maximum time of a commit, whose timeout is checked once a second."""

OUT: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
BEHIND: Final = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.GROUP_ID_NOT_FOUND})
NOT_YET_THERE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class GroupLoad:
    """The shared state of a group's clients. The members share `partitions` of `topic`."""

    def __init__(
        self,
        group_id: str,
        topic: str,
        partitions: int,
        make_client: Callable[[str], ClusterClient],
        random: Random,
        counts: Counter[str],
    ) -> None:
        self.group_id = group_id
        self.topic = topic
        self.partitions = partitions
        self.history = GroupHistory(group_id)
        self.counts = counts
        self.stable_within_s = STABLE_WITHIN_S
        self.session_timeout_ms = SESSION_TIMEOUT_MS
        self.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
        self.is_calm = False
        self.members: list[AnyMember] = []
        self.on_commit: Callable[[int], None] = lambda _: None
        """Called before an offset is committed for a partition."""
        self.is_up_to_date: Callable[[BrokerId], bool] = lambda _: True
        """Returns whether a broker coordinates the group, by its own state and by the store."""
        self._make = make_client
        self.random = random

    def make_committers(self) -> list[Committer]:
        """Creates a committer per partition of a group without members."""
        return [
            Committer(self, self.make_client(f"commit {number}"), Random(self.random.getrandbits(64)), number)
            for number in range(self.partitions)
        ]

    def make_fetcher(self) -> OffsetFetcher:
        return OffsetFetcher(self, self.make_client("offsets"), Random(self.random.getrandbits(64)))

    @property
    def is_stable(self) -> bool:
        """Returns whether all members are in one generation, and each partition has an owner."""
        members = [member for member in self.members if not member.is_away]
        owned = [partition for member in members for partition in member.partitions]
        generations = {member.generation_id for member in members}
        return len(generations) == 1 and min(generations) > 0 and sorted(owned) == list(range(self.partitions))

    def make_client(self, name: str) -> ClusterClient:
        return self._make(f"{self.group_id} {name}")


class GroupClient(Coordinated):
    """A client that commits and fetches offsets of a group."""

    def __init__(self, load: GroupLoad, client: ClusterClient, random: Random) -> None:
        super().__init__(load.group_id, GROUP, client, random, load.counts)
        self.load = load

    async def commit(
        self,
        partition: int,
        *,
        member_id: str = "",
        instance: str | None = None,
        generation_id: int = -1,
        version: int | None = None,
    ) -> int:
        """Commits an offset above all others, in any suitable version. Returns the error code."""
        load, history = self.load, self.load.history
        offset, given_out, voids = (
            history.next_offset(partition, self.random.randint(1, 6)),
            history.generation_id,
            history.voids,
        )
        load.on_commit(partition)
        row = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=None)
        request = OffsetCommitRequest(
            group_id=load.group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            topics=[OffsetCommitRequestTopic(name=load.topic, partitions=[row])],
        )
        if version is None:
            version = self.random.choice((7, 8, 9)) if instance is not None else self.random.choice((2, 5, 7, 9))
        try:
            answer = await self.ask(request, version, timeout_ms=COMMITTED_MS)
        except OSError:
            history.on_lost(partition, offset)
            raise
        code = int(answer.topics[0].partitions[0].error_code)
        self.client.note(f"commits {offset} for {partition} in generation {generation_id}: {ErrorCode(code).name}")
        if code == ErrorCode.NONE:
            history.on_committed(
                partition, offset, generation_id=generation_id, given_out_before=given_out, voids=voids
            )
        return code

    async def known_committed(self, partitions: list[int]) -> dict[int, Offset]:
        """Returns the lowest offset that the coordinator may return. Errors: OSError if there is none."""
        committed = self.load.history.committed if self.load.is_up_to_date(await self.find_coordinator()) else {}
        return {number: committed.get(number, UNKNOWN_OFFSET) for number in partitions}

    async def fetch(self, partitions: list[int]) -> bool:
        """Fetches committed offsets. Returns whether they were returned."""
        load, history, version = self.load, self.load.history, self.random.choice((1, 5, 7, 8, 9))
        voids, stable = history.voids, self.random.random() < 0.5  # noqa: PLR2004
        if version >= 8:  # noqa: PLR2004 - many groups at once
            wanted = OffsetFetchRequestTopics(name=load.topic, partition_indexes=partitions)
            groups = [OffsetFetchRequestGroup(group_id=load.group_id, topics=[wanted])]
            request = OffsetFetchRequest(groups=groups, require_stable=stable)
        else:
            topic = OffsetFetchRequestTopic(name=load.topic, partition_indexes=partitions)
            request = OffsetFetchRequest(group_id=load.group_id, topics=[topic], require_stable=stable)
        before = await self.known_committed(partitions)
        answer = await self.ask(request, version, timeout_ms=COMMITTED_MS)
        fetched = answer.groups[0] if version >= 8 else answer  # noqa: PLR2004
        code = fetched.topics[0].partitions[0].error_code if version < 2 else fetched.error_code  # noqa: PLR2004 - the group has one since 2
        if not self.has("OffsetFetch", code):
            return False
        for row in fetched.topics[0].partitions:
            number = row.partition_index
            if self.has("OffsetFetch", row.error_code, frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})):
                history.on_fetched(number, row.committed_offset, committed_before=before[number], voids=voids)
        return True


class Committer(GroupClient):
    """Commits from outside the group, as with manual assignment."""

    def __init__(self, load: GroupLoad, client: ClusterClient, random: Random, partition: int) -> None:
        super().__init__(load, client, random)
        self._partition = partition

    async def step(self) -> None:
        if self.random.random() < 0.7:  # noqa: PLR2004
            self.has("OffsetCommit", await self.commit(self._partition), NOT_YET_THERE)
        else:
            await self.fetch([self._partition])


class OffsetFetcher(GroupClient):
    """Fetches all offsets of the group."""

    async def step(self) -> None:
        await self.fetch(list(range(self.load.partitions)))


class AnyMember(GroupClient):
    """A member of either protocol. The generation, or member epoch, is -1 while it is out."""

    def __init__(self, load: GroupLoad, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random)
        self.partitions: list[int] = []
        self.generation_id = -1
        self.is_gone = False
        """Whether it is gone permanently without leaving."""
        self._instance = instance
        self._member_id = ""

    @property
    def is_away(self) -> bool:
        return self.is_gone

    async def be_silent(self) -> None:
        """Stays silent for longer than a session, or shorter."""
        session_s = self.load.session_timeout_ms / 1000
        await asyncio.sleep(self.random.choice((0.1, 0.5, 1.2 * session_s, 2 * session_s)))
