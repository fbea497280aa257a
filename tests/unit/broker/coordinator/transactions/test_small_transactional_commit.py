"""What the quick paths of TxnOffsetCommit and EndTxn leave to their handlers, and that nothing is changed before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.pending_offsets import PENDING_OFFSETS_MAX
from lowtide.broker.coordinator.transactions.small_transaction import small_end, small_transactional_commit
from lowtide.metadata.image import MetadataImage
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommit, OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.types import TopicPartition
from tests.unit.broker.coordinator.group_world import World as GroupWorld

from . import coordinator_world
from .coordinator_world import HERE, NAME, NONE, topic

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

GROUP, PRODUCER = "g", 7
KEY = TopicPartition("__consumer_offsets", 0)
ANSWER = b"answer"


class World:
    """A group with a committed offset, in a partition whose log knows of one producer; topic `t` has two partitions."""

    def __init__(self, group: str = GROUP, settings: GroupSettings | None = None, *, is_open: bool = True) -> None:
        self.groups = GroupWorld(settings)
        value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)
        self.groups.append(OffsetCommit(OffsetCommitKey(group=group, topic="t", partition=0), value))
        self.producers = SimpleNamespace(is_in_transaction=lambda *_: is_open, is_fenced=lambda *_: False)
        self.verifier: Any = SimpleNamespace(
            is_wanted=True, answer_now=lambda _question: ErrorCode.TRANSACTION_ABORTABLE
        )
        log = SimpleNamespace(producer_state=self.producers)
        self.found: Any = SimpleNamespace(
            state=self.groups.groups, commits_at_once=True, partition=SimpleNamespace(log=log, topic_partition=KEY)
        )
        self.kept = 0

    def keep(self, _shard: Any, records: list[Any], _wall_ms: int, producer: tuple[int, int]) -> int:
        assert producer == (PRODUCER, 0)
        self.kept += len(records)
        return 100

    def commit(self, *, group: str = GROUP, version: int = 4, partition: int = 1, **settings: str) -> bytes | None:
        clock = SimpleNamespace(monotonic_ms=lambda: 0, wall_ms=lambda: 5)
        image = MetadataImage(topics={"t": topic("t", HERE, HERE)})
        groups: Any = SimpleNamespace(
            broker=SimpleNamespace(
                clock=clock, metadata=SimpleNamespace(image=image), config=load_config(settings=settings)
            ),
            find=lambda _group_id: self.found,
            keep=self.keep,
        )
        path = small_transactional_commit(groups, self.verifier)
        assert path is not None
        rows = ((partition, 9, -1),)
        asked = (NAME, PRODUCER, 0, group, -1, "", None, version, "t", partition, rows, ANSWER)
        answer: bytes | None = path.handle(asked, memoryview(b""), None)
        assert self.kept == (answer is not None)
        assert self.groups.groups.committed.pending.has(group, "t", partition) == (answer is not None)
        return answer


def test_an_offset_of_an_open_transaction_is_kept() -> None:
    assert World().commit() == ANSWER


def test_offsets_that_are_kept_with_who_committed_them_are_left() -> None:
    settings = {"log.retention.commitoffset.enable": "true", "log.retention.commitoffset.hours": "1"}
    assert World().commit(**settings) is None
    assert World().commit(**settings | {"log.retention.commitoffset.enable": "false"}) == ANSWER
    assert World().commit(**{"log.retention.commitoffset.enable": "true"}) == ANSWER, "no topic has a time"


def test_partitions_that_are_not_there_are_left() -> None:
    assert World().commit(partition=2) is None


def test_a_coordinator_that_is_not_ready_is_left() -> None:
    world = World()
    world.found = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.commit() is None


def test_a_group_without_an_id_is_left() -> None:
    """It may have offsets of commits outside of transactions."""
    assert World("").commit(group="") is None


def test_a_group_that_begins_is_left_and_not_counted() -> None:
    """The handler would count it for a second time."""
    world = World(settings=GroupSettings(groups_max=1))
    admission = world.groups.groups.admission
    admission.count_groups = lambda: 1
    assert world.commit(group="another") is None
    assert admission.refused_count == 0


def test_offsets_without_room_are_left() -> None:
    assert World(settings=GroupSettings(offsets_max=1)).commit() is None
    assert World(settings=GroupSettings(offsets_max=2)).commit() == ANSWER
    world = World()
    pending = world.groups.groups.committed.pending
    pending.by_producer[PRODUCER] = {(GROUP, "other", number): None for number in range(PENDING_OFFSETS_MAX)}
    assert world.commit() is None


@pytest.mark.parametrize(("version", "answer"), [(4, ANSWER), (5, None), (6, None)])
def test_a_version_that_adds_its_partition_is_left_before_the_transaction_has_it(
    version: int, answer: bytes | None
) -> None:
    world = World(is_open=False)
    world.verifier.is_wanted = False
    assert world.commit(version=version) == answer
    assert World().commit(version=version) == ANSWER


def test_a_fenced_producer_is_left() -> None:
    world = World(is_open=False)
    world.verifier.is_wanted = False
    world.producers.is_fenced = lambda *_: True
    assert world.commit() is None


def test_a_transaction_begins_here_when_its_coordinator_knows_that_or_need_not_be_asked() -> None:
    world = World(is_open=False)
    assert world.commit() is None
    world.verifier.answer_now = lambda _question: None
    assert world.commit() is None, "another broker has to be asked"
    world.verifier.answer_now = lambda question: NONE if question.partition == KEY else ErrorCode.TRANSACTION_ABORTABLE
    assert world.commit() == ANSWER


def test_an_end_is_answered_and_errors_are_left() -> None:
    world = coordinator_world.World(HERE)
    world.begin(client_version=0)
    path = small_end(world.coordinator)
    assert path is not None
    assert path.handle((NAME, 100, 0, True, ANSWER), memoryview(b""), None) == ANSWER
    assert path.handle((NAME, 100, 0, True, ANSWER), memoryview(b""), None) is None, "the markers are on their way"
