"""Members of a group: they join, assign as the leader, commit, leave and die."""

from __future__ import annotations

from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from lowtide.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.group_load import BEHIND, COMMITTED_MS, NOT_YET_THERE, OUT, AnyMember, GroupLoad

_PROTOCOL_TYPE: Final = "simulated"
_PROTOCOL: Final = "numbers"


class GroupMember(AnyMember):
    """A classic member: joins, assigns as the leader, commits, leaves and dies."""

    protocol_type = _PROTOCOL_TYPE
    protocol = _PROTOCOL

    def __init__(self, load: GroupLoad, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random, instance)
        self._busy_in = -1
        """A generation in which it stays, while it sends heartbeats."""
        self._join_version = random.choice((5, 7, 9)) if instance is not None else random.choice((2, 3, 5, 9))

    async def step(self) -> None:
        if self.is_away:
            self.client.close()
        elif self.generation_id < 0:
            await self._join()
        else:
            await self._work()

    # In a generation

    async def _work(self) -> None:
        chance = self.random.random() * (0.9 if self._busy_in == self.generation_id else 1.0)
        if self.load.is_calm or chance < 0.5:  # noqa: PLR2004
            await self.heartbeat()
        elif chance < 0.8 and self.partitions:  # noqa: PLR2004
            await self._commit()
        elif chance < 0.94:  # noqa: PLR2004
            if self.partitions:
                await self.fetch(self.partitions[:])
        elif chance < 0.97:  # noqa: PLR2004
            await self._leave()
        else:
            await self._die()

    async def heartbeat(self) -> bool:
        """Sends a heartbeat. Returns whether nothing changed."""
        request = HeartbeatRequest(
            group_id=self.key,
            generation_id=self.generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance,
        )
        answer = await self.ask(
            request, 3 if self._instance is not None else self.random.choice((0, 2, 4)), timeout_ms=0
        )
        if self.has("Heartbeat", answer.error_code, OUT | BEHIND):
            return True
        if answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS or not self._is_busy():
            self._on_error(answer.error_code)
        return False

    def _is_busy(self) -> bool:
        """Returns whether it keeps working instead of rejoining: until all is calm, or it is removed."""
        if self._busy_in != self.generation_id and self.random.random() < 0.15:  # noqa: PLR2004
            self._busy_in = self.generation_id
        return self._busy_in == self.generation_id and not self.load.is_calm

    async def _commit(self) -> None:
        partition = self.random.choice(self.partitions)
        if self.random.random() < 0.1:  # noqa: PLR2004 - a request of the generation before, that was long on its way
            late = await self.commit(
                partition, member_id=self._member_id, instance=self._instance, generation_id=self.generation_id - 1
            )
            self.has("late OffsetCommit", late, OUT | BEHIND | NOT_YET_THERE)
            return
        code = await self.commit_own(partition)
        if not self.has("OffsetCommit", code, OUT | BEHIND | NOT_YET_THERE):
            self._on_error(code)

    async def commit_own(self, partition: int) -> int:
        """Commits for one of its partitions. Returns the error code."""
        return await self.commit(
            partition, member_id=self._member_id, instance=self._instance, generation_id=self.generation_id
        )

    async def _leave(self) -> None:
        member = MemberIdentity(member_id=self._member_id, group_instance_id=self._instance)
        request = LeaveGroupRequest(group_id=self.key, members=[member])
        version = self.random.choice((3, 5))
        self.client.note("leaves")
        identity = self._member_id
        self.forget(identity="")
        self._member_id = identity  # Until it is answered, or not.
        answer = await self.ask(request, version, timeout_ms=COMMITTED_MS)
        self._member_id = ""
        if answer.error_code == ErrorCode.NONE:
            self.has("LeaveGroup", answer.members[0].error_code, OUT)
        else:
            self.has("LeaveGroup", answer.error_code)

    async def _die(self) -> None:
        """Stays silent for longer than a session, or returns sooner without having left."""
        self.client.note("dies")
        self.forget(identity="")
        self.client.close()
        await self.be_silent()

    def _on_error(self, code: int) -> None:
        """Reacts to an error as a client does."""
        if code in OUT:
            self.forget(identity="")
        elif code in BEHIND:
            self.forget(identity=self._member_id)

    def forget(self, *, identity: str) -> None:
        """Leaves its generation, and drops its member id if told so."""
        self.generation_id, self.partitions, self._member_id = -1, [], identity

    # Into a generation

    async def _join(self) -> None:
        load, history = self.load, self.load.history
        given_out, voids = history.generation_id, history.voids
        request = JoinGroupRequest(
            group_id=self.key,
            session_timeout_ms=load.session_timeout_ms,
            rebalance_timeout_ms=load.rebalance_timeout_ms,
            member_id=self._member_id,
            group_instance_id=self._instance,
            protocol_type=self.protocol_type,
            protocols=[JoinGroupRequestProtocol(name=self.protocol, metadata=self.subscription())],
        )
        limit_ms = load.rebalance_timeout_ms + 300
        if (
            self._instance is not None
        ):  # One that comes back waits for a record first, and perhaps for a rebalance then.
            limit_ms = 2 * load.rebalance_timeout_ms + COMMITTED_MS
        answer: JoinGroupResponse = await self.ask(request, self._join_version, timeout_ms=limit_ms)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return
        if not self.has("JoinGroup", answer.error_code, OUT | {ErrorCode.REBALANCE_IN_PROGRESS}):
            if answer.error_code in OUT:
                self.forget(identity="")
            return
        self._member_id = answer.member_id
        self.on_joined(answer.generation_id, given_out, voids)
        await self._sync(answer)

    def subscription(self) -> bytes:
        return b""

    def on_joined(self, generation_id: int, given_out_before: int, voids: int) -> None:
        """Receives a generation. Errors: HistoryError."""
        self.load.history.on_joined(generation_id, given_out_before=given_out_before, voids=voids)

    async def _sync(self, joined: JoinGroupResponse) -> None:
        given_out, voids = self.load.history.generation_id, self.load.history.voids
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        request = SyncGroupRequest(
            group_id=self.key,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignments=self._assign([member.member_id for member in joined.members]) if leads else [],
        )
        version = self.random.choice((3, 5)) if self._instance is not None else self.random.choice((1, 3, 5))
        asked_s = self.client.now_s()
        answer = await self.ask(request, version, timeout_ms=self.load.rebalance_timeout_ms + COMMITTED_MS)
        if not self.has("SyncGroup", answer.error_code, OUT | BEHIND):
            if answer.error_code in OUT:
                self.forget(identity="")
            return
        self.generation_id = joined.generation_id
        self.partitions = self.decode(answer.assignment)
        self.client.note(f"owns {self.partitions} in generation {self.generation_id}")
        self.on_assigned(asked_s, given_out, voids)

    def on_assigned(self, asked_s: float, given_out_before: int, voids: int) -> None:
        """Receives the assignment that it requested at `asked_s`. Errors: HistoryError."""
        owner = self._instance or self._member_id
        self.load.history.on_assigned(
            self.generation_id, owner, self.partitions, given_out_before=given_out_before, voids=voids
        )

    def encode(self, partitions: list[int]) -> bytes:
        return " ".join(str(number) for number in partitions).encode()

    def decode(self, assignment: bytes) -> list[int]:
        return [int(number) for number in assignment.split()]

    def _assign(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """Assigns partitions round-robin."""
        shares = {
            member: list(range(index, self.load.partitions, len(members))) for index, member in enumerate(members)
        }
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=self.encode(share))
            for member, share in shares.items()
        ]


def make_members(load: GroupLoad, instances: tuple[str | None, ...]) -> list[AnyMember]:
    """Creates the members of a group; those with an instance id are static."""
    load.members = [
        GroupMember(load, load.make_client(f"member {index}"), Random(load.random.getrandbits(64)), instance)
        for index, instance in enumerate(instances)
    ]
    return load.members
