"""Members of a group of a simulated cluster, clients that commit its offsets from outside, and clients that ask for them.

The leader shares the partitions of a topic out, as clients do; an assignment says nothing but their numbers. Members show that they live,
commit, leave, and die: a dead one is silent for longer than its session, and comes back with another member id, or as the instance that it
is. All keep the history that `group_history` judges.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from lowtide.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from lowtide.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from lowtide.protocol.types import UNKNOWN_OFFSET
from lowtide.runtime.random import Random
from lowtide.testing.cluster_client import ClusterClient
from lowtide.testing.coordinated import GROUP, Coordinated
from lowtide.testing.group_history import GroupHistory

SESSION_TIMEOUT_MS: Final = 1500
REBALANCE_TIMEOUT_MS: Final = 2000
COMMIT_TIMEOUT_MS: Final = 1000
"""The brokers' `offsets.commit.timeout.ms`."""

GROUP_SETTINGS: Final = {
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "200",
    "offsets.commit.timeout.ms": str(COMMIT_TIMEOUT_MS),
    "offsets.topic.num.partitions": "2",
}
"""Of brokers: short times, few partitions."""

_COMMITTED_MS: Final = COMMIT_TIMEOUT_MS + 1500
"""What a record may take: its time-out is looked at once a second."""

_JOIN_MS: Final = REBALANCE_TIMEOUT_MS + 300
_STATIC_JOIN_MS: Final = 2 * REBALANCE_TIMEOUT_MS + _COMMITTED_MS
"""A static member that comes back waits for a record first, and perhaps for a rebalance then."""

_SYNC_MS: Final = REBALANCE_TIMEOUT_MS + _COMMITTED_MS
_PROTOCOL_TYPE: Final = "simulated"
_PROTOCOL: Final = "numbers"
_OUT: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_BEHIND: Final = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.GROUP_ID_NOT_FOUND})
_NOT_YET_THERE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class GroupLoad:
    """What all clients of one group share. `partitions` of `topic` are shared out among its members."""

    def __init__(
        self, group_id: str, topic: str, partitions: int, make_client: Callable[[str], ClusterClient], random: Random, counts: Counter[str]
    ) -> None:
        self.group_id = group_id
        self.topic = topic
        self.partitions = partitions
        self.history = GroupHistory(group_id)
        self.counts = counts
        self.is_calm = False
        """Nobody leaves or dies any more."""
        self.members: list[GroupMember] = []
        self.on_commit: Callable[[int], None] = _nobody
        """Hears of partitions for which an offset is about to be committed."""
        self._make_client = make_client
        self._random = random

    def make_members(self, instances: tuple[str | None, ...]) -> list[GroupMember]:
        """Members; those with an instance id are static."""
        self.members = [
            GroupMember(self, self._client(f"member {index}"), Random(self._random.getrandbits(64)), instance)
            for index, instance in enumerate(instances)
        ]
        return self.members

    def make_committers(self) -> list[Committer]:
        """One for each partition of a group that nobody joins."""
        return [
            Committer(self, self._client(f"commit {number}"), Random(self._random.getrandbits(64)), number)
            for number in range(self.partitions)
        ]

    def make_fetcher(self) -> OffsetFetcher:
        """One who asks for offsets."""
        return OffsetFetcher(self, self._client("offsets"), Random(self._random.getrandbits(64)))

    @property
    def is_stable(self) -> bool:
        """Whether all members are in one generation, and each partition has an owner."""
        members = [member for member in self.members if not member.is_gone]
        owned = [partition for member in members for partition in member.partitions]
        return len({member.generation_id for member in members}) == 1 and sorted(owned) == list(range(self.partitions))

    def _client(self, name: str) -> ClusterClient:
        return self._make_client(f"{self.group_id} {name}")


class GroupClient(Coordinated):
    """A client that commits offsets of a group, and asks for them."""

    def __init__(self, load: GroupLoad, client: ClusterClient, random: Random) -> None:
        super().__init__(load.group_id, GROUP, client, random, load.counts)
        self.load = load

    async def commit(self, partition: int, *, member_id: str = "", instance: str | None = None, generation_id: int = -1) -> int:
        """Commit one offset above all others. Returns the error code, which may be any."""
        load, history = self.load, self.load.history
        offset, given_out, voids = history.next_offset(partition, self.random.randint(1, 6)), history.generation_id, history.voids
        load.on_commit(partition)
        row = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=None)
        request = OffsetCommitRequest(
            group_id=load.group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            topics=[OffsetCommitRequestTopic(name=load.topic, partitions=[row])],
        )
        version = self.random.choice((7, 8, 9)) if instance is not None else self.random.choice((2, 5, 7, 9))
        try:
            answer = await self.ask(request, version, timeout_ms=_COMMITTED_MS)
        except OSError:
            history.on_lost(partition, offset)
            raise
        code = int(answer.topics[0].partitions[0].error_code)
        self.client.note(f"commits {offset} for {partition} in generation {generation_id}: {ErrorCode(code).name}")
        if code == ErrorCode.NONE:
            history.on_committed(partition, offset, generation_id=generation_id, given_out_before=given_out, voids=voids)
        return code

    async def fetch(self, partitions: list[int]) -> bool:
        """Ask for committed offsets. Returns whether they were told."""
        load, history, version = self.load, self.load.history, self.random.choice((1, 5, 7, 8, 9))
        before = {number: history.committed.get(number, UNKNOWN_OFFSET) for number in partitions}
        voids, stable = history.voids, self.random.random() < 0.5  # noqa: PLR2004
        if version >= 8:  # noqa: PLR2004 - many groups at once
            wanted = OffsetFetchRequestTopics(name=load.topic, partition_indexes=partitions)
            groups = [OffsetFetchRequestGroup(group_id=load.group_id, topics=[wanted])]
            request = OffsetFetchRequest(groups=groups, require_stable=stable)
        else:
            topic = OffsetFetchRequestTopic(name=load.topic, partition_indexes=partitions)
            request = OffsetFetchRequest(group_id=load.group_id, topics=[topic], require_stable=stable)
        answer = await self.ask(request, version, timeout_ms=_COMMITTED_MS)
        told = answer.groups[0] if version >= 8 else answer  # noqa: PLR2004
        code = told.topics[0].partitions[0].error_code if version < 2 else told.error_code  # noqa: PLR2004 - the group has one since 2
        if not self.has("OffsetFetch", code):
            return False
        for row in told.topics[0].partitions:
            number = row.partition_index
            if self.has("OffsetFetch", row.error_code, frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})):
                history.on_fetched(number, row.committed_offset, committed_before=before[number], voids=voids)
        return True


class Committer(GroupClient):
    """Commits from outside, as those do who assign partitions themselves."""

    def __init__(self, load: GroupLoad, client: ClusterClient, random: Random, partition: int) -> None:
        super().__init__(load, client, random)
        self._partition = partition

    async def step(self) -> None:
        if self.random.random() < 0.7:  # noqa: PLR2004
            self.has("OffsetCommit", await self.commit(self._partition), _NOT_YET_THERE)
        else:
            await self.fetch([self._partition])


class OffsetFetcher(GroupClient):
    """Asks for all offsets of the group."""

    async def step(self) -> None:
        await self.fetch(list(range(self.load.partitions)))


class GroupMember(GroupClient):
    """See the module."""

    def __init__(self, load: GroupLoad, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random)
        self.partitions: list[int] = []
        self.generation_id = -1
        self.is_gone = False
        """It never comes back, and hasn't said so."""
        self._busy_in = -1
        """A generation that it stays in, though it shows that it lives."""
        self._instance = instance
        self._member_id = ""
        self._join_version = random.choice((5, 7, 9)) if instance is not None else random.choice((2, 3, 5, 9))

    async def step(self) -> None:
        if self.is_gone:
            self.client.close()
        elif self.generation_id < 0:
            await self._join()
        else:
            await self._work()

    # In a generation

    async def _work(self) -> None:
        chance = self.random.random() * (0.9 if self._busy_in == self.generation_id else 1.0)
        if self.load.is_calm or chance < 0.5:  # noqa: PLR2004
            await self._heartbeat()
        elif chance < 0.8 and self.partitions:  # noqa: PLR2004
            await self._commit()
        elif chance < 0.94:  # noqa: PLR2004
            if self.partitions:
                await self.fetch(self.partitions)
        elif chance < 0.97:  # noqa: PLR2004
            await self._leave()
        else:
            await self._die()

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.key, generation_id=self.generation_id, member_id=self._member_id, group_instance_id=self._instance
        )
        answer = await self.ask(request, 3 if self._instance is not None else self.random.choice((0, 2, 4)), timeout_ms=0)
        if not self.has("Heartbeat", answer.error_code, _OUT | _BEHIND):
            if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS and self._is_busy():
                return
            self._on_error(answer.error_code)

    def _is_busy(self) -> bool:
        """Whether it goes on with what it does instead of joining again: till all is calm, or it is out."""
        if self._busy_in != self.generation_id and self.random.random() < 0.15:  # noqa: PLR2004
            self._busy_in = self.generation_id
        return self._busy_in == self.generation_id and not self.load.is_calm

    async def _commit(self) -> None:
        partition = self.random.choice(self.partitions)
        if self.random.random() < 0.1:  # noqa: PLR2004 - a request of the generation before, that was long on its way
            late = await self.commit(partition, member_id=self._member_id, instance=self._instance, generation_id=self.generation_id - 1)
            self.has("late OffsetCommit", late, _OUT | _BEHIND | _NOT_YET_THERE)
            return
        code = await self.commit(partition, member_id=self._member_id, instance=self._instance, generation_id=self.generation_id)
        if not self.has("OffsetCommit", code, _OUT | _BEHIND | _NOT_YET_THERE):
            self._on_error(code)

    async def _leave(self) -> None:
        member = MemberIdentity(member_id=self._member_id, group_instance_id=self._instance)
        request = LeaveGroupRequest(group_id=self.key, members=[member])
        version = self.random.choice((3, 5))
        self.client.note("leaves")
        identity = self._member_id
        self._forget(identity="")
        self._member_id = identity  # Until it is answered, or not.
        answer = await self.ask(request, version, timeout_ms=_COMMITTED_MS)
        self._member_id = ""
        if answer.error_code == ErrorCode.NONE:
            self.has("LeaveGroup", answer.members[0].error_code, _OUT)
        else:
            self.has("LeaveGroup", answer.error_code)

    async def _die(self) -> None:
        """Be silent for longer than a session, or come back sooner without having said goodbye."""
        self.client.note("dies")
        self._forget(identity="")
        self.client.close()
        await asyncio.sleep(self.random.choice((0.1, 0.5, 1.2 * SESSION_TIMEOUT_MS / 1000, 2 * SESSION_TIMEOUT_MS / 1000)))

    def _on_error(self, code: int) -> None:
        """What a client does that is told so."""
        if code in _OUT:
            self._forget(identity="")
        elif code in _BEHIND:
            self._forget(identity=self._member_id)

    def _forget(self, *, identity: str) -> None:
        self.generation_id, self.partitions, self._member_id = -1, [], identity

    # Into a generation

    async def _join(self) -> None:
        history = self.load.history
        given_out, voids = history.generation_id, history.voids
        request = JoinGroupRequest(
            group_id=self.key,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            group_instance_id=self._instance,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=_PROTOCOL, metadata=b"")],
        )
        limit_ms = _JOIN_MS if self._instance is None else _STATIC_JOIN_MS
        answer: JoinGroupResponse = await self.ask(request, self._join_version, timeout_ms=limit_ms)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return
        if not self.has("JoinGroup", answer.error_code, _OUT | {ErrorCode.REBALANCE_IN_PROGRESS}):
            if answer.error_code in _OUT:
                self._forget(identity="")
            return
        self._member_id = answer.member_id
        history.on_joined(answer.generation_id, given_out_before=given_out, voids=voids)
        await self._sync(answer)

    async def _sync(self, joined: JoinGroupResponse) -> None:
        history = self.load.history
        given_out, voids = history.generation_id, history.voids
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        request = SyncGroupRequest(
            group_id=self.key,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=_PROTOCOL,
            assignments=self._assign([member.member_id for member in joined.members]) if leads else [],
        )
        version = self.random.choice((3, 5)) if self._instance is not None else self.random.choice((1, 3, 5))
        answer = await self.ask(request, version, timeout_ms=_SYNC_MS)
        if not self.has("SyncGroup", answer.error_code, _OUT | _BEHIND):
            if answer.error_code in _OUT:
                self._forget(identity="")
            return
        self.generation_id = joined.generation_id
        self.partitions = [int(number) for number in answer.assignment.split()]
        self.client.note(f"owns {self.partitions} in generation {self.generation_id}")
        owner = self._instance or self._member_id
        history.on_assigned(self.generation_id, owner, self.partitions, given_out_before=given_out, voids=voids)

    def _assign(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """All partitions in turn."""
        shares = {
            member: [str(number) for number in range(index, self.load.partitions, len(members))] for index, member in enumerate(members)
        }
        return [SyncGroupRequestAssignment(member_id=member, assignment=" ".join(share).encode()) for member, share in shares.items()]


def _nobody(_partition: int) -> None:
    """Nobody wants to know."""
