"""The response in every state to an end, a start and a new producer, as in Kafka's `TransactionCoordinator`."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.transactions.transaction import EPOCH_MAX
from lowtide.protocol.errors import ErrorCode

from .transaction_world import NAME, NONE, PARTITIONS, World, start

FENCED, INVALID, CONCURRENT = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS
UNMAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING
BUMPED = (NONE, 1)
"""Success, with an epoch above the one in the request. An error is written as itself."""

SAME = (NONE, 0)


def made(state: str) -> tuple[World, int, int]:
    """A transactional id of a client whose transactions have epochs, in this state, with its producer id and epoch."""
    world = World()
    producer_id, epoch = start(world)
    if state != "empty":
        assert world.add((producer_id, epoch), PARTITIONS[0], 2) == NONE
    if state in ("committing", "committed", "aborting", "aborted"):
        answer = world.end((producer_id, epoch), is_commit=state.startswith("commit"), version=2)
        assert answer is not None
        epoch = answer[2]
    if state in ("committed", "aborted"):
        world.complete(world.told.pop())
    return world, producer_id, epoch


TABLE = {
    # The state, and the responses to an abort and a commit in the previous epoch ("retry") and in the current one.
    "empty": (FENCED, BUMPED, FENCED, INVALID),
    "ongoing": (FENCED, BUMPED, FENCED, BUMPED),
    "committing": (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    "committed": (INVALID, BUMPED, SAME, INVALID),
    "aborting": (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    "aborted": (SAME, BUMPED, INVALID, INVALID),
}


@pytest.mark.parametrize("state", TABLE)
def test_the_table_of_ends(state: str) -> None:
    expected = iter(TABLE[state])
    for is_commit in (False, True):
        for back in (1, 0):
            world, producer_id, epoch = made(state)
            answer, wanted = world.end((producer_id, epoch - back), is_commit=is_commit, version=2), next(expected)
            where = f"{'commit' if is_commit else 'abort'}, {back} back"
            if isinstance(wanted, ErrorCode):
                assert answer == (wanted, -1, -1), where
            else:
                assert answer == (NONE, producer_id, epoch + wanted[1]), where


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_while_markers_are_written_every_request_is_retried(is_commit: bool, version: int) -> None:
    world = World()
    producer_id, epoch = start(world)
    world.add((producer_id, epoch), PARTITIONS[0], version)
    answer = world.end((producer_id, epoch), is_commit=is_commit, version=version)
    assert answer is not None
    following = (producer_id, epoch + 1 if version else epoch)
    for asked in (True, False):
        assert world.end(following, is_commit=asked, version=version) == (CONCURRENT, -1, -1)
    assert world.add(following, PARTITIONS[1], version) == CONCURRENT
    assert world.init(following) == world.init() == (CONCURRENT, -1, -1)
    assert world.state.verify(NAME, *following, PARTITIONS[0]) == CONCURRENT
    world.complete(world.told.pop())
    assert world.add(following, PARTITIONS[1], version) == NONE


def test_a_producer_continues_with_its_next_id_while_markers_of_the_last_one_are_written() -> None:
    """The response to the end has an id that the coordinator stores only when all markers are written."""
    world = World()
    producer_id, _ = start(world)
    world.state.transactions[NAME].producer_epoch = EPOCH_MAX - 2
    last = start(world)
    assert world.add(last, PARTITIONS[0], 2) == NONE
    answer = world.end(last, is_commit=True, version=2)
    assert answer == (NONE, producer_id + 1, 0)
    following = answer[1:]
    assert world.add(following, PARTITIONS[0], 2) == CONCURRENT
    assert world.init(following) == world.end(following, is_commit=False, version=2) == (CONCURRENT, -1, -1)
    assert world.end(last, is_commit=True, version=2) == (CONCURRENT, -1, -1)
    world.complete(world.told.pop())
    assert world.end(last, is_commit=True, version=2) == answer, "the response was lost"
    assert world.add(following, PARTITIONS[0], 2) == NONE


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_without_the_transactional_id_changes_nothing(version: int) -> None:
    world, producer_id, epoch = made("ongoing")
    stranger, older = (producer_id + 7, epoch), (producer_id, epoch - 1)
    assert (world.add(stranger, PARTITIONS[0], version), world.add(older, PARTITIONS[0], version)) == (UNMAPPED, FENCED)
    assert world.end(stranger, is_commit=True, version=version) == (UNMAPPED, -1, -1)
    assert world.end(older, is_commit=True, version=version) == (FENCED, -1, -1)
