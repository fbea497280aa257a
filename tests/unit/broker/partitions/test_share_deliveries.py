"""How often a record is delivered, whichever way its deliveries end."""

from __future__ import annotations

from collections import Counter

import pytest

from lowtide.broker.partitions.share.share_partition import SharePartition
from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.broker.partitions.share.share_values import (
    AcknowledgedRange,
    AcknowledgeType,
    AcquiredRange,
    FetchedBatch,
    ShareLimits,
    StateBatch,
    StoredState,
    Wanted,
)

LOCK_MS = 1_000
ALL = Wanted(500, 500)
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


class World:
    """A share partition of so many records, in batches of `size`, whose writes all succeed."""

    def __init__(self, count: int, *, limit: int = 5, size: int = 1_000, stored: StoredState | None = None) -> None:
        limits = ShareLimits(delivery_count_limit=limit, lock_duration_ms=LOCK_MS)
        self.partition = SharePartition(stored or StoredState(start_offset=0), 0, limits)
        self.log = [FetchedBatch(first, min(first + size, count) - 1) for first in range(0, count, size)]
        self.now_ms = 0
        self.deliveries: Counter[int] = Counter()

    def fetch(self, member: str = "m", wanted: Wanted = ALL) -> list[AcquiredRange]:
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
