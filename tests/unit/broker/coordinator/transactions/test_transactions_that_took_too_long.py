"""Transactions that timed out: how their producers continue, and which end each producer learns."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.transactions.transaction import EPOCH_MAX
from lowtide.protocol.errors import ErrorCode

from .transaction_world import NAME, NONE, PARTITIONS, TIMEOUT_MS, World, start


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_whose_transaction_took_too_long_continues_in_the_next_epoch(version: int) -> None:
    """A producer with a timeout error can recover without a new instance, unless another producer came meanwhile."""
    world = World()
    producer_id, epoch = start(world)
    assert world.add((producer_id, epoch), PARTITIONS[0], version) == NONE
    world.run_timers(world.now_ms + TIMEOUT_MS)
    world.complete(world.told.pop())
    assert world.end((producer_id, epoch), is_commit=True) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert world.end((producer_id, epoch), is_commit=True, version=2) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert world.end((producer_id, epoch), is_commit=False, version=2) == (NONE, producer_id, epoch + 1)
    assert world.init((producer_id, epoch)) == (NONE, producer_id, epoch + 1)
    assert world.add((producer_id, epoch + 1), PARTITIONS[0], version) == NONE
    assert world.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    world.complete(world.told.pop())
    assert start(world) == (producer_id, epoch + 3)
    assert world.init((producer_id, epoch + 1)) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert world.end((producer_id, epoch + 1), is_commit=False, version=2) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_a_transaction_that_took_too_long_in_the_last_epoch_gives_its_producer_another_id() -> None:
    """Kafka's `TransactionCoordinator.endTransaction` rotates the id where it fences, too."""
    world = World()
    producer_id, _ = start(world)
    world.state.transactions[NAME].producer_epoch = EPOCH_MAX - 2
    last = start(world)
    assert world.add(last, PARTITIONS[0], 2) == NONE
    world.run_timers(world.now_ms + TIMEOUT_MS)
    told = world.told.pop()
    assert (told.producer_id, told.producer_epoch) == (producer_id, EPOCH_MAX)
    world.complete(told)
    assert world.end(last, is_commit=False, version=2) == (NONE, producer_id + 1, 0)
    assert world.init(last) == (NONE, producer_id + 1, 0)
    assert start(world) == (producer_id + 1, 1)
    assert world.init(last) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_the_end_in_a_new_epoch_is_known_by_the_epoch_only() -> None:
    """A client whose transactions have epochs may send the previous epoch, never the current one."""
    world = World()
    identity = start(world)
    world.add(identity, PARTITIONS[0])
    world.end(identity, is_commit=True)
    world.complete(world.told.pop())
    assert world.end(identity, is_commit=True) == (NONE, *identity)
    assert world.end(identity, is_commit=True, version=2) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
