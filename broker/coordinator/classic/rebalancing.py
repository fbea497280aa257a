"""How a classic group moves from one generation to the next, and what happens when a member is late.

A rebalance waits until all members have joined again, at most for the longest rebalance timeout. Members that have not
joined then are removed, unless they are static. An empty group first waits a little for more members. Then the group
waits for the leader's assignments, again at most for the rebalance timeout.

Guards: each waiting request is answered once; a removed member is not waited for; a group has one rebalance at a time.
Source: Kafka's `GroupMetadataManager`; KIP-134 (the initial delay), KIP-345 (static members), KIP-394 (member ids that
are given out first).
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.classic_record import group_record
from lowtide.broker.coordinator.classic.group_state import TRANSITIONS, GroupEvent, GroupState
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.runtime.effects import Effects, append_error
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from lowtide.protocol.messages.sync_group import SyncGroupResponse

TimerKey: TypeAlias = tuple[
    Literal["heartbeat", "join", "sync", "expiry", "revocation", "rejoin", "resync", "assignment", "initial"],
    str,
    str,
]
"""Kind, group id and member id: a member's heartbeat, the end of a rebalance or of the wait for assignments, the check
for expired offsets; in modern groups also a member's revocation, a classic member's join or sync, a new
target, and the wait of an empty streams group for its first members."""

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member may wait for its first generation. Source: `CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS`."""

NO_MEMBER_ID: Final = ""


def joined(group: ClassicGroup, member_id: str, *, with_members: bool) -> JoinGroupResponse:
    """Returns the response to a join that succeeded."""
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=_members(group) if with_members else [],
    )


def _members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    """Returns the members as the leader receives them."""
    assert group.protocol_name is not None
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    ]


def join_failed(error: ErrorCode, member_id: str = NO_MEMBER_ID) -> JoinGroupResponse:
    """Returns the response to a join that failed."""
    return JoinGroupResponse(error_code=error, protocol_name=None, leader="", member_id=member_id, members=[])


def sync_failed(error: ErrorCode) -> SyncGroupResponse:
    """Returns the response to a sync that failed."""
    return SyncGroupResponse(error_code=error, assignment=b"")


class Rebalancing:
    """The steps of rebalances, over the groups of one coordinator."""

    def __init__(self, settings: GroupSettings, timers: Timers[TimerKey]) -> None:
        self._settings = settings
        self._timers = timers

    # ------------------------------------------------------------------ signs of life
    def extend_session(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        """Starts a member's session timeout again."""
        self._timers.schedule(("heartbeat", group.group_id, member.member_id), now_ms + member.session_timeout_ms)

    def extend_new_member(self, group: ClassicGroup, member_id: str, timeout_ms: int, now_ms: int) -> None:
        """Waits this long for a member that isn't in a generation yet."""
        self._timers.schedule(("heartbeat", group.group_id, member_id), now_ms + timeout_ms)

    def end_session(self, group: ClassicGroup, member_id: str) -> None:
        """Stops waiting for a member's heartbeats."""
        self._timers.cancel(("heartbeat", group.group_id, member_id))

    def cancel_timers(self, group: ClassicGroup) -> None:
        """Cancels all timers of a group."""
        self._timers.cancel(("join", group.group_id, ""))
        self._timers.cancel(("sync", group.group_id, ""))
        for member_id in (*group.members, *group.pending_join):
            self.end_session(group, member_id)

    def on_silent(self, group: ClassicGroup, member_id: str, effects: Effects) -> None:
        """Removes a member, or a member id that was given out, that was silent for too long."""
        if member_id in group.pending_join:
            group.remove(member_id)
            if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
                self.complete_join(group, effects)
            return
        member = group.members.get(member_id)
        if member is None or (
            not member.is_new and (member.awaiting_join is not None or member.awaiting_sync is not None)
        ):
            return  # A waiting member sends no heartbeats. The end of the rebalance starts its session again.
        self.drop_waiting(group, member, effects)
        group.remove(member_id)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalance_or_complete(group, effects)
        elif group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join(group, effects)

    def drop_waiting(self, group: ClassicGroup, member: ClassicMember, effects: Effects) -> None:
        """Answers the waiting requests of a member that is about to be removed."""
        reply = group.take_awaiting_join(member)
        if reply is not None:
            effects.answer(reply, join_failed(ErrorCode.UNKNOWN_MEMBER_ID))
        if member.awaiting_sync is not None:
            effects.answer(member.awaiting_sync, sync_failed(ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_sync = None

    # ------------------------------------------------------------------ joining
    def rebalance_or_complete(self, group: ClassicGroup, effects: Effects) -> None:
        """Begins a rebalance because a member changed, or completes the current one if no member is missing."""
        if (group.state, GroupEvent.REBALANCE) in TRANSITIONS:
            self.prepare(group, effects)
        else:
            self.complete_join_if_all_joined(group, effects)

    def prepare(self, group: ClassicGroup, effects: Effects) -> None:
        """Begins a rebalance. The first one of an empty group waits a little for more members."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._give_up_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, effects)
        group.pending_sync.clear()
        self._timers.cancel(("sync", group.group_id, ""))
        is_initial = group.state is GroupState.EMPTY
        group.on_event(GroupEvent.REBALANCE, effects.wall_ms)
        if is_initial:
            delay_ms = max(self._settings.initial_rebalance_delay_ms, 0)
            group.initial_delay = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            group.new_member_added = False
            if delay_ms:
                self._timers.schedule(("join", group.group_id, ""), effects.now_ms + delay_ms)
            else:
                self.complete_join(group, effects)
        elif group.has_all_members_joined:
            self.complete_join(group, effects)
        else:
            self._timers.schedule(("join", group.group_id, ""), effects.now_ms + group.rebalance_timeout_ms)

    def complete_join_if_all_joined(self, group: ClassicGroup, effects: Effects) -> None:
        """Completes a rebalance that waits for no member, unless it waits for the initial delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.initial_delay is None
            and group.has_all_members_joined
        ):
            self.complete_join(group, effects)

    def on_join_timeout(self, group: ClassicGroup, effects: Effects) -> None:
        """Completes a rebalance whose time is up, or extends the initial delay because members have joined."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        if group.initial_delay is not None and group.new_member_added and group.initial_delay[1] > 0:
            delay_ms, remaining_ms = group.initial_delay
            group.new_member_added = False
            next_ms = min(max(self._settings.initial_rebalance_delay_ms, 0), remaining_ms)
            group.initial_delay = (next_ms, max(remaining_ms - delay_ms, 0))
            self._timers.schedule(("join", group.group_id, ""), effects.now_ms + next_ms)
            return
        self.complete_join(group, effects)

    def complete_join(self, group: ClassicGroup, effects: Effects) -> None:
        """Forms the next generation of the members that have joined, and of static members."""
        self._timers.cancel(("join", group.group_id, ""))
        group.initial_delay = None
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
                self.end_session(group, member.member_id)
        if group.members and not _elect_joined_leader(group):
            # Only static members are left, none of which has joined. They stay until their sessions end.
            self._timers.schedule(("join", group.group_id, ""), effects.now_ms + group.rebalance_timeout_ms)
            return
        group.begin_generation(effects.wall_ms)
        if not group.members:
            effects.keep_group(group.group_id, group_record(group, {}))
            return
        for member in group.members.values():
            reply = group.take_awaiting_join(member)
            if reply is not None:
                effects.answer(reply, joined(group, member.member_id, with_members=member.member_id == group.leader_id))
            self.extend_session(group, member, effects.now_ms)
            member.is_new = False
            group.pending_sync[member.member_id] = None
        self._timers.schedule(("sync", group.group_id, ""), effects.now_ms + group.rebalance_timeout_ms)

    # ------------------------------------------------------------------ syncing
    def note_synced(self, group: ClassicGroup, member_id: str) -> None:
        """Notes that a member has asked for its assignment."""
        group.pending_sync.pop(member_id, None)
        if not group.pending_sync:
            self._timers.cancel(("sync", group.group_id, ""))

    def on_sync_timeout(self, group: ClassicGroup, effects: Effects) -> None:
        """Removes members, perhaps the leader, that have not asked for their assignments in time."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            group.remove(member_id)
            self.end_session(group, member_id)
        self.prepare(group, effects)

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], effects: Effects) -> None:
        """Records the leader's assignments, and returns them to the members when they are committed.

        A member that the leader left out gets an empty one.
        """
        generation_id = group.generation_id
        whole = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        effects.keep_group(group.group_id, group_record(group, whole))

        def on_committed(error: ErrorCode, effects: Effects) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                return
            if error != ErrorCode.NONE:
                self._give_up_assignments(group, append_error(error), effects)
                self.rebalance_or_complete(group, effects)
                return
            for member in group.members.values():
                group.assign(member, whole.get(member.member_id, b""))
            self._give_out(group, ErrorCode.NONE, effects)
            group.on_event(GroupEvent.ASSIGNED, effects.wall_ms)

        effects.then.append(on_committed)

    def _give_up_assignments(self, group: ClassicGroup, error: ErrorCode, effects: Effects) -> None:
        """Answers an error to members that wait for an assignment."""
        for member in group.members.values():
            group.assign(member, b"")
        self._give_out(group, error, effects)

    def _give_out(self, group: ClassicGroup, error: ErrorCode, effects: Effects) -> None:
        for member in group.members.values():
            reply, member.awaiting_sync = member.awaiting_sync, None
            if reply is None:
                continue
            effects.answer(reply, synced(group, member) if error == ErrorCode.NONE else sync_failed(error))
            self.extend_session(group, member, effects.now_ms)


def _elect_joined_leader(group: ClassicGroup) -> bool:
    """Makes sure that the leader has joined this rebalance. Returns False if no member has."""
    leader = group.members.get(group.leader_id) if group.leader_id is not None else None
    if leader is not None and leader.awaiting_join is None:
        leader = next((member for member in group.members.values() if member.awaiting_join is not None), None)
    if leader is not None:
        group.leader_id = leader.member_id
    return leader is not None


def synced(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """Returns the response to a member that gets its assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
