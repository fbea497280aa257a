"""Plans of moves, the files that have them, and what a throttle sets."""

from __future__ import annotations

import json

import pytest

from lowtide.admin.cluster_view import Broker
from lowtide.admin.configs import ConfigResource
from lowtide.admin.move_plan import MovePlan, drained, replaced, to_replicas
from lowtide.admin.settings import Address
from lowtide.cli.moving import move_file, read_move_file, throttle_of
from lowtide.cli.outcome import CommandError
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem import OsFileSystem


def brokers(*ids: int, racks: str = "", fenced: tuple[int, ...] = ()) -> list[Broker]:
    return [
        Broker(
            broker_id=each, address=Address("h", each), rack=racks[place] if racks else None, is_fenced=each in fenced
        )
        for place, each in enumerate(ids)
    ]


def partitions(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", number): each for number, each in enumerate(replicas)}


def moved(plan: MovePlan) -> dict[int, tuple[int, ...]]:
    return {key.partition: after for key, after in plan.after.items()}


def test_a_drained_broker_has_nothing_left_and_the_others_share_it():
    """A replica is replaced at its place in the order; the broker with the fewest replicas gets the next one."""
    plan = drained(partitions((1, 2), (2, 1), (1, 3), (2, 3)), 1, brokers(1, 2, 3, 4))
    assert moved(plan) == {0: (4, 2), 1: (2, 4), 2: (4, 3)}
    assert plan.before == partitions((1, 2), (2, 1), (1, 3))
    assert not plan.problems


def test_racks_without_a_replica_come_first():
    """Broker 4 has fewest, and is in the rack of the replica that stays."""
    plan = drained(partitions((1, 2), (3, 2)), 1, brokers(1, 2, 3, 4, racks="abcb"))
    assert moved(plan) == {0: (3, 2)}


def test_what_no_broker_can_take_stays_with_the_reason():
    plan = drained(partitions((1, 2), (1,)), 1, brokers(1, 2, 3, fenced=(3,)))
    assert moved(plan) == {1: (2,)}
    assert list(plan.problems) == [TopicPartition("t", 0)]


def test_a_broker_is_replaced_at_its_place():
    plan = replaced(partitions((1, 2), (2, 1), (2, 3), (1, 4)), 1, 4)
    assert moved(plan) == {0: (4, 2), 1: (2, 4)}
    assert plan.problems == {TopicPartition("t", 3): "broker 4 has a replica of it already"}


def test_a_plan_has_only_what_changes():
    assert moved(to_replicas(partitions((1, 2), (2, 1)), [2, 1])) == {0: (2, 1)}


def test_a_throttle_holds_for_those_that_are_there_and_those_that_come():
    plan = replaced(partitions((1, 2), (2, 1)), 1, 4)
    changes = {str(each): [tuple(change)[:2] for change in some] for each, some in throttle_of(plan, 9000).items()}
    assert changes["topic t"] == [
        ("leader.replication.throttled.replicas", "0:1,0:2,1:2,1:1"),
        ("follower.replication.throttled.replicas", "0:4,1:4"),
    ]
    assert set(throttle_of(plan, 9000)) - {ConfigResource(ConfigResourceType.TOPIC, "t")} == {
        ConfigResource(ConfigResourceType.BROKER, each) for each in "124"
    }
    assert changes["broker 4"] == [
        ("leader.replication.throttled.rate", "9000"),
        ("follower.replication.throttled.rate", "9000"),
    ]


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = str(tmp_path / "undo.json")
    (tmp_path / "undo.json").write_bytes(move_file(partitions((1, 2), (3,))))
    assert read_move_file(path, OsFileSystem()) == partitions((1, 2), (3,))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "can.t be read: No such file or directory"),
        ("{", "is not a file of moves"),
        ({"partitions": [{"topic": "t", "partition": 0}]}, "missing required field `replicas`"),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}, "they must be broker ids, each once"),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}, "they must be broker ids, each once"),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}, "contains t-0 twice"),
        (
            {"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/a"]}]},
            "log_dirs of t-0 is",
        ),
        ({"partitions": [], "verison": 1}, "unknown field"),
    ],
)
def test_a_file_that_means_nothing_is_refused(tmp_path, content, reason):
    path = tmp_path / "moves.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CommandError, match=reason):
        read_move_file(str(path), OsFileSystem())
