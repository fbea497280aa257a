"""Adding partitions: refusals, their order, and the writes of the plans."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import BrokerRecord, ControllerRecord, encode
from lowtide.metadata.store import Compare, Delete, Put, check_transaction
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.deletions import plan_deletion, resolve_deletions
from lowtide.replication.new_partitions import NewPartitions, TopicGrowth, plan_new_partitions
from lowtide.replication.new_topics import TopicCreation, TopicSpec, plan_create_topic
from lowtide.replication.refusal import Refusal
from lowtide.replication.sweep import plan_sweep


class Cluster:
    """Three brokers, a topic `t` of two partitions with two replicas each, and an image that follows plans' writes."""

    def __init__(self) -> None:
        self.engine = Engine(boot=1, revision=0, keys=())
        self.random = Random(1)
        self.write([Put(keys.CONTROLLER, encode(ControllerRecord(0, 1)))])
        for broker_id in (0, 1, 2):
            self.write([Put(keys.broker(broker_id), encode(BrokerRecord("i", ())))])
        creation = plan_create_topic(
            self.image,
            TopicSpec("t", 2, 2),
            default_partition_count=1,
            default_replication_factor=1,
            random=self.random,
        )
        assert isinstance(creation, TopicCreation)
        assert self.make(creation.plan)

    @property
    def image(self) -> MetadataImage:
        return load_image(self.engine.range(b""), self.engine.revision, prefix=b"")

    @property
    def topic(self) -> TopicImage:
        return self.image.topics["t"]

    def write(self, operations: Sequence[Put | Delete], compares: Sequence[Compare] = ()) -> bool:
        staged = self.engine.stage()
        check_transaction(compares, operations, ())
        succeeded = self.engine.evaluate(staged, compares, operations, ()).succeeded
        self.engine.commit(staged)
        return succeeded

    def make(self, plan: ChangePlan) -> bool:
        return all(self.write(step.operations, step.compares) for step in plan.steps)

    def plan(self, wanted: NewPartitions, room: int = 10_000) -> TopicGrowth | Refusal:
        return plan_new_partitions(self.image, wanted, random=self.random, room=room)

    def growth(self, count: int) -> TopicGrowth:
        growth = self.plan(NewPartitions("t", count))
        assert isinstance(growth, TopicGrowth)
        return growth


def test_new_partitions_have_as_many_replicas_as_the_first() -> None:
    """All are in sync with leader epoch 0; the existing ones do not change."""
    cluster = Cluster()
    before = cluster.topic
    growth = cluster.growth(7)
    assert growth.added == 5
    assert cluster.make(growth.plan)
    after = cluster.topic
    assert after.topic_id == before.topic_id
    assert after.partitions[:2] == before.partitions
    assert len(after.partitions) == 7
    for partition in after.partitions[2:]:
        assert len(set(partition.replicas)) == 2
        assert partition.isr == partition.replicas
        assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (partition.replicas[0], 0, 0)
        assert partition.isr_epochs == tuple(cluster.image.brokers[broker_id].epoch for broker_id in partition.isr)
    leaders = [partition.leader for partition in after.partitions[2:]]
    assert max(map(leaders.count, (0, 1, 2))) - min(map(leaders.count, (0, 1, 2))) <= 1


def test_assignments_are_used_in_their_order() -> None:
    cluster = Cluster()
    growth = cluster.plan(NewPartitions("t", 4, [[2, 0], [1, 2]]))
    assert isinstance(growth, TopicGrowth)
    assert cluster.make(growth.plan)
    assert [partition.replicas for partition in cluster.topic.partitions[2:]] == [(2, 0), (1, 2)]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewPartitions("nobody", -1, [[9]]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("not a name", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("t", 2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 1, [[9]]), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 0), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", -5), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("t", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[0, 1], [1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 2**31 - 1, [[0, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[0, 9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[1, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 3, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 4, [[0, 1], [0, 1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("t", 10_003), ErrorCode.POLICY_VIOLATION),
        (NewPartitions("t", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
    ],
)
def test_refusals(wanted: NewPartitions, code: ErrorCode) -> None:
    """Kafka's codes, in the order of its checks."""
    refusal = Cluster().plan(wanted)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == code
    assert refusal.message


def test_the_largest_request() -> None:
    """Ten thousand partitions are added by one request; fewer if it grows other topics too."""
    cluster = Cluster()
    assert cluster.growth(10_002).added == 10_000
    refusal = cluster.plan(NewPartitions("t", 5), room=2)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.POLICY_VIOLATION


def test_too_few_live_brokers() -> None:
    """The topic has two replicas each; with one broker left there is no broker for the second."""
    cluster = Cluster()
    cluster.write([Delete(keys.broker(0)), Delete(keys.broker(1))])
    refusal = cluster.plan(NewPartitions("t", 3))
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_partitions_become_visible_together() -> None:
    """Partitions of the first steps do not count until the last step is written."""
    cluster = Cluster()
    steps = cluster.growth(252).plan.steps
    assert len(steps) == 3
    for step in steps[:-1]:
        assert cluster.write(step.operations, step.compares)
        assert len(cluster.topic.partitions) == 2
    assert cluster.write(steps[-1].operations, steps[-1].compares)
    assert len(cluster.topic.partitions) == 252


def test_of_two_growths_one_succeeds_wherever_the_other_is() -> None:
    """The overtaken plan conflicts in its next step, and no partition with a leader is written again."""
    for overtaken_after in range(3):
        cluster = Cluster()
        slow, quick = cluster.growth(252), cluster.growth(5)
        assert all(cluster.write(step.operations, step.compares) for step in slow.plan.steps[:overtaken_after])
        assert cluster.make(quick.plan)
        served = cluster.topic
        assert len(served.partitions) == 5
        assert not cluster.make(ChangePlan(slow.plan.steps[overtaken_after:]))
        assert cluster.topic == served
        assert cluster.make(cluster.growth(150).plan)
        assert cluster.topic.partitions[:5] == served.partitions
        assert len(cluster.topic.partitions) == 150


def test_a_topic_that_is_deleted_does_not_grow() -> None:
    """The plan conflicts, and leaves nothing that would be counted when the name is used again."""
    cluster = Cluster()
    growth = cluster.growth(252)
    first, *rest = growth.plan.steps
    assert cluster.write(first.operations, first.compares)
    (row,) = resolve_deletions(cluster.image, [("t", bytes(16))])
    deletion = plan_deletion(cluster.image, row)
    assert isinstance(deletion, ChangePlan)
    assert cluster.make(deletion)
    assert not cluster.make(ChangePlan(tuple(rest)))
    assert [key for key in cluster.engine.keys if key.startswith(keys.PARTITIONS)] == []


def test_partitions_are_not_added_on_a_broker_that_is_gone() -> None:
    cluster = Cluster()
    growth = cluster.growth(5)
    cluster.write([Delete(keys.broker(1))])
    assert not cluster.make(growth.plan)
    assert len(cluster.topic.partitions) == 2


def test_leftovers_are_swept_by_the_next_controller_but_not_from_under_a_growth() -> None:
    """A sweep conflicts if a growth wrote the same partitions after its decision."""
    cluster = Cluster()
    first = cluster.growth(252).plan.steps[0]
    assert cluster.write(first.operations, first.compares)
    assert plan_sweep(cluster.image).is_empty, "this controller may be about to write the next step"
    cluster.write([Delete(keys.CONTROLLER)])
    cluster.write([Put(keys.CONTROLLER, encode(ControllerRecord(0, 2)))])
    sweep = plan_sweep(cluster.image)
    assert cluster.make(cluster.growth(5).plan)
    assert not cluster.make(sweep)
    assert len(cluster.topic.partitions) == 5
    assert cluster.make(plan_sweep(cluster.image))
    assert cluster.image.loose_partitions == {}
    assert len(cluster.topic.partitions) == 5


def test_plans_fit_the_store_for_many_brokers() -> None:
    """Two hundred brokers and a thousand partitions: every step stays within etcd's limits, fences included."""
    brokers = {broker_id: BrokerImage(broker_id, broker_id + 1, ()) for broker_id in range(200)}
    partition = PartitionImage((0, 1, 2), (0, 1, 2), (1, 2, 3), 0, 0, 0, 300)
    topic = TopicImage("t", b"i" * 16, (partition,), {}, 300)
    image = MetadataImage(revision=300, brokers=brokers, topics={"t": topic}, topic_names={topic.topic_id: "t"})
    growth = plan_new_partitions(image, NewPartitions("t", 1001), random=Random(1))
    assert isinstance(growth, TopicGrowth)
    fences = [Compare(b"broker", "create", "==", 1), Compare(b"controller", "create", "==", 1)]
    for step in growth.plan.steps:
        check_transaction([*step.compares, *fences], step.operations, ())
