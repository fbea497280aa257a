"""The record of a classic group. Source: Kafka's `GroupMetadataValue.json`, `GroupMetadataManager.replay`.

Guards: a group that is loaded is one that could have been recorded; its members keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import GroupMetadataValue, MemberMetadata


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
    """Returns the record of a group with these assignments, by member id."""
    assert group.protocol_name is not None or not group.members, "a group with members has a protocol"
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_since_ms if group.state_since_ms is not None else -1,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name or ""),
                assignment=assignments[member.member_id],
            )
            for member in group.members.values()
        ],
    )


def group_of_record(group_id: str, value: GroupMetadataValue, memory: MemberMemory | None = None) -> ClassicGroup:
    """Returns the group in a record: empty, or stable with its members. `memory` is shared by a broker's groups.

    Errors: ProtocolError for an impossible group.
    """
    _check(group_id, value)
    since = value.current_state_timestamp
    group = ClassicGroup(group_id, wall_ms=since if since >= 0 else None, memory=memory)
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.leader_id = (value.leader or None) if value.members else None
    for row in value.members:
        member = ClassicMember(
            member_id=row.member_id,
            group_instance_id=row.group_instance_id,
            client_id=row.client_id,
            client_host=row.client_host,
            rebalance_timeout_ms=row.rebalance_timeout if row.rebalance_timeout >= 0 else row.session_timeout,
            session_timeout_ms=row.session_timeout,
            protocols=((value.protocol or "", row.subscription),),
            assignment=row.assignment,
        )
        group.add(member, value.protocol_type)
    if group.members:
        group.state = GroupState.STABLE
    group.compute_subscribed()
    return group


def _check(group_id: str, value: GroupMetadataValue) -> None:
    """Checks that the record is consistent. Errors: ProtocolError."""
    names = [row.member_id for row in value.members]
    instances = [row.group_instance_id for row in value.members if row.group_instance_id is not None]
    if value.members and (value.protocol is None or value.leader not in names):
        message = f"group {group_id} has members, but no protocol or no leader"
        raise ProtocolError(message)
    if len(set(names)) < len(names) or len(set(instances)) < len(instances):
        message = f"group {group_id} has a member twice"
        raise ProtocolError(message)
