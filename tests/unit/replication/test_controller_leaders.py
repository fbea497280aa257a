"""Elections by the rules of ISRs and registrations: single cases, and any sequence of failures and returns."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import NO_LEADER, BrokerRecord, ControllerRecord, PartitionRecord, TopicRecord, encode
from lowtide.metadata.store import Compare, Delete, Put, check_transaction
from lowtide.protocol.types import topic_id_text
from lowtide.replication.controller import plan_controller_work
from lowtide.replication.elections import elect
from tests.examples import examples

TOPIC_ID = b"T" * 16
BROKERS = (1, 2, 3)


def plan_leaders(image: MetadataImage) -> ChangePlan:
    """The controller's work without the features, on which the brokers of a new cluster agree."""
    steps = plan_controller_work(image).steps
    return ChangePlan(tuple(step for step in steps if keys.FEATURES not in [each.key for each in step.operations]))


def image_with(epochs: dict[int, int]) -> MetadataImage:
    return MetadataImage(
        revision=1000, brokers={broker_id: BrokerImage(broker_id, epoch, ()) for broker_id, epoch in epochs.items()}
    )


def partition(isr: tuple[int, ...], leader: int, *, epochs: tuple[int, ...] | None = None) -> PartitionImage:
    """Replicas 1, 2, 3; members joined under the epoch of ten times their id; leader epoch 5, partition epoch 7."""
    return PartitionImage(BROKERS, isr, epochs or tuple(10 * member for member in isr), leader, 5, 7, 900)


ALIVE = {1: 10, 2: 20, 3: 30}


@pytest.mark.parametrize(
    ("live", "before", "leader", "isr", "leader_epoch"),
    [
        pytest.param({2: 20, 3: 30}, partition((1, 2, 3), 1), 2, (2, 3), 6, id="leader-died"),
        pytest.param({1: 10, 3: 30}, partition((1, 2, 3), 1), 1, (1, 3), 5, id="follower-died"),
        pytest.param({1: 11, 2: 20, 3: 30}, partition((1, 2, 3), 1), 2, (2, 3), 6, id="leader-restarted"),
        pytest.param({1: 10, 2: 21, 3: 30}, partition((1, 2, 3), 1), 1, (1, 3), 5, id="follower-restarted"),
        pytest.param({3: 30, 1: 10}, partition((2, 3), 2), 3, (3,), 6, id="only-in-sync-ones-lead"),
        pytest.param({3: 30}, partition((1, 2), 1), NO_LEADER, (1, 2), 6, id="no-live-member"),
        pytest.param({}, partition((1,), 1), NO_LEADER, (1,), 6, id="no-live-replica"),
        pytest.param({1: 11}, partition((1,), 1), 1, (1,), 6, id="sole-broker-restarted"),
        pytest.param({2: 21}, partition((1, 2), NO_LEADER), 2, (2,), 6, id="a-member-came-back"),
        pytest.param({1: 11, 2: 21, 3: 31}, partition((3, 2), NO_LEADER), 2, (2,), 6, id="several-came-back"),
        pytest.param(ALIVE, partition((2, 3), NO_LEADER), 2, (2, 3), 6, id="members-live-without-leader"),
    ],
)
def test_elections(
    live: dict[int, int], before: PartitionImage, leader: int, isr: tuple[int, ...], leader_epoch: int
) -> None:
    """Single cases: the order of the replicas decides, the epochs of members are those of live registrations."""
    after = elect(image_with(live), TOPIC_ID, 0, before)
    assert after is not None
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (leader, isr, leader_epoch, 8)
    if leader != NO_LEADER:
        assert after.isr_epochs == tuple(live[member] for member in isr)
    else:
        assert after.isr_epochs == before.isr_epochs
    settled = PartitionImage(
        after.replicas, after.isr, after.isr_epochs, after.leader, after.leader_epoch, after.partition_epoch, 901
    )
    assert elect(image_with(live), TOPIC_ID, 0, settled) is None, "an election is decided once"


@pytest.mark.parametrize(
    ("live", "state"),
    [
        (ALIVE, partition((1, 2, 3), 1)),
        (ALIVE, partition((2, 3), 3)),
        ({2: 20}, partition((2,), 2)),
        ({3: 30}, partition((1, 2), NO_LEADER)),
    ],
)
def test_healthy_partitions_are_not_changed(live: dict[int, int], state: PartitionImage) -> None:
    """No write, no new epoch: also if no replica can lead, and if the leader is not the preferred one."""
    assert elect(image_with(live), TOPIC_ID, 0, state) is None


@pytest.mark.parametrize("dies", [2, 3])
def test_an_election_does_not_rely_on_a_broker_that_failed_since(dies: int) -> None:
    """Neither as leader nor as a member in sync: a plan from before the failure conflicts."""
    machine = ClusterMachine()
    machine.create(partitions=1)
    machine.write([Delete(keys.broker(1))])
    (step,) = plan_leaders(machine.image()).steps
    machine.write([Delete(keys.broker(dies))])
    assert not machine.write(list(step.operations), step.compares)
    (step,) = plan_leaders(machine.image()).steps
    assert machine.write(list(step.operations), step.compares)


class ClusterMachine(RuleBasedStateMachine):
    """Brokers fail, return, leave the ISR and rejoin it; the controller works on images that may be old."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(boot=1, revision=0, keys=())
        self.history: list[PartitionRecord] = []

    @initialize(partitions=st.integers(1, 3))
    def create(self, partitions: int) -> None:
        self.count = partitions
        self.write([Put(keys.CONTROLLER, encode(ControllerRecord(1, 1)))])
        for broker_id in BROKERS:
            self.write([Put(keys.broker(broker_id), encode(BrokerRecord("i", ())))])
        epochs = tuple(self.image().brokers[broker_id].epoch for broker_id in BROKERS)
        record = PartitionRecord(
            replicas=BROKERS, isr=BROKERS, isr_epochs=epochs, leader=1, leader_epoch=0, partition_epoch=0
        )
        puts = [Put(keys.partition(TOPIC_ID, number), encode(record)) for number in range(partitions)]
        self.write([Put(keys.topic("t"), encode(TopicRecord(topic_id_text(TOPIC_ID), partitions))), *puts])
        self.seen = self.image()

    def image(self) -> MetadataImage:
        return load_image(self.engine.range(b""), self.engine.revision, prefix=b"")

    def write(self, operations: list[Put | Delete], compares: tuple[Compare, ...] = ()) -> bool:
        before = self.image() if "t" in self.image().topics else None
        staged = self.engine.stage()
        check_transaction(compares, operations, ())
        succeeded = self.engine.evaluate(staged, compares, operations, ()).succeeded
        self.engine.commit(staged)
        if before is not None:
            self.check_change(before, self.image())
        return succeeded

    def check_change(self, before: MetadataImage, after: MetadataImage) -> None:
        for old, new in zip(before.topics["t"].partitions, after.topics["t"].partitions, strict=True):
            if new == old:
                continue
            assert new.partition_epoch == old.partition_epoch + 1
            assert new.leader_epoch >= old.leader_epoch
            assert new.isr, "the ISR never becomes empty"
            if new.leader != old.leader:
                assert new.leader_epoch == old.leader_epoch + 1
            if new.leader != NO_LEADER:
                assert new.leader in new.isr
                assert new.isr_epochs == tuple(after.brokers[member].epoch for member in new.isr), (
                    "members are live under that registration"
                )
                assert new.leader in old.isr, "no unclean election"

    @precondition(lambda self: self.image().brokers)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.write([Delete(keys.broker(data.draw(st.sampled_from(sorted(self.image().brokers)))))])

    @precondition(lambda self: len(self.image().brokers) < len(BROKERS))
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        broker_id = data.draw(st.sampled_from([each for each in BROKERS if each not in self.image().brokers]))
        self.write([Put(keys.broker(broker_id), encode(BrokerRecord("i", ())))])

    @rule(number=st.integers(0, 2), members=st.sets(st.sampled_from(BROKERS), min_size=1))
    def leader_changes_isr(self, number: int, members: set[int]) -> None:
        """Write an ISR as the leader does: fenced by its own and the members' registrations."""
        image = self.image()
        state = image.topics["t"].partitions[number % self.count]
        members.add(state.leader)
        if (
            not members <= set(image.brokers)
            or state.isr_epochs[state.isr.index(state.leader)] != image.brokers[state.leader].epoch
        ):
            return
        isr = tuple(sorted(members))
        record = PartitionRecord(
            replicas=BROKERS,
            isr=isr,
            isr_epochs=tuple(image.brokers[member].epoch for member in isr),
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch + 1,
        )
        self.write([Put(keys.partition(TOPIC_ID, number % self.count), encode(record))])

    @rule()
    def controller_sees(self) -> None:
        self.seen = self.image()

    @rule()
    def controller_works_on_what_it_saw(self) -> None:
        for step in plan_controller_work(self.seen).steps:
            self.write(list(step.operations), step.compares)

    @invariant()
    def an_up_to_date_controller_settles_everything(self) -> None:
        """On a copy.

        One plan on the current image leaves nothing to do, and every partition that can have a leader has one.
        """
        if not hasattr(self, "seen"):
            return
        copy = Engine(boot=2, revision=self.engine.revision, keys=self.engine.keys.values())
        for step in plan_leaders(self.image()).steps:
            staged = copy.stage()
            assert copy.evaluate(staged, step.compares, step.operations, ()).succeeded
            copy.commit(staged)
        settled = load_image(copy.range(b""), copy.revision, prefix=b"")
        assert plan_leaders(settled).is_empty
        for state in settled.topics["t"].partitions:
            assert state.has_leader == any(member in settled.brokers for member in state.isr)


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)


def test_a_sole_brokers_restart_raises_every_leader_epoch_by_one() -> None:
    """A thousand partitions in few steps, each within the store's limits; a second plan is empty."""
    engine = Engine(boot=1, revision=0, keys=())

    def write(operations: list[Put | Delete], compares: tuple[Compare, ...] = ()) -> None:
        staged = engine.stage()
        assert engine.evaluate(staged, compares, operations, ()).succeeded
        engine.commit(staged)

    write([Put(keys.broker(0), encode(BrokerRecord("first life", ())))])
    record = PartitionRecord(replicas=(0,), isr=(0,), isr_epochs=(1,), leader=0, leader_epoch=4, partition_epoch=9)
    puts = [Put(keys.partition(TOPIC_ID, number), encode(record)) for number in range(1000)]
    write([Put(keys.topic("t"), encode(TopicRecord(topic_id_text(TOPIC_ID), 1000))), *puts])
    write([Delete(keys.broker(0))])
    write([Put(keys.broker(0), encode(BrokerRecord("second life", ())))])
    image = load_image(engine.range(b""), engine.revision, prefix=b"")
    plan = plan_leaders(image)
    assert len(plan.steps) == 10
    fences = [Compare(b"broker", "create", "==", 1), Compare(b"controller", "create", "==", 1)]
    for step in plan.steps:
        check_transaction([*step.compares, *fences], step.operations, ())
        write(list(step.operations), step.compares)
    image = load_image(engine.range(b""), engine.revision, prefix=b"")
    partitions = image.topics["t"].partitions
    assert {(each.leader, each.leader_epoch, each.isr_epochs, each.partition_epoch) for each in partitions} == {
        (0, 5, (image.brokers[0].epoch,), 10)
    }
    assert plan_leaders(image).is_empty


def test_steps_stay_small_with_many_leaders() -> None:
    """Each new leader costs a comparison.

    With a hundred of them steps get shorter, and stay within the store's limit.
    """
    brokers = {broker_id: BrokerImage(broker_id, broker_id + 1, ()) for broker_id in range(1, 120)}
    puts = {}
    for number in range(300):
        follower = 1 + number % 119
        record = PartitionRecord(
            replicas=(0, follower),
            isr=(0, follower),
            isr_epochs=(1, follower + 1),
            leader=0,
            leader_epoch=0,
            partition_epoch=0,
        )
        puts[keys.partition(TOPIC_ID, number)] = encode(record)
    engine = Engine(boot=1, revision=0, keys=())
    staged = engine.stage()
    topic = Put(keys.topic("t"), encode(TopicRecord(topic_id_text(TOPIC_ID), 300)))
    engine.evaluate(staged, (), [*(Put(key, value) for key, value in puts.items()), topic], ())
    engine.commit(staged)
    loaded = load_image(engine.range(b""), 1, prefix=b"")
    image = MetadataImage(revision=1, brokers=brokers, topics=loaded.topics, topic_names=loaded.topic_names)
    plan = plan_leaders(image)
    assert sum(len(step.operations) for step in plan.steps) == 300
    fences = [Compare(b"broker", "create", "==", 1), Compare(b"controller", "create", "==", 1)]
    for step in plan.steps:
        check_transaction([*step.compares, *fences], step.operations, ())
