"""How often a record is delivered, however its deliveries end, and the cost of a record that no member can process."""

from __future__ import annotations

from collections import Counter

import pytest

from lowtide.broker.partitions.share.share_partition import SharePartition
from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.broker.partitions.share.share_values import (
    AcknowledgedRange,
    AcknowledgeType,
    AcquiredRange,
    AcquireLimits,
    FetchedBatch,
    ShareLimits,
    StateBatch,
    StoredState,
)

LOCK_MS = 1_000
ALL = AcquireLimits(500, 500)
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


class World:
    """A share partition of so many records, in batches of `size`, whose writes all succeed."""

    def __init__(self, count: int, *, limit: int = 5, size: int = 1_000, stored: StoredState | None = None) -> None:
        limits = ShareLimits(delivery_count_limit=limit, lock_duration_ms=LOCK_MS)
        self.partition = SharePartition(stored or StoredState(start_offset=0), 0, limits)
        self.log = [FetchedBatch(first, min(first + size, count) - 1) for first in range(0, count, size)]
        self.now_ms = 0
        self.deliveries: Counter[int] = Counter()

    def fetch(self, member: str = "m", wanted: AcquireLimits = ALL) -> list[AcquiredRange]:
        offset = self.partition.next_fetch_offset
        read = [batch for batch in self.log if batch.last_offset >= offset]
        taken = self.partition.acquire(member, offset, read, wanted, self.now_ms)
        self.deliveries.update(offset for each in taken for offset in range(each.first_offset, each.last_offset + 1))
        return taken

    def acknowledge(self, taken: list[AcquiredRange], kind: AcknowledgeType, member: str = "m") -> None:
        ranges = [AcknowledgedRange(each.first_offset, each.last_offset, (kind,)) for each in taken]
        assert isinstance(self.partition.acknowledge(member, ranges, self.now_ms), int)
        self.store()

    def store(self) -> None:
        while self.partition.take_write() is not None:
            self.partition.complete_write(is_stored=True)

    def end(self, way: str, taken: list[AcquiredRange]) -> None:
        """A delivery ends without success."""
        if way == "release":
            self.acknowledge(taken, RELEASE)
        elif way == "lock":
            self.now_ms += LOCK_MS
            self.partition.expire(self.now_ms)
        else:
            self.partition.release("m")
        self.store()


def counts(taken: list[AcquiredRange]) -> list[tuple[int, int, int]]:
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in taken]


@pytest.mark.parametrize("ways", [["session"], ["lock"], ["release"], ["session", "lock", "release"]])
@pytest.mark.parametrize("limit", [2, 3, 5, 10])
def test_a_record_is_delivered_as_often_as_the_limit_allows_whichever_way_it_ends(ways: list[str], limit: int) -> None:
    world = World(1, limit=limit)
    for number in range(limit):
        taken = world.fetch()
        assert counts(taken) == [(0, 0, number + 1)]
        world.end(ways[number % len(ways)], taken)
    assert world.fetch() == []
    assert world.partition.start_offset == 1, "it is given up"


def test_a_session_that_ends_has_its_deliveries_stored() -> None:
    world = World(3)
    world.acknowledge(world.fetch()[:0], ACCEPT)
    world.partition.release("m")
    write = world.partition.take_write()
    assert write is not None
    assert write.batches == (StateBatch(0, 2, RecordState.AVAILABLE, 1),)


@pytest.mark.parametrize("way", ["session", "lock", "release"])
@pytest.mark.parametrize("limit", [2, 3, 4, 5, 7, 10])
@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_record_that_no_member_can_process_takes_no_other_with_it(way: str, limit: int, size: int) -> None:
    """The member doesn't know which of the records it has is the bad one, and none of them is processed."""
    world, bad, processed = World(20, limit=limit, size=size), 7, set[int]()
    for _ in range(500):
        taken = world.fetch()
        if not taken:
            break
        offsets = {offset for each in taken for offset in range(each.first_offset, each.last_offset + 1)}
        if bad in offsets:
            world.end(way, taken)
        else:
            processed |= offsets
            world.acknowledge(taken, ACCEPT)
    assert processed == set(range(20)) - {bad}
    assert world.partition.start_offset == 20
    assert world.deliveries[bad] == limit


def test_fewer_records_are_delivered_at_a_time_from_half_of_the_limit_on() -> None:
    world = World(20)
    sizes = []
    for count in (1, 2, 3):
        taken = world.fetch()
        assert counts(taken) == [(0, 19, count)]
        world.end("session", taken)
    for count in (4, 5):
        taken = world.fetch()
        sizes.append([(each.first_offset, each.last_offset, each.delivery_count) for each in taken])
        assert counts(taken)[0][2] == count
        world.end("session", taken)
    assert sizes == [[(0, 9, 4)], [(0, 0, 5)]]


def test_a_limit_of_ten_isolates_step_by_step() -> None:
    world = World(64, limit=10)
    sizes = []
    for _ in range(10):
        taken = world.fetch()
        sizes.append(sum(each.last_offset - each.first_offset + 1 for each in taken))
        world.end("release", taken)
    assert sizes == [64, 64, 64, 64, 64, 32, 16, 8, 4, 1]


def test_records_that_failed_often_are_not_delivered_with_others() -> None:
    stored = StoredState(
        start_offset=0,
        batches=(
            StateBatch(0, 1, RecordState.AVAILABLE, 1),
            StateBatch(2, 5, RecordState.AVAILABLE, 3),
            StateBatch(6, 7, RecordState.AVAILABLE, 4),
            StateBatch(8, 9, RecordState.AVAILABLE, 1),
        ),
    )
    world = World(12, stored=stored)
    assert [counts(world.fetch(f"m{number}")) for number in range(7)] == [
        [(0, 1, 2)],
        [(2, 3, 4)],
        [(4, 4, 4)],
        [(5, 5, 4)],
        [(6, 6, 5)],
        [(7, 7, 5)],
        [(8, 9, 2), (10, 11, 1)],
    ]


def test_a_fetch_that_asks_for_few_records_gets_no_more() -> None:
    stored = StoredState(start_offset=0, batches=(StateBatch(0, 99, RecordState.AVAILABLE, 3),))
    assert counts(World(100, stored=stored).fetch(wanted=AcquireLimits(10, 10, is_strict=True))) == [(0, 4, 4)]
    assert counts(World(100, stored=stored).fetch(wanted=AcquireLimits(1, 1))) == [(0, 0, 4)]


def test_a_limit_that_was_lowered_isolates_what_is_above_it() -> None:
    stored = StoredState(start_offset=0, batches=(StateBatch(0, 3, RecordState.AVAILABLE, 4),))
    world = World(4, limit=2, stored=stored)
    for offset in range(4):
        taken = world.fetch()
        assert counts(taken) == [(offset, offset, 5)]
        world.end("session", taken)
    assert world.partition.start_offset == 4


def test_records_that_failed_often_do_not_join_those_of_another_partition() -> None:
    stored = StoredState(
        start_offset=0, batches=(StateBatch(0, 1, RecordState.AVAILABLE, 1), StateBatch(2, 2, RecordState.AVAILABLE, 4))
    )
    world = World(3, stored=stored)
    joined = AcquireLimits(500, 500, is_joined=True)
    assert counts(world.fetch("a", joined)) == [(0, 1, 2)]
    assert counts(world.fetch("b", joined)) == []
    assert counts(world.fetch("b")) == [(2, 2, 5)]


@pytest.mark.parametrize(("limit", "count"), [(2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (10, 5), (25, 13)])
def test_records_are_isolated_from_half_of_the_limit_on(limit: int, count: int) -> None:
    assert ShareLimits(delivery_count_limit=limit).isolation_count == count


def test_an_erased_record_that_was_acquired_is_not_delivered_again() -> None:
    """Offsets that are missing between batches are archived, and the start offset passes them."""
    world = World(30, size=10)
    taken = world.fetch()
    assert counts(taken) == [(0, 29, 1)]
    erasure = FetchedBatch(30, 30, is_hidden=True)  # Of 10..19.
    world.log = [FetchedBatch(0, 9), FetchedBatch(20, 29), erasure]
    world.end("session", taken)
    again = world.fetch()
    assert counts(again) == [(0, 9, 2), (20, 29, 2)]
    world.acknowledge(again, ACCEPT)
    assert world.fetch() == []
    assert world.partition.start_offset == 31
