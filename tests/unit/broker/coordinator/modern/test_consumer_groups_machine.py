"""A consumer group under any sequence of events.

Members of both protocols join, leave, are slow, lose responses and return, while topics and rights change and
coordinators take over. No partition has two owners, epochs only rise, and when events stop, every subscribed partition
has an owner.
"""

from __future__ import annotations

import re
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup, ConsumerGroupState
from lowtide.protocol.consumer_protocol import parse_assignment
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicId
from tests.examples import examples
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld, subscription
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS

TOPICS = ("t", "u", "v1", "v2")
NAMES, PATTERN = "subscribed_topic_names", "subscribed_topic_regex"
SUBSCRIPTIONS: tuple[dict[str, Any], ...] = (
    {NAMES: ["t"], PATTERN: ""},
    {NAMES: ["t", "u"], PATTERN: ""},
    {NAMES: ["u", "v1"], PATTERN: ""},
    {NAMES: [], PATTERN: ""},
    {NAMES: [], PATTERN: "v.*"},
    {NAMES: ["t"], PATTERN: "v.*"},
    {NAMES: [], PATTERN: "t|v1"},
    {NAMES: [], PATTERN: "nothing.*"},
)
CHOICES = st.integers(0, len(SUBSCRIPTIONS) - 1)
LOST = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
SESSION_MS = 45_000

Owned = dict[TopicId, set[int]]


class Consumer:
    """A client of the new protocol: takes its assignment at once, and revokes when the machine calls for it."""

    def __init__(self, number: int, instance_id: str | None, subscribed: dict[str, Any]) -> None:
        self.member_id = f"consumer-{number}"
        self.instance_id = instance_id
        self.subscribed = subscribed
        self.epoch = 0
        self.owned: Owned = {}
        self.told: Owned = {}
        self.changed = False
        """It hasn't said yet what it subscribes to now."""
        self.says_all = False
        """The last response was lost: the client then sends its full state, and receives a full assignment."""

    def topics(self, among: Any, hidden: frozenset[str]) -> set[str]:
        """What it subscribes to, of these topics."""
        pattern = self.subscribed[PATTERN]
        return {
            name
            for name in among
            if name in self.subscribed[NAMES] or (re.fullmatch(pattern, name) and name not in hidden)
        }

    def forget(self) -> None:
        self.epoch, self.owned, self.told = 0, {}, {}

    def give_back(self) -> None:
        self.owned = {
            topic: kept for topic, numbers in self.owned.items() if (kept := numbers & self.told.get(topic, set()))
        }

    def take_up(self) -> None:
        """Partitions to revoke are revoked first."""
        if all(numbers <= self.told.get(topic, set()) for topic, numbers in self.owned.items()):
            self.owned = {topic: set(numbers) for topic, numbers in self.told.items()}

    def beat(self, world: ConsumerWorld, hidden: frozenset[str] = frozenset(), *, loses_answer: bool = False) -> None:
        more: dict[str, Any] = {"instance_id": self.instance_id}
        if self.epoch == 0 or self.says_all:
            more.update(self.subscribed, rebalance_timeout_ms=REBALANCE_MS)
        elif self.changed:
            more.update(self.subscribed)
        if hidden:
            more["may_see"] = lambda name: name not in hidden
        answer = world.beat(
            self.member_id, self.epoch, owned={topic: set(numbers) for topic, numbers in self.owned.items()}, **more
        )
        response = answer.response
        self.says_all = loses_answer
        if loses_answer:
            return
        if answer.error in LOST:
            self.forget()
        elif answer.error == ErrorCode.NONE:
            self.epoch, self.changed = response.member_epoch, False
            assigned = world.assigned(response)
            if assigned is not None:
                self.told = assigned
                self.take_up()


class Classic:
    """A client of the classic protocol that revokes one partition after the other."""

    def __init__(self, world: ConsumerWorld) -> None:
        self.member_id = ""
        self.generation_id = -1
        self.owned: dict[str, set[int]] = {}
        self.join(world)

    def join(self, world: ConsumerWorld) -> None:
        protocols = (
            (
                "cooperative-sticky",
                subscription("t", owned={topic: sorted(numbers) for topic, numbers in self.owned.items()}),
            ),
        )
        answer = world.join(self.member_id, protocols=protocols, session_ms=SESSION_MS)
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.response.member_id
            answer = world.join(self.member_id, protocols=protocols, session_ms=SESSION_MS)
        if answer.error != ErrorCode.NONE:
            self.member_id, self.owned = "", {}
            return
        self.generation_id = answer.response.generation_id
        synced = world.sync(self.member_id, self.generation_id)
        if synced.error == ErrorCode.NONE:
            self.owned = {name: set(numbers) for name, numbers in parse_assignment(synced.response.assignment).topics}

    def beat(self, world: ConsumerWorld) -> None:
        if not self.member_id:
            self.join(world)
            return
        error = world.heartbeat(self.member_id, self.generation_id)
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join(world)
        elif error != ErrorCode.NONE:
            self.member_id, self.owned = "", {}


class ConsumerGroups(RuleBasedStateMachine):
    """Runs members of both protocols. One member of the new protocol is always there, so the group keeps its kind."""

    @initialize(interval_ms=st.sampled_from((0, 1_000)))
    def begin(self, interval_ms: int) -> None:
        chosen = GroupSettings(
            initial_rebalance_delay_ms=0,
            consumer_assignment_interval_ms=interval_ms,
            consumer_regex_refresh_interval_ms=20_000,
        )
        self.world = ConsumerWorld(chosen, topics={"t": 3, "v1": 1})
        self.count = 0
        self.consumers: list[Consumer] = []
        self.classics: list[Classic] = []
        self.epochs = (0, 0)
        self.hidden: frozenset[str] = frozenset()
        """The topics that members may not describe."""
        self.comes(0, False, False)
        self.consumers[0].beat(self.world)

    def choose(self, number: int) -> Consumer:
        return self.consumers[number % len(self.consumers)]

    @precondition(lambda self: len(self.consumers) < 5)
    @rule(subscribed=CHOICES, is_static=st.booleans(), beats=st.booleans())
    def comes(self, subscribed: int, is_static: bool, beats: bool) -> None:
        self.count += 1
        consumer = Consumer(self.count, f"static-{self.count % 2}" if is_static else None, SUBSCRIPTIONS[subscribed])
        self.consumers.append(consumer)
        if beats:
            consumer.beat(self.world, self.hidden)

    @rule(number=st.integers(0, 4), loses_answer=st.booleans())
    def beats(self, number: int, loses_answer: bool) -> None:
        self.choose(number).beat(self.world, self.hidden, loses_answer=loses_answer)

    @rule(number=st.integers(0, 4))
    def gives_back(self, number: int) -> None:
        consumer = self.choose(number)
        consumer.give_back()
        consumer.take_up()

    @rule(number=st.integers(0, 4), subscribed=CHOICES, beats=st.booleans())
    def subscribes_anew(self, number: int, subscribed: int, beats: bool) -> None:
        consumer = self.choose(number)
        consumer.subscribed, consumer.changed = SUBSCRIPTIONS[subscribed], True
        if beats:
            consumer.beat(self.world, self.hidden)

    @rule(hidden=st.frozensets(st.sampled_from(TOPICS), max_size=2))
    def rights_change(self, hidden: frozenset[str]) -> None:
        self.hidden = hidden

    @rule(number=st.integers(0, 4))
    def begins_anew(self, number: int) -> None:
        """The client lost its state, and joins under its previous id."""
        self.choose(number).forget()

    @precondition(lambda self: len(self.consumers) > 1)
    @rule(number=st.integers(1, 4), says_so=st.booleans(), is_back_soon=st.booleans())
    def goes(self, number: int, says_so: bool, is_back_soon: bool) -> None:
        consumer = self.consumers[1 + number % (len(self.consumers) - 1)]
        self.consumers.remove(consumer)
        if says_so and consumer.epoch:
            epoch = -2 if is_back_soon and consumer.instance_id is not None else -1
            self.world.beat(consumer.member_id, epoch, instance_id=consumer.instance_id)

    @precondition(lambda self: len(self.classics) < 2)
    @rule()
    def classic_comes(self) -> None:
        if self.group_is_here():
            self.classics.append(Classic(self.world))

    @precondition(lambda self: self.classics)
    @rule(number=st.integers(0, 1))
    def classic_beats(self, number: int) -> None:
        if self.group_is_here():
            self.classics[number % len(self.classics)].beat(self.world)

    @precondition(lambda self: self.classics)
    @rule()
    def classic_dies(self) -> None:
        self.classics.pop()

    @rule(name=st.sampled_from(TOPICS), count=st.sampled_from((0, 1, 3, 5)))
    def topic_changes(self, name: str, count: int) -> None:
        known = self.world.cluster.image.topics.get(name)
        if known is None or not count or count > len(known.partitions):
            self.world.cluster.set_topic(name, count)

    @rule(milliseconds=st.sampled_from((1, 1_000, 10_001, SESSION_MS // 2, SESSION_MS)))
    def time_passes(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)

    @rule()
    def another_coordinator_takes_over(self) -> None:
        if self.group_is_here():
            self.world.check_reload()
        self.world = self.world.reload()  # a copy of itself

    def group_is_here(self) -> bool:
        """Without members of the new protocol the group may be classic, which another test covers."""
        group = self.world.groups.by_id.get(GROUP)
        return isinstance(group, ConsumerGroup) and group.subscriptions.classic_count < len(group.members)

    @rule(classics_stay=st.booleans())
    def is_quiet(self, classics_stay: bool) -> None:
        """All members send heartbeats and apply their assignments until nothing changes any more."""
        if not classics_stay or not self.group_is_here():
            self.classics = []
        for _ in range(14):
            self.world.pass_time(10_001)
            if GROUP not in self.world.groups.by_id:
                self.epochs = (0, 0)  # The group was empty, and expired: the next one of this name starts again.
            for consumer in self.consumers:
                consumer.give_back()
                consumer.take_up()
                consumer.beat(self.world, self.hidden)
            for classic in self.classics if self.group_is_here() else ():
                classic.beat(self.world)
        group, topics = self.world.group, self.world.cluster.image.topics
        alive: list[Any] = [consumer for consumer in self.consumers if consumer.epoch]
        assert {member.member_id for member in (*alive, *self.classics)} == set(group.members)
        assert group.state is ConsumerGroupState.STABLE, [str(member) for member in group.members.values()]
        rows = [
            (topic, number) for consumer in alive for topic, numbers in consumer.owned.items() for number in numbers
        ]
        for consumer in alive:
            assert consumer.owned == {
                topic: set(numbers) for topic, numbers in group.members[consumer.member_id].assigned.items()
            }
            assert set(consumer.owned) <= {topics[name].topic_id for name in consumer.topics(topics, self.hidden)}
        for classic in self.classics:
            rows += [(topics[name].topic_id, number) for name, numbers in classic.owned.items() for number in numbers]
        names = set().union(
            *(consumer.topics(topics, self.hidden) for consumer in alive), {"t"} & set(topics) if self.classics else ()
        )
        assert sorted(rows) == sorted(
            (topics[name].topic_id, number) for name in names for number in range(len(topics[name].partitions))
        )

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        if not hasattr(self, "world"):
            return
        group = self.world.groups.by_id.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        owners: dict[tuple[TopicId, int], str] = {}
        for consumer in self.consumers:
            if consumer.member_id in group.members:
                for topic, numbers in consumer.owned.items():
                    for number in numbers:
                        assert owners.setdefault((topic, number), consumer.member_id) == consumer.member_id

    @invariant()
    def epochs_only_rise(self) -> None:
        group = self.world.groups.by_id.get(GROUP) if hasattr(self, "world") else None
        if not isinstance(group, ConsumerGroup):
            self.epochs = (0, 0)
            return
        assert (group.group_epoch, group.target_epoch) >= self.epochs
        assert group.target_epoch >= self.epochs[1]
        assert group.target_epoch <= group.group_epoch
        self.epochs = (group.group_epoch, group.target_epoch)

    @invariant()
    def what_is_counted_is_there(self) -> None:
        group = self.world.groups.by_id.get(GROUP) if hasattr(self, "world") else None
        if not isinstance(group, ConsumerGroup):
            return
        members = group.members.values()
        assert set(group.subscriptions.topic_counts) == {name for member in members for name in member.topic_names}
        assert set(group.subscriptions.pattern_counts) == {
            member.pattern for member in members if member.pattern is not None
        }
        assert group.subscriptions.classic_count == sum(member.classic is not None for member in members)
        assert set(group.static_members.values()) == {
            member.member_id for member in members if member.instance_id is not None
        }
        owned = {
            (topic, number): member.member_id
            for member in members
            for part in (member.assigned, member.revoking)
            for topic, numbers in part.items()
            for number in numbers
        }
        assert {
            (topic, number): owner for topic, rows in group.owners.by_topic.items() for number, owner in rows.items()
        } == owned


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
