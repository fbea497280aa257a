"""Plans at their edges: the last partition, a full transaction, what is taken over, and what a broker counts."""

from __future__ import annotations

from random import Random

import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_image import StaleMark
from lowtide.metadata.changes import STEP_PARTITIONS
from lowtide.metadata.image import BrokerImage, MetadataImage
from lowtide.metadata.records import PartitionRecord, decode
from lowtide.metadata.store import ABSENT, MAX_TRANSACTION_OPERATIONS, Compare, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition, random_uuid
from lowtide.replication import topic_traffic
from lowtide.replication.deletions import plan_deletions
from lowtide.replication.elections import steady_epochs
from lowtide.replication.feature_updates import FeatureState, FeatureUpdate, UpgradeType, plan_feature_updates
from lowtide.replication.leader_moves import can_receive
from lowtide.replication.new_topics import (
    MAX_REQUEST_PARTITIONS,
    TopicSpec,
    check_new_topics,
    plan_adoption,
    plan_producer_ids_from,
)
from lowtide.replication.reassignments import find_partition
from lowtide.replication.refusal import Refusal
from lowtide.replication.replication_quota import ReplicationQuota
from lowtide.replication.sweep import plan_sweep_of_marks
from lowtide.replication.topic_traffic import TrafficTable

from .test_deletions import cluster, topic
from .test_elections import ALIVE, TOPIC_ID, image_of, partition

# Topics


def test_topic_ids_are_random_in_all_bits_but_those_of_the_version() -> None:
    random = Random(3)
    ids = [random_uuid(random.randbytes) for _ in range(1000)]
    assert {each[6] & 0x0F for each in ids} == set(range(16))
    assert {each[8] & 0x3F for each in ids} == set(range(64))
    assert any(each[6] & 0x0F != each[7] & 0x0F for each in ids)
    assert any(each[8] & 0x3F != each[9] & 0x3F for each in ids)


def test_an_impossible_number_of_partitions_counts_as_none() -> None:
    """The topic is refused for itself; the others of the request aren't refused with it."""
    assert (
        check_new_topics([TopicSpec("a", MAX_REQUEST_PARTITIONS, 1), TopicSpec("b", -5, 1)], default_partition_count=1)
        is None
    )
    assert (
        check_new_topics([TopicSpec("a", MAX_REQUEST_PARTITIONS, 1), TopicSpec("b", 1, 1)], default_partition_count=1)
        is not None
    )


@pytest.mark.parametrize("configs", [{}, {"retention.ms": "1"}])
def test_a_topic_that_is_found_on_the_disk_is_taken_over(configs: dict[str, str]) -> None:
    image = MetadataImage(brokers={4: BrokerImage(4, 40, ())})
    (step,) = plan_adoption(image, "t", TOPIC_ID, [3, 8], 4, configs).steps
    written = {put.key: put.value for put in step.operations if isinstance(put, Put)}
    records = [decode(b"", written[keys.partition(TOPIC_ID, number)], PartitionRecord) for number in (0, 1)]
    assert [(each.leader, each.leader_epoch, each.isr_epochs, each.partition_epoch) for each in records] == [
        (4, 3, (40,), 0),
        (4, 8, (40,), 0),
    ]
    assert written[keys.topic_id(TOPIC_ID)] == b"t"
    assert (keys.topic_config("t") in written) == bool(configs)
    assert step.compares == (Compare(keys.topic("t"), "create", "==", ABSENT),)


def test_producer_ids_go_on_behind_those_that_were_found() -> None:
    (step,) = plan_producer_ids_from(4000).steps
    assert step.operations == (Put(keys.NEXT_PRODUCER_ID, b"4000"),)
    assert step.compares == (Compare(keys.NEXT_PRODUCER_ID, "create", "==", ABSENT),)


def test_a_partition_is_found_by_its_number() -> None:
    image = image_of(ALIVE, partitions=(partition(), partition()))
    found = find_partition(image, "t", 1)
    assert not isinstance(found, Refusal)
    assert found[1] is image.topics["t"].partitions[1]
    for name, number in (("t", 2), ("t", -1), ("u", 0)):
        refusal = find_partition(image, name, number)
        assert isinstance(refusal, Refusal)
        assert refusal.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_of_two_transactions_is_deleted_alone() -> None:
    image, wanted = cluster(topic(0), topic(1, STEP_PARTITIONS + 1), topic(2))
    groups, refusals = plan_deletions(image, wanted)
    assert not refusals
    assert sorted((group.members, len(group.plan.steps)) for group in groups) == [((0, 2), 1), ((1,), 2)]


def test_topics_are_deleted_together_up_to_the_last_operation_of_a_transaction() -> None:
    """A topic takes four operations, and one for each partition."""
    last = MAX_TRANSACTION_OPERATIONS - 24 * 5 - 4
    for partitions, groups_count in ((last, 1), (last + 1, 2)):
        image, wanted = cluster(*(topic(number) for number in range(24)), topic(24, partitions))
        assert len(plan_deletions(image, wanted)[0]) == groups_count


# The rest


def test_a_leader_does_not_receive_its_own_partition() -> None:
    image = image_of(ALIVE, partitions=(partition((1, 2)),))
    receive = [can_receive(image, image.topics["t"], 0, broker, steady_epochs(image)) for broker in (1, 2, 3)]
    assert receive == [False, True, False]


def test_the_level_of_a_fixed_feature_may_be_asked_for_and_changes_nothing() -> None:
    fixed = FeatureState("f", 0, 2, 1, "It is fixed.")
    change = plan_feature_updates(MetadataImage(), [FeatureUpdate("f", 1, UpgradeType.UPGRADE)], {"f": fixed})
    assert not isinstance(change, Refusal)
    assert change.plan.is_empty


def test_a_mark_is_needed_for_any_partition_that_is_left() -> None:
    """Topics and partitions may be gone since."""
    gone = b"G" * 16
    image = image_of(ALIVE, partitions=(partition((1,)), partition((1, 2))))

    def swept(*replicas: tuple[bytes, set[int]], revision: int = 11) -> bool:
        mark = StaleMark(1, revision, {topic_id: frozenset(numbers) for topic_id, numbers in replicas})
        return not plan_sweep_of_marks(_with_marks(image, mark)).is_empty

    assert not swept((TOPIC_ID, {0}))
    assert not swept((gone, {0}), (TOPIC_ID, {0}))
    assert swept((gone, {0}))
    assert swept((TOPIC_ID, {2, 3}))
    assert not swept((TOPIC_ID, {1, 2}))
    assert swept((TOPIC_ID, {0}), revision=10), "it has joined since"


def _with_marks(image: MetadataImage, mark: StaleMark) -> MetadataImage:
    return MetadataImage(
        revision=image.revision,
        brokers=image.brokers,
        topics=image.topics,
        topic_names=image.topic_names,
        stale_marks={1: (mark,)},
        features=image.features,
    )


def test_a_window_of_a_quota_is_over_after_its_time() -> None:
    """What comes then begins the next one, and is forgotten later."""
    quota = ReplicationQuota(windows=2, window_ms=100)
    quota.record(10, 0)
    quota.record(10, 99)
    quota.record(10, 100)
    assert quota.total_bytes == 30
    assert quota.wait_ms(0, 199) == 1
    assert quota.wait_ms(0, 200) == 100, "the first window is forgotten"
    assert quota.wait_ms(0, 300) == 0


def test_a_rate_of_one_byte_a_second_is_a_rate() -> None:
    quota = ReplicationQuota(windows=11, window_ms=1000)
    quota.record(2, 0)
    assert quota.wait_ms(1, 0) == 2000
    assert quota.wait_ms(0, 0) == 11_000


def test_the_traffic_of_topics_comes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_traffic, "_PARTITIONS_A_STEP", 2)
    table = TrafficTable()
    assert not table.errors
    for number in range(3):
        table.of(TopicPartition("a", number)).bytes_in += 5
    table.of(TopicPartition("b", 0)).bytes_in += 7
    rows = list(table.by_topic())
    assert [row and (row[0], row[1].bytes_in) for row in rows] == [None, ("a", 15), ("b", 7)]
