"""Creating and deleting topics: refusals, their order, and the writes of the plans."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import BrokerImage, MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import BrokerRecord, ControllerRecord, encode
from lowtide.metadata.store import Compare, Delete, Put, check_transaction
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, random_uuid, topic_id_text
from lowtide.replication import placement
from lowtide.replication.deletions import plan_delete_topic, resolve_deletions
from lowtide.replication.new_topics import TopicCreation, TopicSpec, check_new_topics, plan_create_topic
from lowtide.replication.placement import new_partition_record
from lowtide.replication.refusal import Refusal
from lowtide.replication.sweep import plan_sweep
from lowtide.replication.topic_names import check_topic_name, repeated_names


class Cluster:
    """Live brokers, and an image that follows the plans' writes."""

    def __init__(self, broker_ids: Sequence[int] = (0,)) -> None:
        self.engine = Engine(boot=1, revision=0, keys=())
        self.random = Random(1)
        self.write([Put(keys.CONTROLLER, encode(ControllerRecord(0, 1)))])
        for broker_id in broker_ids:
            self.write([Put(keys.broker(broker_id), encode(BrokerRecord("i", ())))])

    @property
    def image(self) -> MetadataImage:
        return load_image(self.engine.range(b""), self.engine.revision, prefix=b"")

    def write(self, operations: Sequence[Put | Delete], compares: Sequence[Compare] = ()) -> bool:
        staged = self.engine.stage()
        check_transaction(compares, operations, ())
        succeeded = self.engine.evaluate(staged, compares, operations, ()).succeeded
        self.engine.commit(staged)
        return succeeded

    def make(self, plan: ChangePlan) -> bool:
        return all(self.write(step.operations, step.compares) for step in plan.steps)

    def plan(self, topic: TopicSpec, config_refusal: Refusal | None = None) -> TopicCreation | Refusal:
        return plan_create_topic(
            self.image,
            topic,
            default_partition_count=2,
            default_replication_factor=1,
            random=self.random,
            config_refusal=config_refusal,
        )

    def create(self, name: str, partitions: int = 1) -> TopicCreation:
        creation = self.plan(TopicSpec(name, partitions, 1))
        assert isinstance(creation, TopicCreation)
        assert self.make(creation.plan)
        return creation


@pytest.mark.parametrize("name", ["a", "a.b_c-D9", "__consumer_offsets", "x" * 249, "...", "-"])
def test_legal_names(name: str) -> None:
    """Kafka's alphabet and length; leading underscores are allowed."""
    assert check_topic_name(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "é", "a\n", "a\0"])
def test_illegal_names(name: str) -> None:
    """Each is INVALID_TOPIC_EXCEPTION at creation."""
    assert check_topic_name(name) is not None
    refusal = Cluster().plan(TopicSpec(name, 1, 1))
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_is_created_as_the_client_requested() -> None:
    """Counts, id, leader epoch 0, every replica in sync under its broker's epoch, configuration stored."""
    cluster = Cluster((0, 1, 2))
    creation = cluster.plan(TopicSpec("t", 3, 2, configs={"retention.ms": "1"}))
    assert isinstance(creation, TopicCreation)
    assert (creation.partition_count, creation.replication_factor) == (3, 2)
    assert cluster.make(creation.plan)
    image = cluster.image
    topic = image.topics["t"]
    assert topic.topic_id == creation.topic_id
    assert image.topic_names == {creation.topic_id: "t"}
    assert topic.configs == {"retention.ms": "1"}
    for partition in topic.partitions:
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
        assert partition.isr_epochs == tuple(image.brokers[broker_id].epoch for broker_id in partition.isr)


def test_minus_one_means_the_brokers_default() -> None:
    """In every version of the request, as in Kafka."""
    creation = Cluster().plan(TopicSpec("t", -1, -1))
    assert isinstance(creation, TopicCreation)
    assert (creation.partition_count, creation.replication_factor) == (2, 1)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (TopicSpec("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 0, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", -1, 1, [(0, [0])]), ErrorCode.INVALID_REQUEST),
        (TopicSpec("t", 1, -1, [(0, [0])]), ErrorCode.INVALID_REQUEST),
        (TopicSpec("t", -1, -1, [(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", -1, -1, [(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", -1, -1, [(0, [0, 0])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", -1, -1, [(0, [0]), (0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", -1, -1, [(0, [0]), (1, [0, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", -1, -1, [(1, [0])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", -1, -1, [(0, [0]), (2, [0])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", -1, -1, [(-1, [0])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("__cluster_metadata", 1, 1), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_refusals(topic: TopicSpec, code: ErrorCode) -> None:
    """Kafka's codes for impossible counts and assignments."""
    refusal = Cluster((0, 1)).plan(topic)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == code
    assert refusal.message


def test_assignments_are_used_as_given() -> None:
    """In any order of partitions; the first replica leads."""
    cluster = Cluster((0, 1, 2))
    creation = cluster.plan(TopicSpec("t", -1, -1, [(1, [2, 0]), (0, [1, 2])]))
    assert isinstance(creation, TopicCreation)
    assert (creation.partition_count, creation.replication_factor) == (2, 2)
    assert cluster.make(creation.plan)
    assert [(each.replicas, each.leader) for each in cluster.image.topics["t"].partitions] == [((1, 2), 1), ((2, 0), 2)]


def test_the_order_of_the_checks() -> None:
    """Existence before collision before configuration before counts, as in Kafka's controller."""
    cluster = Cluster()
    cluster.create("a.b")
    bad = Refusal(ErrorCode.INVALID_CONFIG, "bad")

    def code(topic: TopicSpec) -> ErrorCode:
        refusal = cluster.plan(topic, bad)
        assert isinstance(refusal, Refusal)
        return refusal.error_code

    assert code(TopicSpec("a.b", 0, 0)) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert code(TopicSpec("a_b", 0, 0)) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code(TopicSpec("a b", 0, 0)) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code(TopicSpec("c", 0, 0)) == ErrorCode.INVALID_CONFIG


def test_only_dots_and_underscores_collide() -> None:
    """`a.b` and `a_b` are one metric name; `a-b` is another."""
    cluster = Cluster()
    cluster.create("a.b.c")
    cluster.create("plain")
    refusal = cluster.plan(TopicSpec("a_b.c", 1, 1))
    assert isinstance(refusal, Refusal)
    assert "a.b.c" in refusal.message
    for name in ("a-b.c", "a.b.c.", "Plain"):
        assert isinstance(cluster.plan(TopicSpec(name, 1, 1)), TopicCreation)


def test_of_two_creators_one_wins() -> None:
    """Plans from the same image: the second conflicts in the store, and the first topic is complete."""
    cluster = Cluster()
    first, second = cluster.plan(TopicSpec("t", 250, 1)), cluster.plan(TopicSpec("t", 250, 1))
    assert isinstance(first, TopicCreation)
    assert isinstance(second, TopicCreation)
    assert cluster.make(first.plan)
    assert not cluster.make(second.plan)
    assert len(cluster.image.topics["t"].partitions) == 250


def test_a_topic_is_not_created_on_a_broker_that_is_gone() -> None:
    """Its ISR would have an ended registration, and no event would make the controller repair it."""
    cluster = Cluster((0, 1))
    creation = cluster.plan(TopicSpec("t", 4, 2))
    assert isinstance(creation, TopicCreation)
    cluster.write([Delete(keys.broker(1))])
    assert not cluster.make(creation.plan)
    assert "t" not in cluster.image.topics


def test_a_creation_that_was_cut_short_is_invisible_and_swept_by_the_next_controller() -> None:
    """Chunks without the record are not visible.

    The controller that creates the topic does not sweep them, the next one does.
    """
    cluster = Cluster()
    creation = cluster.plan(TopicSpec("t", 250, 1))
    assert isinstance(creation, TopicCreation)
    assert len(creation.plan.steps) == 3
    cluster.make(ChangePlan(creation.plan.steps[:-1]))
    assert "t" not in cluster.image.topics
    assert plan_sweep(cluster.image).is_empty
    cluster.write([Delete(keys.CONTROLLER)])
    cluster.write([Put(keys.CONTROLLER, encode(ControllerRecord(0, 2)))])
    assert cluster.make(plan_sweep(cluster.image))
    assert cluster.image.loose_partitions == {}
    assert plan_sweep(cluster.image).is_empty


@pytest.mark.parametrize(("brokers", "factor", "partitions"), [(1, 1, 5), (3, 1, 7), (3, 3, 9), (5, 3, 20), (6, 2, 60)])
def test_replicas_are_spread(brokers: int, factor: int, partitions: int) -> None:
    """Leaders and replicas are spread evenly, no broker has a partition twice, and a broker's followers vary."""
    cluster = Cluster(range(brokers))
    creation = plan_create_topic(
        cluster.image,
        TopicSpec("t", partitions, factor),
        default_partition_count=1,
        default_replication_factor=1,
        random=Random(5),
    )
    assert isinstance(creation, TopicCreation)
    cluster.make(creation.plan)
    placed = [each.replicas for each in cluster.image.topics["t"].partitions]
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = [sum(replicas[0] == broker_id for replicas in placed) for broker_id in range(brokers)]
    assert max(leaders) - min(leaders) <= 1
    if partitions % brokers == 0:
        loads = [sum(broker_id in replicas for replicas in placed) for broker_id in range(brokers)]
        assert max(loads) == min(loads)
    if factor < brokers and partitions >= 4 * brokers and factor > 1:
        assert len({frozenset(replicas[1:]) for replicas in placed if replicas[0] == 0}) > 1


def test_a_record_is_encoded_once_for_all_partitions_with_the_same_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand partitions have one record on a sole broker, and planning them delays all other requests."""
    made: list[tuple[int, ...]] = []

    def counted(replicas: tuple[int, ...], isr: tuple[int, ...], epochs: dict[int, int]) -> bytes:
        made.append(replicas)
        return new_partition_record(replicas, isr, epochs)

    monkeypatch.setattr(placement, "new_partition_record", counted)
    cluster = Cluster(range(3))
    assert isinstance(cluster.plan(TopicSpec("t", 1000, 2)), TopicCreation)
    assert sorted(made) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_topic_ids_are_random_uuids_that_no_tool_takes_for_an_option() -> None:
    """Version 4, and their text never starts with a dash."""
    random = Random(3)
    ids = [random_uuid(random.randbytes) for _ in range(500)]
    assert len(set(ids)) == 500
    assert all(each[6] >> 4 == 4 and each[8] >> 6 == 2 for each in ids)
    assert not any(topic_id_text(each).startswith("-") for each in ids)
    plain = [Random(seed).randbytes(16) for seed in range(500)]
    assert any(topic_id_text(each).startswith("-") for each in plain), "the rule is needed"


def test_too_many_partitions_in_one_request() -> None:
    """Ten thousand in all, defaults and assignments counted; impossible numbers are left to the check of the topic."""
    assert check_new_topics([TopicSpec("a", 9_000, 1), TopicSpec("b", -1, 1)], default_partition_count=1000) is None
    refusal = check_new_topics(
        [TopicSpec("a", 9_000, 1), TopicSpec("b", -1, 1), TopicSpec("c", 1)], default_partition_count=1000
    )
    assert refusal is not None
    assert refusal.error_code == ErrorCode.POLICY_VIOLATION
    assert check_new_topics([TopicSpec("a", -5_000_000, 1)], default_partition_count=1) is None
    assert check_new_topics([TopicSpec("a", -1, -1, [(0, [0])] * 10_001)], default_partition_count=1) is not None


def test_repeated_names() -> None:
    """Each is one row with INVALID_REQUEST, which the handler builds from this."""
    assert repeated_names(["a", "b", "a", "c", "b", "a"]) == {"a", "b"}


def test_a_deleted_topic_leaves_nothing() -> None:
    """All its keys are deleted, in as many steps as needed, the record in the first.

    A tombstone stays, and so do other topics.
    """
    cluster = Cluster()
    cluster.create("kept")
    before = set(cluster.engine.keys)
    cluster.create("t", 250)
    topic_id = cluster.image.topics["t"].topic_id
    plan = plan_delete_topic(cluster.image.topics["t"])
    assert len(plan.steps) == 3
    assert cluster.write(plan.steps[0].operations, plan.steps[0].compares)
    assert list(cluster.image.topics) == ["kept"]
    assert list(cluster.image.deleted_topics) == [topic_id], "by the transaction that deletes the topic"
    assert cluster.make(ChangePlan(plan.steps[1:]))
    assert set(cluster.engine.keys) == before | {keys.deleted_topic(topic_id)}


def test_a_re_created_topic_is_not_deleted_by_an_old_plan() -> None:
    """A deletion decided for the earlier topic of that name conflicts."""
    cluster = Cluster()
    cluster.create("t")
    plan = plan_delete_topic(cluster.image.topics["t"])
    assert cluster.make(plan)
    cluster.create("t")
    assert not cluster.make(plan)
    assert "t" in cluster.image.topics


def test_which_topics_a_deletion_names() -> None:
    """By name or by id, one row each: Kafka's codes for none, both, unknown and repeated ones."""
    cluster = Cluster()
    ids = {name: cluster.create(name).topic_id for name in ("a", "b", "c", "d")}
    unknown = b"u" * 16
    rows = resolve_deletions(
        cluster.image,
        [
            ("a", ZERO_TOPIC_ID),
            (None, ids["b"]),
            ("nobody", ZERO_TOPIC_ID),
            (None, unknown),
            (None, ZERO_TOPIC_ID),
            ("c", ids["c"]),
            ("d", ZERO_TOPIC_ID),
            ("d", ZERO_TOPIC_ID),
            ("not a name!", ZERO_TOPIC_ID),
        ],
    )
    found = [
        (row.name, row.topic_id, row.refusal.error_code if row.refusal else row.topic and row.topic.name)
        for row in rows
    ]
    assert found == [
        ("a", ids["a"], "a"),
        ("b", ids["b"], "b"),
        ("nobody", ZERO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, ZERO_TOPIC_ID, ErrorCode.INVALID_REQUEST),
        ("c", ids["c"], ErrorCode.INVALID_REQUEST),
        ("d", ZERO_TOPIC_ID, ErrorCode.INVALID_REQUEST),
        ("not a name!", ZERO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_a_topic_named_by_name_and_by_id_in_two_rows_is_not_deleted() -> None:
    """One row with INVALID_REQUEST, the topic stays."""
    cluster = Cluster()
    topic_id = cluster.create("a").topic_id
    (row,) = resolve_deletions(cluster.image, [(None, topic_id), ("a", ZERO_TOPIC_ID)])
    assert row.refusal is not None
    assert (row.refusal.error_code, row.topic) == (ErrorCode.INVALID_REQUEST, None)


def test_plans_fit_the_store_for_many_brokers() -> None:
    """Two hundred brokers and a thousand partitions: every step stays within etcd's limits, fences included."""
    brokers = {broker_id: BrokerImage(broker_id, broker_id + 1, ()) for broker_id in range(200)}
    image = MetadataImage(revision=300, brokers=brokers)
    creation = plan_create_topic(
        image,
        TopicSpec("t", 1000, 3, configs={"a": "b"}),
        default_partition_count=1,
        default_replication_factor=1,
        random=Random(1),
    )
    assert isinstance(creation, TopicCreation)
    fences = [Compare(b"broker", "create", "==", 1), Compare(b"controller", "create", "==", 1)]
    for step in creation.plan.steps:
        check_transaction([*step.compares, *fences], step.operations, ())
