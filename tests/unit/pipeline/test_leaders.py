"""Metadata of several brokers is merged, although some responses are older than known ones."""

from __future__ import annotations

from lowtide.pipeline.leaders import LeaderCache
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition

ID, OTHER_ID = b"i" * 16, b"j" * 16
PLACE = TopicPartition("t", 0)


def answer(
    *leaders: tuple[int, int], topic_id: bytes = ID, error_code: int = 0, brokers: tuple[int, ...] = (1, 2, 3)
) -> MetadataResponse:
    """Partitions 0, 1, ... of topic `t`, each with its leader and the leader's epoch."""
    partitions = [
        MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=[],
            isr_nodes=[],
            offline_replicas=[],
        )
        for index, (leader, epoch) in enumerate(leaders)
    ]
    topic = MetadataResponseTopic(
        error_code=error_code, name="t", topic_id=topic_id, is_internal=False, partitions=partitions
    )
    known = [MetadataResponseBroker(node_id=broker, host=f"b{broker}", port=9092, rack=None) for broker in brokers]
    return MetadataResponse(brokers=known, cluster_id=None, controller_id=1, topics=[topic])


def learned(*answers: MetadataResponse) -> LeaderCache:
    leaders = LeaderCache()
    for each in answers:
        leaders.learn(each)
    return leaders


def test_a_leader_of_an_older_epoch_is_ignored():
    leaders = learned(answer((2, 5)), answer((1, 4)))
    assert leaders.of(PLACE) == (2, 5)
    leaders.learn(answer((3, 6)))
    assert leaders.of(PLACE) == (3, 6)


def test_a_partition_that_a_broker_does_not_know_stays_known():
    assert learned(answer((1, 0), (2, 0)), answer((1, 0))).partition_count("t") == 2


def test_a_re_created_topic_replaces_the_old_one():
    leaders = learned(answer((2, 5), (2, 5)), answer((1, 0), topic_id=OTHER_ID))
    assert (leaders.of(PLACE), leaders.partition_count("t")) == ((1, 0), 1)


def test_without_ids_and_epochs_the_last_answer_counts():
    leaders = learned(answer((2, -1), (2, -1), topic_id=ZERO_TOPIC_ID), answer((1, -1), topic_id=ZERO_TOPIC_ID))
    assert (leaders.of(PLACE), leaders.partition_count("t")) == ((1, -1), 1)


def test_a_partition_whose_leader_is_gone_or_out_of_reach_has_none():
    leaders = learned(answer((-1, 7), (9, 7), (1, 7)))
    assert leaders.of(PLACE) is None
    assert leaders.available("t") == [2]
    assert learned(answer((-1, 7), (-1, 7))).available("t") == [0, 1]


def test_known_leaders_survive_an_error_but_not_the_topic():
    leaders = learned(answer((1, 0)), answer(error_code=ErrorCode.LEADER_NOT_AVAILABLE))
    assert leaders.of(PLACE) == (1, 0)
    assert leaders.problems == {"t": ErrorCode.LEADER_NOT_AVAILABLE}
    leaders.learn(answer(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert leaders.of(PLACE) is None
    leaders.learn(answer((1, 0)))
    assert leaders.problems == {}
