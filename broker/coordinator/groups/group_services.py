"""The interfaces of the services of group types. `Groups` finds the service by `Group.group_type`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.classic.rebalancing import TimerKey
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

G_contra = TypeVar("G_contra", contravariant=True)


class GroupUpkeep(Protocol[G_contra]):
    """What a service does for the groups of its type."""

    def on_loaded(self, group: G_contra, effects: Effects) -> None:
        """Called when all records are applied: starts the members' sessions."""
        ...

    def on_unloaded(self, group: G_contra, effects: Effects) -> None:
        """Called when another broker coordinates the group."""
        ...

    def on_timer(self, group: G_contra, key: TimerKey, effects: Effects) -> None:
        """Called when a deadline of the group has come."""
        ...

    def remove(self, group: G_contra, effects: Effects) -> None:
        """Asks for the group's tombstones."""
        ...

    def admit_commit(self, group: G_contra, request: OffsetCommitRequest, api_version: int, now_ms: int) -> ErrorCode:
        """Checks whether a commit is allowed."""
        ...

    def check_transactional_commit(self, group: G_contra, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Checks whether a commit in a transaction is allowed."""
        ...


class MemberRequests(Protocol[G_contra]):
    """The requests of the classic protocol to groups of a type."""

    def join(
        self, group: G_contra, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """JoinGroup."""
        ...

    def sync(self, group: G_contra, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """SyncGroup."""
        ...

    def heartbeat(
        self, group: G_contra, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int
    ) -> ErrorCode:
        """Heartbeat."""
        ...

    def leave(self, group: G_contra, members: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        """LeaveGroup."""
        ...
