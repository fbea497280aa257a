"""The controller under any sequence of events: brokers join, leave, restart, stop, lose directories and logs.

Clients reassign and elect.

The controller acts on images that may be old. The invariants are checked at every change that the store accepts.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import MetadataImage, PartitionImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import NO_LEADER, BrokerRecord, ControllerRecord, PartitionRecord, TopicRecord, encode
from lowtide.metadata.store import Compare, Delete, Put, check_transaction
from lowtide.protocol.types import topic_id_text
from lowtide.replication.controller import ControllerSettings, plan_controller_work
from lowtide.replication.elections import Election, assignment_of, living_members
from lowtide.replication.reassignments import Reassignment, plan_reassignments
from lowtide.replication.requested_elections import plan_elections
from tests.examples import examples

TOPIC_ID = b"T" * 16
BROKERS = (1, 2, 3, 4)
COUNT = 2
EVERYTHING = {topic_id_text(TOPIC_ID): list(range(COUNT))}
CLEAN = ControllerSettings(elects_unclean=False)

brokers = st.sampled_from(BROKERS)
numbers = st.integers(0, COUNT - 1)
assignments = st.lists(brokers, min_size=1, max_size=3, unique=True)


class ControllerMachine(RuleBasedStateMachine):
    """A store, the controller's view of it, and the requests of clients."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(boot=1, revision=0, keys=())
        self.marks = 0
        self.unclean_is_asked = False
        self.targets: dict[int, tuple[int, ...]] = {}

    @initialize()
    def begin(self) -> None:
        self.write([Put(keys.CONTROLLER, encode(ControllerRecord(1, 1)))])
        for broker_id in BROKERS:
            self.write([Put(keys.broker(broker_id), encode(BrokerRecord("i", ())))])
        first = (1, 2, 3)
        epochs = tuple(self.image().brokers[broker_id].epoch for broker_id in first)
        record = PartitionRecord(
            replicas=first, isr=first, isr_epochs=epochs, leader=1, leader_epoch=0, partition_epoch=0
        )
        puts = [Put(keys.partition(TOPIC_ID, number), encode(record)) for number in range(COUNT)]
        self.write([Put(keys.topic("t"), encode(TopicRecord(topic_id_text(TOPIC_ID), COUNT))), *puts])
        self.targets = dict.fromkeys(range(COUNT), first)
        self.seen = self.image()

    def image(self) -> MetadataImage:
        return load_image(self.engine.range(b""), self.engine.revision, prefix=b"")

    def write(self, operations: list[Put | Delete], compares: tuple[Compare, ...] = ()) -> bool:
        before = self.image()
        staged = self.engine.stage()
        check_transaction(compares, operations, ())
        succeeded = self.engine.evaluate(staged, compares, operations, ()).succeeded
        self.engine.commit(staged)
        after = self.image()
        if "t" in before.topics:
            for number in range(COUNT):
                self.check(number, before, after)
        return succeeded

    def carry_out(self, plan: ChangePlan) -> bool:
        return all(self.write(list(step.operations), step.compares) for step in plan.steps)

    # Invariants

    def check(self, number: int, before: MetadataImage, after: MetadataImage) -> None:
        old, new = before.topics["t"].partitions[number], after.topics["t"].partitions[number]
        if new == old:
            return
        assert new.partition_epoch == old.partition_epoch + 1
        assert new.isr, "the ISR never becomes empty"
        assert set(new.isr) <= set(new.replicas)
        assert set(new.adding) | set(new.removing) <= set(new.replicas)
        removes = bool(set(old.replicas) - set(new.replicas))
        assert new.leader_epoch == old.leader_epoch + int(self.leads_anew(old, new) or removes)
        if new.leader != NO_LEADER:
            assert new.leader in new.isr
            assert new.isr_epochs == tuple(after.brokers[member].epoch for member in new.isr), (
                "members are live under their registration"
            )
        if self.leads_anew(old, new) and new.leader != NO_LEADER and not self.unclean_is_asked:
            self.check_clean(number, before, old, new)
        if not new.adding and not new.removing:
            assert set(new.replicas) == set(self.targets[number]), "a finished reassignment has exactly the target"

    def leads_anew(self, old: PartitionImage, new: PartitionImage) -> bool:
        if new.leader != old.leader:
            return True
        return new.leader != NO_LEADER and self.membership(old, new.leader) != self.membership(new, new.leader)

    def membership(self, partition: PartitionImage, member: int) -> int | None:
        return dict(zip(partition.isr, partition.isr_epochs, strict=True)).get(member)

    def check_clean(self, number: int, before: MetadataImage, old: PartitionImage, new: PartitionImage) -> None:
        epoch = self.membership(old, new.leader)
        assert epoch is not None, "no unclean election"
        assert not before.is_stale(new.leader, TOPIC_ID, number, epoch), "a replica that lost its records does not lead"
        assert epoch == before.brokers[new.leader].epoch or not self.steady(number, before, old), (
            "members have priority over those that returned"
        )

    def steady(self, number: int, image: MetadataImage, partition: PartitionImage) -> list[int]:
        return [
            member
            for member, epoch in zip(partition.isr, partition.isr_epochs, strict=True)
            if image.broker_epoch(member) == epoch
            and image.replica_is_online(member, TOPIC_ID, number)
            and member in self.targets[number]
        ]

    # Events

    def end(self, broker_id: int) -> list[Put | Delete]:
        """The operations at the end of its lease."""
        gone = [keys.broker(broker_id), keys.shutdown(broker_id), keys.offline(broker_id)]
        return [Delete(key) for key in gone if self.engine.keys.get(key) is not None]

    @rule(broker_id=brokers)
    def die(self, broker_id: int) -> None:
        if broker_id in self.image().brokers:
            self.write(self.end(broker_id))

    @rule(broker_id=brokers, is_stale=st.booleans())
    def come_back(self, broker_id: int, is_stale: bool) -> None:
        """Register again, possibly before its lease has ended."""
        if broker_id in self.image().brokers:
            self.write(self.end(broker_id))
        operations: list[Put | Delete] = [Put(keys.broker(broker_id), encode(BrokerRecord("i", ())))]
        if is_stale:
            self.marks += 1
            operations.append(Put(keys.stale(broker_id, self.marks), encode(EVERYTHING)))
        self.write(operations)

    @rule(broker_id=brokers)
    def wants_to_stop(self, broker_id: int) -> None:
        broker = self.image().brokers.get(broker_id)
        if broker is not None:
            self.write([Put(keys.shutdown(broker_id), encode(broker.epoch))])

    @rule(broker_id=brokers, number=numbers)
    def directory_fails(self, broker_id: int, number: int) -> None:
        """A broker reports all that have failed under its registration: none works again."""
        if broker_id in self.image().brokers:
            failed = {number, *self.image().offline_replicas.get(broker_id, {}).get(TOPIC_ID, ())}
            self.write([Put(keys.offline(broker_id), encode({topic_id_text(TOPIC_ID): sorted(failed)}))])

    @rule(number=numbers, members=st.sets(brokers, min_size=1))
    def leader_changes_isr(self, number: int, members: set[int]) -> None:
        """As the leader does it.

        Fenced by its own and the members' registrations, no stopping or offline broker joins.
        """
        image = self.image()
        state = image.topics["t"].partitions[number]
        if state.leader == NO_LEADER or image.broker_epoch(state.leader) != self.membership(state, state.leader):
            return
        joins = [each for each in members if image.may_be_in_sync(each, TOPIC_ID, number) and each in state.replicas]
        isr = tuple(sorted({state.leader, *joins}))
        record = PartitionRecord(
            replicas=state.replicas,
            isr=isr,
            isr_epochs=tuple(image.brokers[member].epoch for member in isr),
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch + 1,
            adding=state.adding,
            removing=state.removing,
        )
        unchanged = Compare(keys.partition(TOPIC_ID, number), "modify", "==", state.modify_revision)
        self.write([Put(keys.partition(TOPIC_ID, number), encode(record))], (unchanged,))

    @rule(number=numbers, replicas=assignments)
    def client_reassigns(self, number: int, replicas: list[int]) -> None:
        image = self.image()
        alive = living_members(image, TOPIC_ID, number, image.topics["t"].partitions[number])
        planned = plan_reassignments(image, [Reassignment("t", number, tuple(replicas))], CLEAN)
        if planned.outcomes == [None]:
            self.targets[number] = tuple(replicas)
            self.carry_out(planned.plan)
            after = self.image().topics["t"].partitions[number]
            assert assignment_of(after).target == tuple(replicas)
            assert after.has_leader or not alive or not planned.plan.steps, "a changed reassignment keeps a leader"

    @rule(number=numbers)
    def client_cancels(self, number: int) -> None:
        before = self.image().topics["t"].partitions[number]
        planned = plan_reassignments(self.image(), [Reassignment("t", number, None)], CLEAN)
        if planned.outcomes == [None]:
            self.targets[number] = tuple(each for each in before.replicas if each not in before.adding)
            self.carry_out(planned.plan)
            after = self.image().topics["t"].partitions[number]
            assert after.replicas == self.targets[number]
            assert not after.adding
            assert not after.removing

    @rule(number=numbers, election=st.sampled_from([Election.PREFERRED, Election.UNCLEAN]))
    def client_elects(self, number: int, election: Election) -> None:
        self.unclean_is_asked = election is Election.UNCLEAN
        planned = plan_elections(self.image(), [("t", number)], election, CLEAN)
        self.carry_out(planned.plan)
        self.unclean_is_asked = False
        after = self.image().topics["t"].partitions[number]
        if planned.outcomes == [None]:
            assert after.has_leader

    @rule()
    def controller_sees(self) -> None:
        self.seen = self.image()

    @precondition(lambda self: hasattr(self, "seen"))
    @rule(rebalances=st.booleans())
    def controller_works_on_what_it_saw(self, rebalances: bool) -> None:
        self.carry_out(plan_controller_work(self.seen, CLEAN, rebalance=rebalances))

    @invariant()
    def an_up_to_date_controller_settles_everything(self) -> None:
        """On a copy: a few plans leave nothing to do, and every partition that can have a leader has one."""
        if not hasattr(self, "seen"):
            return
        copy = Engine(boot=2, revision=self.engine.revision, keys=self.engine.keys.values())
        settled = self.image()
        for _ in range(3):  # Leaders first, then preferred ones, then the marks that are not needed any more.
            for step in plan_controller_work(settled, CLEAN, rebalance=True).steps:
                staged = copy.stage()
                assert copy.evaluate(staged, step.compares, step.operations, ()).succeeded
                copy.commit(staged)
            settled = load_image(copy.range(b""), copy.revision, prefix=b"")
        assert plan_controller_work(settled, CLEAN, rebalance=True).is_empty
        for number, state in enumerate(settled.topics["t"].partitions):
            able = [member for member in state.isr if settled.replica_is_online(member, TOPIC_ID, number)]
            sound = [
                member
                for member in able
                if not settled.is_stale(member, TOPIC_ID, number, self.membership(state, member) or 0)
            ]
            assert state.has_leader == bool(sound)
            if state.has_leader:
                assert settled.replica_is_online(state.leader, TOPIC_ID, number)
                stays = [member for member in state.isr if settled.may_be_in_sync(member, TOPIC_ID, number)]
                assert state.leader in stays or not stays, "a stopping broker leads only where no other can"
                assert stays in ([], list(state.isr)), "a stopping broker leaves ISRs that have other members"


TestController = ControllerMachine.TestCase
TestController.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
