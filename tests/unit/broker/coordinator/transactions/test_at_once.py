"""Changes of transactions that are committed by their append: when that is possible, and deadlines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.transactions.at_once import AtOnce

from .transaction_world import NAME, NONE, PARTITIONS, World, start


class Keeper(World):
    """It keeps all that it is asked to keep, and counts deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = 0

    def keep(self, _shard: Any, records: list[tuple[bytes, bytes | None]], _wall_ms: int) -> int | None:
        self.kept += 1
        self.log += records
        self.committed = len(self.log)
        return self.committed - 1

    def set_timer(self, shard: Any) -> None:
        self.deadlines += 1


def test_a_transaction_that_begins_gets_a_deadline_and_more_partitions_do_not() -> None:
    world = Keeper()
    identity = start(world)
    before = world.deadlines
    assert world.add(identity, PARTITIONS[0]) == NONE
    assert world.deadlines == before + 1
    assert world.add(identity, PARTITIONS[1]) == NONE
    assert world.deadlines == before + 1


def test_nothing_is_done_at_once_where_a_commit_takes_others() -> None:
    """Followers have to have it first."""
    world = Keeper()
    identity = start(world)
    assert world.add(identity, PARTITIONS[0]) == NONE
    assert world.end(identity, is_commit=True) is not None
    ended = world.told.pop()
    done = world.state.plan_completion(NAME, ended.producer_id, ended.producer_epoch)
    assert done is not None
    slow: Any = SimpleNamespace(state=world.state, commits_at_once=False)
    at_once: AtOnce = world.at_once
    kept = world.kept
    assert not at_once.complete(slow, done)
    assert at_once.add(slow, NAME, identity, frozenset(PARTITIONS), 0) is None
    assert at_once.end(slow, NAME, identity, is_commit=True, client_version=0) is None
    assert world.kept == kept
    assert at_once.complete(world.shard, done)
    assert world.kept == kept + 1
