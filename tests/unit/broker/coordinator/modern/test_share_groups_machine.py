"""A share group under any sequence of members, topics, time, moves and lost answers of the share coordinator.

Protected: the log says all that a coordinator knows; a member never has a partition whose state has not begun; when all
is quiet each partition of a subscribed topic has a member, and loads are equal.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.protocol.errors import ErrorCode
from tests.examples import examples
from tests.unit.broker.coordinator.group_world import GROUP
from tests.unit.broker.coordinator.share_group_world import ShareGroupWorld

MEMBERS = st.sampled_from("abcde")
TOPICS = st.sampled_from(["t", "u"])


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ShareGroupWorld(
            GroupSettings(share_assignment_interval_ms=500, share_initialize_retry_ms=2_000), topics={"t": 2}
        )

    @rule(member=MEMBERS, names=st.sets(TOPICS, min_size=1))
    def join(self, member: str, names: set[str]) -> None:
        assert self.world.beat(member, 0, *sorted(names)).error == ErrorCode.NONE

    @rule(member=MEMBERS, behind=st.integers(0, 3))
    def beat(self, member: str, behind: int) -> None:
        group = self.world.groups.by_id.find_share(GROUP)
        known = group.members.get(member) if group is not None else None
        answer = self.world.beat(member, max((known.member_epoch if known is not None else 3) - behind, 1))
        if known is None:
            assert answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.world.beat(member, -1)

    @rule(name=TOPICS, count=st.integers(1, 5))
    def grow(self, name: str, count: int) -> None:
        known = self.world.cluster.image.topics.get(name)
        if known is None or len(known.partitions) < count:
            self.world.cluster.set_topic(name, count)

    @rule(milliseconds=st.sampled_from([100, 600, 3_000, 46_000]))
    def wait(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)

    @rule(begins=st.booleans())
    def lose_states(self, begins: bool) -> None:
        """From now on the share coordinator does what it is asked for, or nothing."""
        self.world.begins = begins

    @rule()
    def move(self) -> None:
        other = self.world.reload()
        assert isinstance(other, ShareGroupWorld)
        other.groups.shares.states.ports = other
        self.world = other

    @invariant()
    def nothing_is_assigned_before_it_has_begun(self) -> None:
        group = self.world.groups.by_id.find_share(GROUP)
        for member in group.members.values() if group is not None else ():
            for topic_id, numbers in member.assigned.items():
                assert numbers <= group.states.initialized[topic_id][1]

    def teardown(self) -> None:
        group = self.world.groups.by_id.find_share(GROUP)
        if group is None:
            return
        self.world.begins = True
        for _ in range(4):
            self.world.pass_time(2_001)
            self.world.settle()
        self.world.check_reload()
        for name, topic in self.world.cluster.image.topics.items():
            names = [key for key, member in group.members.items() if name in member.topic_names]
            if names:
                assert set().union(*(self.world.assigned(key, name) for key in names)) == set(
                    range(len(topic.partitions))
                )


Machine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestShareGroup = Machine.TestCase
