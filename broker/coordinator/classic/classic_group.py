"""A classic group: its members, its generation, and its state.

Everything here changes by plain calls; `rebalancing` and the modules above it decide when.

Guards: the state changes by the table of `group_state` alone; a generation's number only rises; an instance id belongs
to one member; the protocol of a generation is one that all its members speak.

Source: Kafka's `ClassicGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.group_state import GroupEvent, GroupState, next_state
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import MEMBER_BYTES, GroupMemory, MemberMemory, bytes_of_member
from lowtide.broker.coordinator.runtime.effects import Reply
from lowtide.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.types import UNKNOWN_OFFSET


class ClassicGroup:
    """One group. Members are kept in the order in which they joined."""

    group_type: Final[Literal[GroupType.CLASSIC]] = GroupType.CLASSIC

    __slots__ = (
        "awaiting_join_count",
        "generation_id",
        "group_id",
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
        """An empty group in generation 0.

        `wall_ms` is None if the time is unknown; `memory` is shared by a broker's groups.
        """
        self.group_id = group_id
        self.memory = GroupMemory(memory)
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
        """Member ids that were given out, whose members have not joined yet (KIP-394)."""
        self.pending_sync: dict[str, None] = {}
        self.awaiting_join_count = 0
        self.supported: Counter[str] = Counter()
        """How many members speak each protocol."""
        self.subscribed: frozenset[str] | None = None
        """The topics that consumers subscribe to, if they could be parsed."""
        self.new_member_added = False
        self.initial_delay: tuple[int, int] | None = None
        """During the first rebalance of an empty group: the current delay, and how much may follow; milliseconds."""
        self.last_record_offset = UNKNOWN_OFFSET
        """The last record about this group or its offsets. Answers about it wait until it is committed."""

    # ------------------------------------------------------------------ state
    def on_event(self, event: GroupEvent, wall_ms: int) -> None:
        """Changes the state. Raises AssertionError if the event can't happen in this state."""
        self.state, self.state_since_ms = next_state(self.state, event), wall_ms

    def close(self) -> None:
        """Marks the group as dead and releases its memory."""
        self.state = next_state(self.state, GroupEvent.GONE)
        self.release()

    @property
    def is_simple(self) -> bool:
        """Whether the group only keeps offsets: no member has ever joined it."""
        return self.protocol_type is None and self.state is GroupState.EMPTY and not self.pending_join

    @property
    def is_unused(self) -> bool:
        """Whether the group has no member, and has given out no member id that may come back."""
        return self.state is GroupState.EMPTY and not self.pending_join

    @property
    def since_empty_ms(self) -> int | None:
        """The wall-clock time since which it has no members; None if it has some or never had, or if it is unknown."""
        return self.state_since_ms if self.protocol_type is not None and self.state is GroupState.EMPTY else None

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: not during a rebalance, when the subscriptions are unknown."""
        if self.protocol_type is None or self.state is GroupState.EMPTY:
            return True
        return self.uses_consumer_protocol and self.subscribed is not None and self.state is GroupState.STABLE

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members are consumers."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max([member.rebalance_timeout_ms for member in self.members.values()], default=0)

    @property
    def has_all_members_joined(self) -> bool:
        """Whether a rebalance has no member to wait for."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether members consume a topic. Consumers whose subscriptions can't be parsed may consume any."""
        return topic in self.subscribed if self.subscribed is not None else self.uses_consumer_protocol

    def living_subscriptions(self) -> frozenset[str] | None:
        """Returns the topics that members consume or are about to; None if that is unknown."""
        if not self.members or not self.uses_consumer_protocol:
            return frozenset()
        if self.state is GroupState.PREPARING_REBALANCE:
            return None  # Members that are joining may subscribe to other topics than the last generation.
        return self.subscribed

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Checks that this is a member.

        Errors: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if another member has taken over the instance id.
        """
        if group_instance_id is not None:
            existing = self.static_members.get(group_instance_id)
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if existing != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_fetch(self, _member_id: str | None, _member_epoch: int) -> ErrorCode:
        """Returns NONE: any client may get the offsets."""
        return ErrorCode.NONE

    def check_offset_delete(self) -> ErrorCode:
        """Checks whether single offsets may be deleted.

        Errors: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP if the members' topics are unknown.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return (
            ErrorCode.NONE
            if self.state is GroupState.EMPTY or self.uses_consumer_protocol
            else ErrorCode.NON_EMPTY_GROUP
        )

    def check_delete(self) -> ErrorCode:
        """Checks whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if self.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    # ------------------------------------------------------------------ members
    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Adds a member. The first one becomes the leader and sets the group's protocol type."""
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
        """Waits for a member to join under this id."""
        assert member_id not in self.pending_join
        self.pending_join[member_id] = None
        self.memory.hold(MEMBER_BYTES)

    def _take_back(self, member_id: str) -> None:
        if member_id in self.pending_join:
            del self.pending_join[member_id]
            self.memory.hold(-MEMBER_BYTES)

    def remove(self, member_id: str) -> None:
        """Removes a member or a member id that was given out. The oldest member left becomes the leader.

        The caller answers the member's waiting requests.
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
        """Takes over a member's data when it joins again."""
        if member.protocols != protocols:
            self._count_protocols(member, -1)
            member.protocols = protocols
            self._count_protocols(member, 1)
        member.rebalance_timeout_ms, member.session_timeout_ms = rebalance_timeout_ms, session_timeout_ms
        self.awaiting_join_count += (awaiting_join is not None) - (member.awaiting_join is not None)
        member.awaiting_join = awaiting_join

    def replace_static(self, group_instance_id: str, new_member_id: str) -> tuple[ClassicMember, ClassicMember]:
        """Gives a static member's place to a new member id.

        Returns the old member and the new one, which has no waiting request.
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
        """Returns and clears a member's waiting join request; None if it has none."""
        reply, member.awaiting_join = member.awaiting_join, None
        if reply is not None:
            self.awaiting_join_count -= 1
        return reply

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        """Sets a member's assignment."""
        self.memory.hold(len(assignment) - len(member.assignment))
        member.held_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def release(self) -> None:
        """Gives the group's memory back to the broker. Later changes of the group no longer count."""
        self.memory.release()

    # ------------------------------------------------------------------ protocols
    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Returns whether a member with these protocols may join: all members speak one of them."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        return self.protocol_type == protocol_type and any(self.supported[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """Returns the protocol that most members prefer among those that all speak.

        Among equals it is the one that was voted for first.
        """
        candidates = frozenset([name for name, count in self.supported.items() if count == len(self.members)])
        if len(candidates) == 1:
            return next(iter(candidates))
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def begin_generation(self, wall_ms: int) -> None:
        """Begins the next generation with the present members, if any."""
        self.generation_id = self.generation_id + 1 & 0x7FFF_FFFF
        self.protocol_name = self.select_protocol() if self.members else None
        self.compute_subscribed()
        self.on_event(GroupEvent.ALL_JOINED if self.members else GroupEvent.ALL_LEFT, wall_ms)
        self.pending_sync.clear()

    def compute_subscribed(self) -> None:
        """Parses the topics that the members consume, if they are consumers."""
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

    def _count_protocols(self, member: ClassicMember, by: int) -> None:
        """Adds (1) or subtracts (-1) a member's protocols and memory."""
        self.memory.hold(-member.held_bytes)
        member.held_bytes = 0
        if by > 0:
            words = (member.client_id, member.group_instance_id)
            member.held_bytes = bytes_of_member(words, member.protocols) + len(member.assignment)
            self.memory.hold(member.held_bytes)
        for name in dict(member.protocols):
            self.supported[name] += by
            if not self.supported[name]:
                del self.supported[name]
