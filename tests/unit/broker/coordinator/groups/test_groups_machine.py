"""Members join, leave, fail to respond and return in any order: no partition has two owners in one generation."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import MEMBER_BYTES, bytes_of_member
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from tests.examples import examples
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS, SESSION_MS, Answer, World

PARTITIONS = range(6)
INSTANCES = ("", "", "one", "two")


class Consumer:
    """A client that takes the next step of the protocol when called; `instance_id` is empty for a dynamic member."""

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id or None
        self.member_id = ""
        self.generation_id = -1
        self.joining: Answer | None = None
        self.syncing: Answer | None = None
        self.owned: bytes = b""


class Groups(RuleBasedStateMachine):
    """Runs members and coordinators, and checks the owners of each generation."""

    @initialize(delay_ms=st.sampled_from((0, 500)))
    def begin(self, delay_ms: int) -> None:
        self.world = World(GroupSettings(initial_rebalance_delay_ms=delay_ms))
        self.consumers: list[Consumer] = []
        self.highest_generation = 0
        self.owners: dict[tuple[int, int], str] = {}
        """Generation and partition to the member, or instance, that received it."""

    def choose(self, number: int) -> Consumer:
        return self.consumers[number % len(self.consumers)]

    @precondition(lambda self: len(self.consumers) < 6)
    @rule(instance_id=st.sampled_from(INSTANCES))
    def comes(self, instance_id: str) -> None:
        self.consumers.append(Consumer(instance_id))

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 5))
    def joins(self, number: int) -> None:
        consumer = self.choose(number)
        if consumer.joining is None:
            consumer.owned, consumer.syncing = b"", None
            consumer.joining = self.world.join(consumer.member_id, instance_id=consumer.instance_id)
            self.look(consumer)

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 5))
    def beats(self, number: int) -> None:
        consumer = self.choose(number)
        if consumer.member_id and consumer.joining is None:
            error = self.world.heartbeat(consumer.member_id, consumer.generation_id, consumer.instance_id)
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                consumer.member_id, consumer.owned = "", b""

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 5))
    def leaves(self, number: int) -> None:
        consumer = self.choose(number)
        if consumer.member_id:
            self.world.leave(MemberIdentity(member_id=consumer.member_id, group_instance_id=consumer.instance_id))
        self.consumers.remove(consumer)

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 5))
    def dies(self, number: int) -> None:
        self.consumers.remove(self.choose(number))

    @rule(milliseconds=st.sampled_from((1, 500, SESSION_MS // 2, SESSION_MS, REBALANCE_MS)))
    def time_passes(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)

    @rule(holds=st.booleans())
    def commits(self, holds: bool) -> None:
        self.world.commit()
        self.world.holds_commits = holds

    @rule()
    def another_coordinator_takes_over(self) -> None:
        """Requests that wait are answered NOT_COORDINATOR, and the clients ask again."""
        if self.world.holds_commits:
            return  # This may lose uncommitted records; tests of the coordinator's runtime cover that.
        effects = self.world.effects()
        self.world.groups.on_unloaded(effects)
        self.world.carry_out(effects)
        for consumer in self.consumers:
            self.look(consumer)
        self.world = self.world.reload()
        self.highest_generation = 0
        self.owners = {}

    def look(self, consumer: Consumer) -> None:
        """Reacts to the responses."""
        if consumer.joining is not None and consumer.joining.response is not None:
            response, consumer.joining = consumer.joining.response, None
            if response.error_code == ErrorCode.NONE:
                consumer.member_id, consumer.generation_id = response.member_id, response.generation_id
                self.sync(consumer, response)
            elif response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                consumer.member_id = response.member_id
            elif response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                consumer.member_id = ""
        if consumer.syncing is not None and consumer.syncing.response is not None:
            response, consumer.syncing = consumer.syncing.response, None
            if response.error_code == ErrorCode.NONE:
                consumer.owned = response.assignment
                for partition in response.assignment:
                    owner = consumer.instance_id or consumer.member_id
                    assert self.owners.setdefault((consumer.generation_id, partition), owner) == owner

    def sync(self, consumer: Consumer, response: Any) -> None:
        parts: dict[str, bytes] = {}
        members = [row.member_id for row in response.members]
        if members and not response.skip_assignment:
            parts = {member_id: bytes(PARTITIONS[number :: len(members)]) for number, member_id in enumerate(members)}
        consumer.syncing = self.world.sync(
            consumer.member_id, consumer.generation_id, parts, group_instance_id=consumer.instance_id
        )
        self.look(consumer)

    @invariant()
    def answers_are_looked_at(self) -> None:
        if hasattr(self, "world"):
            for consumer in self.consumers:
                self.look(consumer)

    @invariant()
    def the_group_is_sound(self) -> None:
        group = self.world.groups.by_id.find_classic(GROUP) if hasattr(self, "world") else None
        if group is None:
            return
        assert group.generation_id >= self.highest_generation
        self.highest_generation = group.generation_id
        assert group.awaiting_join_count == sum(member.awaiting_join is not None for member in group.members.values())
        assert set(group.static_members.values()) == {
            key for key, member in group.members.items() if member.group_instance_id is not None
        }
        assert all(count > 0 for count in group.supported.values())
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        assert group.leader_id in (group.members or {None: None})
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.members
            # A static member that returned waits at most for the record of its new id.
            waiting = [member for member in group.members.values() if member.awaiting_join is not None]
            assert all(member.group_instance_id is not None for member in waiting)

    @invariant()
    def what_is_held_is_counted(self) -> None:
        """The count covers all existing members and ids, and no removed ones."""
        if not hasattr(self, "world"):
            return
        groups = self.world.groups
        classic = [group for group in groups.by_id.values() if isinstance(group, ClassicGroup)]
        assert len(classic) == len(groups.by_id)
        for group in classic:
            assert (
                group.memory.held_bytes
                == sum(held_by(member) for member in group.members.values()) + len(group.pending_join) * MEMBER_BYTES
            )
        assert groups.memory.held_bytes == sum(group.memory.held_bytes for group in classic)

    @invariant()
    def every_wait_has_a_deadline(self) -> None:
        """No request waits forever: each member has a session, each rebalance an end."""
        group = self.world.groups.by_id.find_classic(GROUP) if hasattr(self, "world") else None
        if group is None:
            return
        timers = self.world.groups.timers
        assert all(
            timers.deadline_of(("heartbeat", GROUP, member_id)) is not None
            for member_id in (*group.members, *group.pending_join)
            if not self.is_waiting(member_id)
        )
        if group.state is GroupState.PREPARING_REBALANCE:
            assert timers.deadline_of(("join", GROUP, "")) is not None
        if group.state is GroupState.COMPLETING_REBALANCE and group.pending_sync:
            assert timers.deadline_of(("sync", GROUP, "")) is not None

    def is_waiting(self, member_id: str) -> bool:
        member = self.world.groups.by_id[GROUP].members.get(member_id)
        return member is not None and (member.awaiting_join is not None or member.awaiting_sync is not None)


def held_by(member: ClassicMember) -> int:
    return bytes_of_member((member.client_id, member.group_instance_id), member.protocols) + len(member.assignment)


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
