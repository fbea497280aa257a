"""Members of consumer groups, whose partitions `owner_history` judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicId
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.group_load import BEHIND, NOT_YET_THERE, OUT, AnyMember, GroupLoad
from lowtide.simulation.owner_history import OwnerHistory

SESSION_TIMEOUT_MS: Final = 3000
REBALANCE_TIMEOUT_MS: Final = 3000
STABLE_WITHIN_S: Final = 30.0
"""A session and a rebalance, twice, and ten seconds between two pattern matches."""

LOST_FOR_S: Final = 6.0
"""The maximum time that a request without response is pending: links are cut and brokers stopped for less."""

GONE: Final = (
    frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND}) | OUT
)
STALE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH})
LATE: Final = STALE | GONE | BEHIND | NOT_YET_THERE


class OwnedTopic(NamedTuple):
    """The topic whose partitions a group shares, and which grows."""

    name: str
    partitions: int
    """The initial number of partitions."""
    state: Callable[[], tuple[TopicId, int]]
    """Returns its id and current number of partitions."""


class OwnedGroup(GroupLoad):
    """The shared state of a group's members."""

    def __init__(
        self,
        group_id: str,
        topic: OwnedTopic,
        make_client: Callable[[str], ClusterClient],
        random: Random,
        counts: Counter[str],
    ) -> None:
        super().__init__(group_id, topic.name, topic.partitions, make_client, random, counts)
        self.topic_state = topic.state
        self.stable_within_s = STABLE_WITHIN_S
        self.session_timeout_ms = SESSION_TIMEOUT_MS
        self.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
        self.owners = OwnerHistory(group_id, changes_kind=False)
        self.history = self.owners

    @property
    def is_stable(self) -> bool:
        """Returns whether all members are in one epoch, and each current partition has an owner."""
        self.partitions = self.topic_state()[1]
        return super().is_stable


class Seat:
    """A place in a group that two members take alternately."""

    def __init__(self, holder: AnyMember, other: AnyMember) -> None:
        self.holder = holder
        self._other = other

    def change(self) -> None:
        self.holder, self._other = self._other, self.holder


class OwningMember(AnyMember):
    """A member that records its ownerships."""

    load: OwnedGroup
    seat: Seat | None = None

    def __init__(self, load: OwnedGroup, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random, instance)
        self._unsure_until_s = -1.0
        self._late: tuple[str, int, dict[int, float], int] | None = None

    @property
    def is_away(self) -> bool:
        return self.is_gone or (self.seat is not None and (self.seat.holder is not self or self.seat.holder.is_gone))

    async def be_silent(self) -> None:
        if self.seat is not None:
            self.seat.change()
        await super().be_silent()

    def own(self, partitions: list[int], asked_s: float, voids: int) -> None:
        """Owns these partitions by the response to its request of `asked_s`. Errors: HistoryError."""
        history, now_s = self.load.owners, self.client.now_s()
        if voids != history.voids:
            return
        history.on_owned(
            self.client.name, partitions, asked_s=asked_s if asked_s > self._unsure_until_s else -2.0, now_s=now_s
        )

    def release(self, partitions: list[int]) -> None:
        self.load.owners.on_released(self.client.name, partitions)

    def on_lost(self) -> None:
        """Notes a request without a response, whose outcome and time are unknown."""
        self._unsure_until_s = self.client.now_s() + LOST_FOR_S
        self.load.owners.on_unsure(self.client.name)

    def remember_for_late(self) -> None:
        """Remembers its partitions before it is removed, for late commits."""
        tenures = {
            number: since
            for number in self.partitions
            if (since := self.load.owners.since_s(self.client.name, number)) is not None
        }
        if self._member_id and tenures and self.generation_id >= 0:
            self._late = self._member_id, self.generation_id, tenures, self.load.history.voids

    async def commit_as(
        self, partition: int, member_id: str, generation_id: int, since_s: float | None, version: int | None
    ) -> int:
        """Commits for a partition owned since `since_s`. Returns the error code."""
        asked_s, voids = self.client.now_s(), self.load.history.voids
        code = await self.commit(
            partition, member_id=member_id, instance=self._instance, generation_id=generation_id, version=version
        )
        if code == ErrorCode.NONE and since_s is not None and voids == self.load.history.voids:
            self.load.owners.on_owner_committed(self.client.name, partition, since_s=since_s, asked_s=asked_s)
        return code

    async def commit_late(self, version: int | None) -> None:
        """Commits with its former identity, for its former partitions.

        If the coordinator lost records since, the group may reach the same generation again: then the commit is valid.
        """
        if self._late is not None:
            member_id, generation_id, tenures, voids = self._late
            partition = self.random.choice(list(tenures))
            since_s = tenures[partition] if voids == self.load.history.voids else None
            code = await self.commit_as(partition, member_id, generation_id, since_s, version)
            if not self.has("late OffsetCommit", code, LATE) and code in OUT:
                self._late = None
