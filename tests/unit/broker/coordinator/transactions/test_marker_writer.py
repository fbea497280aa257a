"""Markers in a coordinator's partitions: none while its log is loaded; its state gets each at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.transactions.marker_writer import MarkerWriter, TransactionEnd
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition

END = TransactionEnd(7, 3, is_commit=True, coordinator_epoch=0, epoch_is_bumped=False)
GROUPS, OTHER = TopicPartition("groups", 0), TopicPartition("t", 0)


class World:
    """Partitions that this broker leads, and the state that one of them has; `events` are in order."""

    def __init__(
        self, *, may_mark: bool = True, refusal: ErrorCode | None = None, is_alone: bool = False, **partition: Any
    ) -> None:
        """`is_alone`: what is appended is committed with that. `partition` is what is special about the partitions."""
        self.may, self.refusal, self.is_alone = may_mark, refusal, is_alone
        self.partition = {"is_leader": True, "has_enough_in_sync": True} | partition
        self.unknown: ErrorCode | None = None
        self.events: list[Any] = []
        self.writer = MarkerWriter(self, SimpleNamespace(wall_ms=lambda: 1), self)

    def find(self, topic: str, number: int) -> Any:
        log = SimpleNamespace(high_watermark=42 if self.is_alone else 41, flush_is_due=False)
        return self.unknown or SimpleNamespace(topic_partition=TopicPartition(topic, number), log=log, **self.partition)

    def append(self, partition: Any, _marker: Any, _now_ms: int) -> Any:
        self.events.append(("appended", partition.topic_partition))
        return self.refusal if self.refusal is not None else SimpleNamespace(base_offset=41, last_offset=41)

    def when_committed(self, partition: Any, offset: int, callback: Any, *, timeout_ms: int) -> None:
        self.events.append(("waits", partition.topic_partition, offset))
        callback(ErrorCode.NONE)

    def is_kept_in(self, topic: str) -> bool:
        return topic == GROUPS.topic

    def may_mark(self, partition: Any) -> bool:
        return self.may

    def note_marker(self, partition: Any, marker: Any, offset: int) -> None:
        assert marker.producer_id == END.producer_id
        self.events.append(("noted", partition.topic_partition, offset))

    def write(self, key: TopicPartition) -> ErrorCode:
        told: list[ErrorCode] = []
        self.writer.write(END, [key], lambda _key, error: told.append(error), timeout_ms=1)
        [error] = told
        return error


def test_the_state_receives_a_marker_before_anything_else_runs() -> None:
    world = World()
    assert world.write(GROUPS) == ErrorCode.NONE
    assert world.events == [("appended", GROUPS), ("noted", GROUPS, 41), ("waits", GROUPS, 42)]


def test_a_marker_that_is_committed_with_its_append_waits_for_nothing() -> None:
    world = World(is_alone=True)
    assert (world.write(GROUPS), world.write(OTHER)) == (ErrorCode.NONE, ErrorCode.NONE)
    assert world.events == [("appended", GROUPS), ("noted", GROUPS, 41), ("appended", OTHER)]
    world = World(is_alone=True, may_mark=False)
    assert world.write(GROUPS) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.events == []


def test_no_marker_is_appended_while_it_could_be_missed() -> None:
    world = World(may_mark=False)
    assert world.write(GROUPS) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.events == []
    assert world.write(OTHER) == ErrorCode.NONE


@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_marker_that_is_refused_does_not_reach_the_state(error: ErrorCode) -> None:
    world = World(refusal=error)
    assert world.write(GROUPS) == error
    assert world.events == [("appended", GROUPS)]


def test_markers_in_other_partitions_are_ignored() -> None:
    world = World()
    assert world.write(OTHER) == ErrorCode.NONE
    assert world.events == [("appended", OTHER), ("waits", OTHER, 42)]


def test_a_partition_that_is_not_here_or_not_led_here_or_has_too_few_in_sync_gets_no_marker() -> None:
    world = World()
    world.unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.write(OTHER) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for key in (GROUPS, OTHER):
        world = World(is_leader=False, is_alone=True)
        assert world.write(key) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert world.events == []
    world = World(has_enough_in_sync=False)
    assert world.write(OTHER) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.events == []
