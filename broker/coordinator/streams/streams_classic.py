"""Requests of the classic protocol to streams groups: an empty group becomes a classic one, any other refuses them.

Source: Kafka's `GroupMetadataManager.classicGroupJoin`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.broker.coordinator.classic.classic_groups import ClassicGroups
from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.classic.rebalancing import NO_MEMBER_ID, join_failed, sync_failed
from lowtide.broker.coordinator.modern.share_groups import unknown_members
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.streams.streams_group import StreamsGroup
from lowtide.broker.coordinator.streams.streams_groups import StreamsGroups
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.sync_group import SyncGroupRequest


class StreamsClassicRequests:
    """The requests of classic clients to one coordinator's streams groups."""

    def __init__(self, groups: StreamsGroups, classic: ClassicGroups) -> None:
        self._groups = groups
        self._classic = classic

    def join(
        self, group: StreamsGroup, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Replaces a group without members by a classic group.

        Errors: INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID for a member of the group that is gone.
        """
        if group.members:
            effects.answer(reply, join_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NO_MEMBER_ID))
        elif request.member_id != NO_MEMBER_ID:
            effects.answer(reply, join_failed(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        else:
            self._groups.remove(group, effects)
            classic = self._classic.create(group.group_id, effects.wall_ms)
            self._classic.join(classic, request, client, reply, effects)

    @staticmethod
    def sync(_group: StreamsGroup, _request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """Answers UNKNOWN_MEMBER_ID."""
        effects.answer(reply, sync_failed(ErrorCode.UNKNOWN_MEMBER_ID))

    @staticmethod
    def heartbeat(
        _group: StreamsGroup, _member_id: str, _instance_id: str | None, _generation_id: int, _now_ms: int
    ) -> ErrorCode:
        """Returns UNKNOWN_MEMBER_ID."""
        return ErrorCode.UNKNOWN_MEMBER_ID

    @staticmethod
    def leave(_group: StreamsGroup, members: Sequence[MemberIdentity], _effects: Effects) -> list[MemberResponse]:
        """Returns UNKNOWN_MEMBER_ID for each member."""
        return unknown_members(members)
