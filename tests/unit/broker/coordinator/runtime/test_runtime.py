"""The coordinators' runtime and failed appends: the state agrees with the log."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, Shard
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommits, OffsetCommitValue
from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.log_values import AppendedBatch
from lowtide.storage.log.validation.validator import ValidatedBatch

TOPIC = "__consumer_offsets"


class Replicas:
    """One partition that is led here, whose log accepts so many batches and then refuses them."""

    def __init__(self, *, takes: int, max_message_bytes: int) -> None:
        self.takes = takes
        self.log = SimpleNamespace(
            log_start_offset=0, log_end_offset=0, high_watermark=0, offline=False, flush_is_due=False,
            config=SimpleNamespace(max_message_bytes=max_message_bytes),
        )  # fmt: skip
        self.partition: Any = SimpleNamespace(
            topic_partition=TopicPartition(TOPIC, 0),
            log=self.log,
            led_since=0,
            is_leader=True,
            leadership=None,
            has_enough_in_sync=True,
        )

    def find(self, _topic: str, _partition: int) -> Any:
        return self.partition

    def append(self, _partition: Any, batch: ValidatedBatch, _now_ms: int) -> AppendedBatch | ErrorCode:
        if not self.takes:
            return ErrorCode.RECORD_LIST_TOO_LARGE
        self.takes -= 1
        base_offset = self.log.log_end_offset
        self.log.log_end_offset = self.log.high_watermark = base_offset + batch.record_count
        return AppendedBatch(base_offset, self.log.log_end_offset - 1, -1)


class World:
    """A runtime over that partition."""

    def __init__(self, *, takes: int, max_message_bytes: int = 1 << 20) -> None:
        self.replicas = Replicas(takes=takes, max_message_bytes=max_message_bytes)
        loop: Any = SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
        self.runtime: CoordinatorRuntime[Groups] = CoordinatorRuntime(
            CoordinatedTopic(name=TOPIC, make_state=lambda: Groups(GroupSettings(), random.Random(1))),
            replicas=self.replicas,
            clock=SimpleNamespace(monotonic_ms=lambda: 0, wall_ms=lambda: 1_000),
            loop=loop,
            worker=None,  # an empty log needs no reading
            log=SimpleNamespace(warning=lambda *_, **__: None),
        )
        found = self.runtime.find(0)
        assert isinstance(found, Shard)
        self.shard = found

    def commit(self, count: int) -> ErrorCode:
        """Commits offsets of so many partitions. Returns the error code of the response."""
        told: list[ErrorCode] = []
        effects = self.runtime.effects()
        values = [
            (number, OffsetCommitValue(offset=number, metadata="m" * 100, commit_timestamp=1_000))
            for number in range(count)
        ]
        effects.keep_offsets(OffsetCommits("g", "t", values, 100 * count))
        effects.then.append(lambda error, _: told.append(error))
        self.runtime.carry_out(self.shard, effects)
        [error] = told
        return error


def test_commits_in_several_batches_are_all_applied_with_their_last_offset() -> None:
    world = World(takes=100, max_message_bytes=1_000)
    assert world.commit(30) == ErrorCode.NONE
    assert world.replicas.takes < 99
    groups = world.shard.state
    assert [groups.committed.offsets["g"]["t"][number].offset for number in range(30)] == list(range(30))
    assert groups.by_id["g"].last_record_offset == world.replicas.log.log_end_offset - 1 == 29


def test_what_is_refused_at_once_changes_nothing() -> None:
    world = World(takes=0)
    assert world.commit(3) == ErrorCode.RECORD_LIST_TOO_LARGE
    assert not world.shard.unloaded
    assert not world.shard.state.committed.offsets


def test_a_state_with_a_part_of_its_records_in_the_log_is_loaded_again() -> None:
    """The log has some of the records, and the state none: a coordinator that loads the log would differ."""
    world = World(takes=1, max_message_bytes=1_000)
    assert world.commit(30) == ErrorCode.RECORD_LIST_TOO_LARGE
    assert 0 < world.replicas.log.log_end_offset < 30
    assert world.shard.unloaded
    assert world.runtime.shards == {}
