"""The service of share groups.

Guards: a partition may be assigned once its state is initialized.

Source: Kafka's `GroupMetadataManager`; KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.classic.rebalancing import TimerKey, join_failed, sync_failed
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_groups import GroupResources, ModernGroups
from lowtide.broker.coordinator.modern.modern_member import Assignment, ModernMember
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.broker.coordinator.modern.share_group_states import ShareGroupStates, StatePorts
from lowtide.broker.coordinator.modern.simple_assignor import assign
from lowtide.broker.coordinator.modern.target_assignment import TargetAssignment
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

ASSIGNOR: Final = "simple"


class ShareGroups(ModernGroups[ShareGroup]):
    """The service of one coordinator's share groups."""

    def __init__(
        self,
        by_id: GroupsById,
        timers: Timers[TimerKey],
        resources: GroupResources,
        ports: StatePorts | None = None,
    ) -> None:
        """`ports` lead to the share coordinator; None if the broker serves no share groups."""
        super().__init__(ShareGroup, by_id, timers, resources)
        self.states = ShareGroupStates(by_id, resources, ports)

    def hash_of(self, group: ShareGroup, names: Iterable[str]) -> int:
        """Returns a hash of these topics and of their partitions that may be assigned."""
        topics = list(names)
        return self.topics.hash_of(topics) ^ group.states.hash_of(self.topics.ids_of(topics))

    def subscribed_target(self, target: tuple[int, Assignment], member: ModernMember) -> tuple[int, Assignment]:
        """Returns a target without the topics that are gone or that the member no longer subscribes to."""
        epoch, assignment = target
        ids = self.topics.ids_of(member.topic_names)
        if assignment.keys() <= ids:
            return target
        return epoch, {topic_id: numbers for topic_id, numbers in assignment.items() if topic_id in ids}

    def prepare_target(
        self,
        group: ShareGroup,
        members: Mapping[str, ModernMember],
        _old: ModernMember | None = None,
        _new: ModernMember | None = None,
    ) -> Callable[[], TargetAssignment]:
        """Returns a function that assigns the partitions that have a state."""
        subscriptions = {name: self.topics.ids_of(member.topic_names) for name, member in members.items()}
        counts = self.topics.partition_counts(frozenset().union(*subscriptions.values()))
        partitions = {
            topic_id: sorted(number for number in group.states.initialized_of(topic_id) if number < count)
            for topic_id, count in counts.items()
            if topic_id in group.states.initialized
        }
        return partial(assign, subscriptions, partitions, group.targets)

    @staticmethod
    def admit_commit(_group: ShareGroup, _request: OffsetCommitRequest, _api_version: int, _now_ms: int) -> ErrorCode:
        """Always returns GROUP_ID_NOT_FOUND: a share group has no committed offsets.

        Source: `ShareGroup.validateOffsetCommit`.
        """
        return ErrorCode.GROUP_ID_NOT_FOUND

    @staticmethod
    def check_transactional_commit(_group: ShareGroup, _request: TxnOffsetCommitRequest) -> ErrorCode:
        """Returns ILLEGAL_GENERATION, after which producers abort."""
        return ErrorCode.ILLEGAL_GENERATION


class NoClassicRequests:
    """Refuses requests of the classic protocol to share groups. Source: `GroupMetadataManager.classicGroupJoin`."""

    @staticmethod
    def join(
        _group: ShareGroup, request: JoinGroupRequest, _client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Answers INCONSISTENT_GROUP_PROTOCOL."""
        effects.answer(reply, join_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))

    @staticmethod
    def sync(_group: ShareGroup, _request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """Answers UNKNOWN_MEMBER_ID."""
        effects.answer(reply, sync_failed(ErrorCode.UNKNOWN_MEMBER_ID))

    @staticmethod
    def heartbeat(
        _group: ShareGroup, _member_id: str, _instance_id: str | None, _generation_id: int, _now_ms: int
    ) -> ErrorCode:
        """Returns UNKNOWN_MEMBER_ID."""
        return ErrorCode.UNKNOWN_MEMBER_ID

    @staticmethod
    def leave(_group: ShareGroup, members: Sequence[MemberIdentity], _effects: Effects) -> list[MemberResponse]:
        """Returns UNKNOWN_MEMBER_ID for each member."""
        return unknown_members(members)


def unknown_members(members: Iterable[MemberIdentity]) -> list[MemberResponse]:
    """Returns the rows of a LeaveGroup response in which no member is known."""
    return [
        MemberResponse(
            member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=ErrorCode.UNKNOWN_MEMBER_ID
        )
        for row in members
    ]
