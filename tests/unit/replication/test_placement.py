"""Placement of replicas: over racks first, over brokers second, on dead brokers last, and never on a stopping one."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.metadata import keys
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import PartitionRecord, decode
from lowtide.metadata.store import ABSENT, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.new_partitions import NewPartitions, plan_new_partitions
from lowtide.replication.new_topics import TopicCreation, TopicSpec, plan_create_topic
from lowtide.replication.placement import check_replicas, place_replicas
from lowtide.replication.refusal import Refusal
from lowtide.replication.unregistration import plan_unregistration

NOBODY: frozenset[int] = frozenset()


def image_of(
    racks: dict[int, str | None],
    *,
    stopping: frozenset[int] = NOBODY,
    dead: frozenset[int] = NOBODY,
    cordoned: frozenset[int] = NOBODY,
) -> MetadataImage:
    known = {
        broker_id: BrokerImage(
            broker_id,
            100 + broker_id,
            (),
            rack,
            in_controlled_shutdown=broker_id in stopping,
            is_cordoned=broker_id in cordoned,
        )
        for broker_id, rack in racks.items()
    }
    return MetadataImage(
        revision=1000, brokers={number: known[number] for number in known if number not in dead}, known_brokers=known
    )


def placed(image: MetadataImage, count: int, factor: int, seed: int = 1) -> list[tuple[int, ...]]:
    rows = place_replicas(image, count, factor, Random(seed))
    assert isinstance(rows, list)
    return rows


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    factor=st.integers(1, 9),
    count=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_any_cluster(racks: list[str | None], factor: int, count: int, seed: int) -> None:
    """Every partition has `factor` different brokers, over as many racks as there can be."""
    image = image_of(dict(enumerate(racks)))
    rows = place_replicas(image, count, factor, Random(seed))
    if factor > len(racks):
        assert isinstance(rows, Refusal)
        assert rows.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        return
    assert isinstance(rows, list)
    for replicas in rows:
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[broker_id] for broker_id in replicas}) == min(factor, len(set(racks)))


@given(
    racks=st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=9),
    factor=st.integers(1, 9),
    count=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_any_cluster_with_dead_brokers(
    racks: list[tuple[str | None, bool]], factor: int, count: int, seed: int
) -> None:
    """The leader is live; a rack's dead brokers come after its live ones.

    Only as many replicas as there are known brokers, live or not.
    """
    dead = frozenset(number for number, (_, is_dead) in enumerate(racks) if is_dead)
    image = image_of({number: rack for number, (rack, _) in enumerate(racks)}, dead=dead)
    rows = place_replicas(image, count, factor, Random(seed))
    if factor > len(racks) or len(dead) == len(racks):
        assert isinstance(rows, Refusal)
        assert rows.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        return
    assert isinstance(rows, list)
    for replicas in rows:
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] not in dead
        for place, broker_id in enumerate(replicas):
            if broker_id in dead:
                others = {
                    number
                    for number, (rack, _) in enumerate(racks)
                    if rack == racks[broker_id][0] and number not in dead
                }
                assert others <= set(replicas[:place])


def test_racks_and_brokers_get_the_same_share() -> None:
    """Three racks of three.

    Leaders are spread evenly over the racks, replicas over the brokers, and no two brokers are always paired.
    """
    rows = placed(image_of({number: "abc"[number % 3] for number in range(9)}), 90, 3)
    leaders, loads = Counter(row[0] for row in rows), Counter(broker_id for row in rows for broker_id in row)
    assert max(loads.values()) - min(loads.values()) <= 4
    assert set(Counter(broker_id % 3 for broker_id in leaders.elements()).values()) == {30}
    for broker_id in range(9):
        assert len({frozenset(row) for row in rows if broker_id in row}) > 3


def test_a_dead_brokers_leaderships_spread() -> None:
    """The next replicas of one broker's partitions are spread over all other brokers."""
    rows = placed(image_of(dict.fromkeys(range(5))), 100, 3)
    heirs = Counter(row[1] for row in rows if row[0] == 0)
    assert len(heirs) == 4


def test_a_broker_that_is_stopping_gets_no_replica() -> None:
    """It does not count for the replication factor either."""
    image = image_of(dict.fromkeys(range(4)), stopping=frozenset({2}))
    assert 2 not in {broker_id for row in placed(image, 20, 3) for broker_id in row}
    refusal = place_replicas(image, 1, 4, Random(1))
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("dead", [NOBODY, frozenset({2})])
def test_a_broker_with_only_cordoned_directories_gets_no_replica(dead: frozenset[int]) -> None:
    """KIP-1066. It keeps those that it has, and a client can't choose it for others."""
    image = image_of(dict.fromkeys(range(1, 4)), cordoned=frozenset({2}), dead=dead)
    assert {broker for row in placed(image, 20, 2) for broker in row} == {1, 3}
    refusal = place_replicas(image, 1, 3, Random(1))
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    everywhere = place_replicas(image_of({1: None}, cordoned=frozenset({1})), 1, 1, Random(1))
    assert isinstance(everywhere, Refusal)
    assert "cordoned" in everywhere.message
    if not dead:
        assert "all its log directories are cordoned" in (check_replicas(image, 0, [1, 2], None) or "")
        assert check_replicas(image, 0, [1, 2], None, known=[2]) is None


def test_chosen_replicas_that_are_stopping_begin_out_of_sync() -> None:
    """As in Kafka: the partition is created where the client chose, with another leader.

    If all chosen brokers stop it is refused.
    """
    image = image_of(dict.fromkeys(range(3)), stopping=frozenset({0, 1}))

    def plan(assignments: list[tuple[int, list[int]]]) -> TopicCreation | Refusal:
        topic = TopicSpec("t", assignments=assignments)
        return plan_create_topic(
            image, topic, default_partition_count=1, default_replication_factor=1, random=Random(1)
        )

    made = plan([(0, [0, 2, 1])])
    assert isinstance(made, TopicCreation)
    (value,) = [operation.value for operation in made.plan.steps[0].operations if operation.key.startswith(b"parts/")]
    assert b'"replicas":[0,2,1],"isr":[2],"isr_epochs":[102],"leader":2' in value
    refusal = plan([(0, [0, 1])])
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("replicas", [[0, 1], [1, 0]])
def test_new_partitions_are_checked_the_same_way(replicas: list[int]) -> None:
    """Growing a topic onto brokers that are all stopping is refused too."""
    topic = TopicImage("t", b"T" * 16, (PartitionImage((0, 2), (2,), (102,), 2, 0, 0, 1),), {}, 1)
    image = image_of(dict.fromkeys(range(3)), stopping=frozenset({0, 1}))
    image = MetadataImage(revision=1000, brokers=image.brokers, topics={"t": topic}, topic_names={topic.topic_id: "t"})
    refusal = plan_new_partitions(image, NewPartitions("t", 2, [replicas]), random=Random(1))
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_topic_is_created_while_a_broker_is_dead(dead: int) -> None:
    """It has a replica on it, out of sync.

    The plan fails if it is unregistered, or if another one fails, at the same time.
    """
    image = image_of(dict.fromkeys(range(3)), dead=frozenset({dead}))
    made = plan_create_topic(
        image, TopicSpec("t", 3, 3), default_partition_count=1, default_replication_factor=1, random=Random(1)
    )
    assert isinstance(made, TopicCreation)
    (step,) = made.plan.steps
    for operation in step.operations:
        if isinstance(operation, Put) and operation.key.startswith(b"parts/"):
            record = decode(operation.key, operation.value, PartitionRecord)
            assert sorted(record.replicas) == [0, 1, 2]
            assert set(record.isr) == {0, 1, 2} - {dead}
            assert record.leader == record.isr[0] == record.replicas[0]
            assert record.isr_epochs == tuple(100 + member for member in record.isr)
    assert Compare(keys.known_broker(dead), "create", "!=", ABSENT) in step.compares
    alive = [compare.key for compare in step.compares if compare.key.startswith(b"brokers/")]
    assert alive == [keys.broker(number) for number in range(3) if number != dead]


def test_chosen_replicas_may_be_dead_but_not_all_of_them() -> None:
    """As in Kafka; an unknown broker is refused, whatever the others are."""
    image = image_of(dict.fromkeys(range(3)), dead=frozenset({0, 1}))

    def code(*replicas: int) -> ErrorCode:
        topic = TopicSpec("t", assignments=[(0, replicas)])
        planned = plan_create_topic(
            image, topic, default_partition_count=1, default_replication_factor=1, random=Random(1)
        )
        return planned.error_code if isinstance(planned, Refusal) else ErrorCode.NONE

    assert code(0, 2, 1) == ErrorCode.NONE
    assert code(0, 1) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert code(2, 3) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_new_partitions_may_be_on_dead_brokers() -> None:
    topic = TopicImage("t", b"T" * 16, (PartitionImage((0, 1, 2), (2,), (102,), 2, 0, 0, 1),), {}, 1)
    image = image_of(dict.fromkeys(range(3)), dead=frozenset({0}))
    image = msgspec.structs.replace(image, topics={"t": topic}, topic_names={topic.topic_id: "t"})
    for assignments in (None, [[0, 1, 2]]):
        planned = plan_new_partitions(image, NewPartitions("t", 2, assignments), random=Random(1))
        assert not isinstance(planned, Refusal)
        (value,) = [
            operation.value for operation in planned.plan.steps[0].operations if operation.key.startswith(b"parts/")
        ]
        assert set(decode(b"", value, PartitionRecord).isr) == {1, 2}


def test_a_dead_broker_can_be_unregistered() -> None:
    """Only if it is still dead, and has not returned meanwhile; live or unknown ones are refused."""
    image = image_of(dict.fromkeys(range(3)), dead=frozenset({0}))
    planned = plan_unregistration(image, 0)
    assert not isinstance(planned, Refusal)
    (step,) = planned.plan.steps
    assert step.operations == (Delete(keys.known_broker(0)),)
    assert step.compares == (
        Compare(keys.broker(0), "create", "==", ABSENT),
        Compare(keys.known_broker(0), "modify", "==", 100),
    )
    codes = [
        refusal.error_code
        for refusal in (plan_unregistration(image, 1), plan_unregistration(image, 7))
        if isinstance(refusal, Refusal)
    ]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.BROKER_ID_NOT_REGISTERED]


@pytest.mark.parametrize("seed", range(6))
def test_a_rack_whose_brokers_are_dead_leads_nothing_and_is_used_like_others(seed: int) -> None:
    """Whichever rack's turn it is, the replicas of a partition are in as many racks as there are."""
    racks = {0: "a", 1: "b", 2: "b", 3: "c", 4: "c"}
    image = image_of(racks, dead=frozenset({0}))
    for replicas in placed(image, 12, 3, seed):
        assert {racks[broker_id] for broker_id in replicas} == {"a", "b", "c"}
        assert replicas[0] != 0
    assert placed(image_of({0: "a", 1: "b"}, dead=frozenset({0})), 4, 2, seed) == [(1, 0)] * 4


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [2, 4])
def test_racks_lead_in_turn(seed: int, count: int) -> None:
    racks = dict(enumerate("abcd"[:count]))
    assert Counter(replicas[0] for replicas in placed(image_of(racks), count, 1, seed)) == dict.fromkeys(racks, 1)
