"""Traffic is counted by partition, and summed by topic."""

from __future__ import annotations

from lowtide.protocol.types import TopicPartition
from lowtide.replication import topic_traffic
from lowtide.replication.topic_traffic import TrafficTable


def test_partitions_of_a_topic_are_added_up() -> None:
    """In the order of the topics; a partition that returns continues to count where it was."""
    table = TrafficTable()
    for name, number, count in (("b", 0, 1), ("a", 0, 2), ("a", 1, 3), ("a", 1, 4)):
        table.of(TopicPartition(name, number)).bytes_in += count
    assert table.of_topic("a").bytes_in == 9
    assert [(each[0], each[1].bytes_in) for each in table.by_topic() if each] == [("a", 9), ("b", 1)]
    assert table.of_topic("c").bytes_in == 0


def test_a_topic_that_is_gone_stays_in_the_sum() -> None:
    """Each of its numbers, and nothing of the others."""
    table = TrafficTable()
    traffic = table.of(TopicPartition("a", 0))
    for number, name in enumerate(traffic.__slots__, 1):
        setattr(traffic, name, number)
    table.of(TopicPartition("b", 0)).bytes_in = 100
    table.forget("a")
    assert [getattr(table.unnamed, name) for name in traffic.__slots__] == list(range(1, len(traffic.__slots__) + 1))
    assert [each[0] for each in table.by_topic() if each] == ["b"]


def test_a_step_adds_up_no_more_than_others_can_wait_for() -> None:
    """A topic of many partitions takes several, and one that is deleted meanwhile is left out."""
    table = TrafficTable()
    for number in range(2 * topic_traffic._PARTITIONS_A_STEP + 1):
        table.of(TopicPartition("a", number)).bytes_in = 1
    table.of(TopicPartition("b", 0)).bytes_in = 1
    steps = [each and (each[0], each[1].bytes_in) for each in table.by_topic()]
    assert steps == [None, None, ("a", 2 * topic_traffic._PARTITIONS_A_STEP + 1), ("b", 1)]
    looking = table.by_topic()
    next(looking)
    table.forget("a")
    assert [each and each[0] for each in looking] == [None, "b"]
