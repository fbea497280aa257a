"""A classic group: its members, its generation, and its state.

Everything here is a value that changes by plain calls; when and why is the part of `rebalancing` and of those above it.

Guards: the state changes by the table of `group_state` alone; a generation's number only rises; an instance id belongs
to one member; the protocol of a generation is one that each of its members speaks.

Source: Kafka's `ClassicGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.group_state import TRANSITIONS, GroupEvent, GroupState, next_state
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import MEMBER_BYTES, MemberMemory, bytes_of_member
from lowtide.broker.coordinator.runtime.effects import Reply
from lowtide.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.join_group import JoinGroupResponseMember
from lowtide.protocol.types import UNKNOWN_OFFSET

NO_GENERATION: Final = -1


class ClassicGroup:
    """One group. Members are kept in the order in which they came."""

    group_type: Final[Literal[GroupType.CLASSIC]] = GroupType.CLASSIC

    __slots__ = (
        "awaiting_join_count",
        "generation_id",
        "group_id",
        "held_bytes",
        "initial_delay",
        "last_record_offset",
        "leader_id",
        "members",
        "memory",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "protocol_name",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_members",
        "subscribed",
        "supported",
    )

    def __init__(self, group_id: str, *, wall_ms: int | None, memory: MemberMemory | None = None) -> None:
        """An empty group in generation 0; `wall_ms` is None where it isn't known since when; `memory` is shared by a broker's groups."""
        self.group_id = group_id
        self.memory = memory if memory is not None else MemberMemory()
        self.held_bytes = 0
        self.state = GroupState.EMPTY
        self.state_since_ms = wall_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id → member id."""
        self.pending_join: dict[str, None] = {}
        """ClassicMember ids that were given out and have not come back yet (KIP-394)."""
        self.pending_sync: dict[str, None] = {}
        self.awaiting_join_count = 0
        self.supported: Counter[str] = Counter()
        """How many members speak each protocol."""
        self.subscribed: frozenset[str] | None = None
        """The topics of a group of consumers, if they could be read."""
        self.new_member_added = False
        self.initial_delay: tuple[int, int] | None = None
        """In the first rebalance of an empty group: the delay that runs, and what may follow it; milliseconds."""
        self.last_record_offset = UNKNOWN_OFFSET
        """The last record about this group or its offsets; what it says can be returned when that is committed."""

    # ------------------------------------------------------------------ state
    def on_event(self, event: GroupEvent, wall_ms: int) -> None:
        """Go into the state that follows. Raises AssertionError where the event can't happen in this one."""
        self.state, self.state_since_ms = next_state(self.state, event), wall_ms

    def close(self) -> None:
        """The group is gone from this coordinator, and counts no longer."""
        self.state = next_state(self.state, GroupEvent.GONE)
        self.release()

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin."""
        return (self.state, GroupEvent.REBALANCE) in TRANSITIONS

    @property
    def is_simple(self) -> bool:
        """Whether it only keeps offsets: no member has ever joined it."""
        return self.protocol_type is None and self.state is GroupState.EMPTY and not self.pending_join

    @property
    def is_unused(self) -> bool:
        """Whether it has no member, and has given no id out that may come back."""
        return self.state is GroupState.EMPTY and not self.pending_join

    @property
    def since_empty_ms(self) -> int | None:
        """Since when it has no members, wall clock; None while it has, if it never had, or if that isn't known."""
        return self.state_since_ms if self.protocol_type is not None and self.state is GroupState.EMPTY else None

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: not while a group with members rebalances, for what it consumes isn't known then."""
        if self.protocol_type is None or self.state is GroupState.EMPTY:
            return True
        return self.uses_consumer_protocol and self.subscribed is not None and self.state is GroupState.STABLE

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether its members are consumers."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member may take to join again."""
        return max([member.rebalance_timeout_ms for member in self.members.values()], default=0)

    @property
    def has_all_members_joined(self) -> bool:
        """Whether a rebalance has no member to wait for."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members consume a topic; those of a group of consumers whose subscriptions can't be read may."""
        return topic in self.subscribed if self.subscribed is not None else self.uses_consumer_protocol

    def living_subscriptions(self) -> frozenset[str] | None:
        """The topics that living members consume, or are about to; None where they are consumers and it isn't known what of."""
        if not self.members or not self.uses_consumer_protocol:
            return frozenset()
        if self.state is GroupState.PREPARING_REBALANCE:
            return None  # Who is joining may want topics that the last generation didn't.
        return self.subscribed

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Whether this is a member.

        Errors: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID for a static one that another has taken the place of.
        """
        if group_instance_id is not None:
            existing = self.static_members.get(group_instance_id)
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if existing != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_fetch(self, _member_id: str | None, _member_epoch: int) -> ErrorCode:
        """Whether offsets may be answered to this client: always."""
        return ErrorCode.NONE

    def check_offset_delete(self) -> ErrorCode:
        """Whether single offsets may be deleted.

        Errors: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP where it isn't known what the members consume.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return (
            ErrorCode.NONE
            if self.state is GroupState.EMPTY or self.uses_consumer_protocol
            else ErrorCode.NON_EMPTY_GROUP
        )

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if self.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    # ------------------------------------------------------------------ members
    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Take a member in; the first one is the leader, and says the group's type."""
        assert member.member_id not in self.members
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, (
                f"{member.group_instance_id} is a member already"
            )
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        if member.awaiting_join is not None:
            self.awaiting_join_count += 1
        self._take_back(member.member_id)

    def give_out(self, member_id: str) -> None:
        """Wait for a member to join under this id."""
        assert member_id not in self.pending_join
        self.pending_join[member_id] = None
        self._hold(MEMBER_BYTES)

    def _take_back(self, member_id: str) -> None:
        if member_id in self.pending_join:
            del self.pending_join[member_id]
            self._hold(-MEMBER_BYTES)

    def remove(self, member_id: str) -> None:
        """Let a member go, or one that has an id only; the oldest one left leads then.

        What it waits for isn't answered here.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self._take_back(member_id)
        self.pending_sync.pop(member_id, None)

    def update(
        self,
        member: ClassicMember,
        protocols: tuple[tuple[str, bytes], ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        awaiting_join: Reply,
    ) -> None:
        """Take over what a member says of itself when it joins again."""
        if member.protocols != protocols:
            self._count_protocols(member, -1)
            member.protocols = protocols
            self._count_protocols(member, 1)
        member.rebalance_timeout_ms, member.session_timeout_ms = rebalance_timeout_ms, session_timeout_ms
        self.awaiting_join_count += (awaiting_join is not None) - (member.awaiting_join is not None)
        member.awaiting_join = awaiting_join

    def replace_static(self, group_instance_id: str, new_member_id: str) -> tuple[ClassicMember, ClassicMember]:
        """Give an instance's place to a new member id: `(what was there, what is there now)`.

        No request waits in the new one.
        """
        old_member_id = self.static_members[group_instance_id]
        old = self.members[old_member_id]
        if old.awaiting_join is not None:
            self.awaiting_join_count -= 1
        new = msgspec.structs.replace(
            old, member_id=new_member_id, awaiting_join=None, awaiting_sync=None, is_new=False
        )
        self.members = {new_member_id if key == old_member_id else key: member for key, member in self.members.items()}
        self.members[new_member_id] = new
        self.static_members[group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync:
            del self.pending_sync[old_member_id]
            self.pending_sync[new_member_id] = None
        return old, new

    def take_awaiting_join(self, member: ClassicMember) -> Reply:
        """The request that waits for the rebalance, which does so no longer; None where there is none."""
        reply, member.awaiting_join = member.awaiting_join, None
        if reply is not None:
            self.awaiting_join_count -= 1
        return reply

    def elect_joined_leader(self) -> bool:
        """See to it that the leader has joined this rebalance. Returns False when no member has."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is None:
            return False
        if leader.awaiting_join is None:
            joined = next((member for member in self.members.values() if member.awaiting_join is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return True

    # ------------------------------------------------------------------ memory
    def has_room(self, more_bytes: int) -> bool:
        """Whether more may be held for members of this group."""
        return self.memory.has_room(self.held_bytes, more_bytes)

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        """Keep a member's assignment."""
        self._hold(len(assignment) - len(member.assignment))
        member.held_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def release(self) -> None:
        """The group is gone: whatever still happens to it has no effect."""
        self.memory.held_bytes -= self.held_bytes
        self.memory = MemberMemory()

    def _hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self.memory.held_bytes += more_bytes

    # ------------------------------------------------------------------ protocols
    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols may join: all members have one of them."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        return self.protocol_type == protocol_type and any(self.supported[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """The protocol that all speak and most like best; of equals the one that was voted for first."""
        candidates = frozenset([name for name, count in self.supported.items() if count == len(self.members)])
        if len(candidates) == 1:
            return next(iter(candidates))
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def begin_generation(self, wall_ms: int) -> None:
        """The members that are here form the next generation; it may be empty."""
        self.generation_id = self.generation_id + 1 & 0x7FFF_FFFF
        self.protocol_name = self.select_protocol() if self.members else None
        self.compute_subscribed()
        self.on_event(GroupEvent.ALL_JOINED if self.members else GroupEvent.ALL_LEFT, wall_ms)
        self.pending_sync.clear()

    def compute_subscribed(self) -> None:
        """Read which topics the members consume, if they are consumers."""
        self.subscribed = None
        if not self.uses_consumer_protocol:
            return
        if not self.members:
            self.subscribed = frozenset()
        elif self.protocol_name is not None:
            name = self.protocol_name
            try:
                self.subscribed = frozenset(
                    topic for member in self.members.values() for topic in subscribed_topics(member.metadata(name))
                )
            except ProtocolError:
                return

    def joined_members(self) -> list[JoinGroupResponseMember]:
        """The members as the leader receives them."""
        assert self.protocol_name is not None
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]

    def _count_protocols(self, member: ClassicMember, by: int) -> None:
        """Count a member in (1) or out (-1), with what it takes."""
        self._hold(-member.held_bytes)
        member.held_bytes = 0
        if by > 0:
            words = (member.client_id, member.group_instance_id)
            member.held_bytes = bytes_of_member(words, member.protocols) + len(member.assignment)
            self._hold(member.held_bytes)
        for name in dict(member.protocols):
            self.supported[name] += by
            if not self.supported[name]:
                del self.supported[name]
