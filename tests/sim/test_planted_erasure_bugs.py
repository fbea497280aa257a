"""Bugs planted on purpose in erasing single records, one for each rule of docs/adr/0023 and 0024 that runs can show.

Each was found within 45 seeds from the first one on; PLANT_SEEDS=n searches that many. Those of compacted logs are
searched for where replicas compact at different times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from lowtide.broker.ledger import standing_erasures
from lowtide.broker.ledger.kept_searches import KeptSearches
from lowtide.broker.partitions import compacted_erasures, replica_searches
from lowtide.broker.partitions.log_searches import LogSearches
from lowtide.broker.partitions.replica_searches import ReplicaSearches
from lowtide.protocol.offset_ranges import NO_OFFSETS, OffsetRanges
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.compaction import erasing
from lowtide.storage.directory import directory_erasures
from lowtide.storage.erasures.key_filter import KeyFilter
from lowtide.storage.erasures.log_search import SearchedLog
from lowtide.storage.erasures.record_search import FoundRecords
from lowtide.storage.log.log_erasures import LogErasures
from lowtide.storage.log.opening import loader

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "100"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slow

NEVER: Final = 2**62

ANY: Final = None
TRUNCATING: Final = ("erasure truncated", "leader flip")
BEHIND: Final = ("volume put back", "no room at times", "cut off", "full disk")
LEADING: Final = ("leader flip", "leaders die uncommitted", "cut off", "leader move", "pause")
LOSING: Final = ("power cut", "leaders die uncommitted", "cut off", "follower back and leader dead", "power cut of all")


def a_broker_confirms_before_its_files_are_clean(patch: Patch) -> None:
    patch.setattr(LogErasures, "is_done", lambda _self, _end_offset: True)


def a_broker_confirms_before_the_erasure_is_here(patch: Patch) -> None:
    patch.setattr(directory_erasures, "_has_erased", lambda log, goal: log.erasures.is_done(goal.erasures_end))


def an_erasure_takes_effect_when_it_is_appended(patch: Patch) -> None:
    hidden = LogErasures.hidden
    patch.setattr(LogErasures, "hidden", lambda self, _high_watermark: hidden(self, NEVER))
    patch.setattr(LogErasures, "readable_end", lambda _self, end_offset, _high_watermark: end_offset)


def an_erasure_never_takes_effect_before_it_is_rewritten(patch: Patch) -> None:
    patch.setattr(LogErasures, "hidden", lambda _self, _high_watermark: NO_OFFSETS)


def consumers_are_not_limited_before_an_erasure_is_committed(patch: Patch) -> None:
    patch.setattr(LogErasures, "readable_end", lambda _self, end_offset, _high_watermark: end_offset)


def records_are_rewritten_away_before_an_erasure_is_committed(patch: Patch) -> None:
    begin = LogErasures.begin
    patch.setattr(LogErasures, "begin", lambda self, _durable_end: begin(self, NEVER))


def a_replica_that_truncates_a_begun_erasure_goes_on(patch: Patch) -> None:
    patch.setattr(LogErasures, "has_begun_from", lambda _self, _offset: False)


def a_truncated_erasure_stays(patch: Patch) -> None:
    patch.setattr(LogErasures, "cut", lambda _self, _end_offset: None)


def a_start_finds_no_erasures_in_batches(patch: Patch) -> None:
    patch.setattr(loader, "_erasures_in", lambda _segment: iter(()))


def a_search_ends_at_the_high_watermark(patch: Patch) -> None:
    def begun(self: Any, partition: Partition, selector: Any, *, with_keys: bool) -> Any:
        return self._parts.searches.begin(partition, selector, partition.log.high_watermark, with_keys=with_keys)

    patch.setattr(KeptSearches, "_begun", begun)


def a_segments_last_batch_vanishes(patch: Patch) -> None:
    change = erasing.SegmentErasure._change

    def changed(self: Any, position: int, size: int, erased: OffsetRanges) -> Any:
        found = change(self, position, size, erased)
        is_last = position + size == self.order.size
        if found is None or not is_last or not found.left or erasing.read_batch_header(found.left).record_count:
            return found
        return found._replace(left=b"")

    patch.setattr(erasing.SegmentErasure, "_change", changed)


def an_erasure_takes_the_next_record_too(patch: Patch) -> None:
    without = erasing.without_erased

    def more(path: str, position: int, batch: Any, erased: OffsetRanges) -> Any:
        return without(path, position, batch, OffsetRanges((first, last + 1) for first, last in _joined(erased)))

    patch.setattr(erasing, "without_erased", more)


def _joined(erased: OffsetRanges) -> Iterator[tuple[Offset, Offset]]:
    end = Offset(-1)
    for first, last in erased:
        if last >= end:
            yield max(first, end), last
        end = Offset(last + 2)


def a_replica_that_is_out_of_sync_serves_readers(patch: Patch) -> None:
    """With no more than the log start that it would need."""

    def serves(self: Partition, broker_epoch: int, now_ms: int, limit_ms: int) -> bool:
        return not self.is_leader

    patch.setattr(Partition, "may_serve_as_follower", serves)


def a_new_leader_takes_its_log_for_searched(patch: Patch) -> None:
    begun = standing_erasures._begun
    patch.setattr(
        standing_erasures, "_begun", lambda partition, _searched_to: begun(partition, partition.log.log_end_offset)
    )


def a_standing_search_ends_at_the_high_watermark_and_counts_to_the_end(patch: Patch) -> None:
    search = LogSearches.search

    async def searched(self: LogSearches, partition: Partition, selector: Any, _end: Offset, **options: Any) -> Any:
        return await search(self, partition, selector, max(partition.log.high_watermark, 0), **options)

    patch.setattr(LogSearches, "search", searched)


def a_follower_is_not_searched(patch: Patch) -> None:
    """It says that it was."""

    async def nothing(_self: Any, _partition: Partition, _wanted: Any, end_offset: Offset) -> Any:
        return SearchedLog(end_offset, end_offset, FoundRecords()), {}

    patch.setattr(ReplicaSearches, "_found", nothing)


def a_named_record_that_only_a_follower_has_is_missed(patch: Patch) -> None:
    """So nobody tells its key."""
    found = ReplicaSearches._found

    async def only_by_key(self: ReplicaSearches, partition: Partition, wanted: Any, end_offset: Offset) -> Any:
        if wanted.keys is None:
            return SearchedLog(end_offset, end_offset, FoundRecords()), {}
        return await found(self, partition, wanted, end_offset)

    patch.setattr(ReplicaSearches, "_found", only_by_key)


def the_end_of_a_search_is_ignored(patch: Patch) -> None:
    """Records that arrive while replicas search are erased too."""
    search = LogSearches.search

    async def searched(self: LogSearches, partition: Partition, selector: Any, _end: Offset, **options: Any) -> Any:
        return await search(self, partition, selector, partition.log.log_end_offset, **options)

    patch.setattr(LogSearches, "search", searched)


def only_the_named_version_is_erased(patch: Patch) -> None:
    for module in (compacted_erasures, replica_searches):
        patch.setattr(module, "up_to", lambda _ends, _versions: FoundRecords())


def newer_versions_are_erased_too(patch: Patch) -> None:
    for module in (compacted_erasures, replica_searches):
        patch.setattr(module, "up_to", lambda _ends, versions: versions.records)


def a_replica_that_was_away_goes_on(patch: Patch) -> None:
    patch.setattr(LogErasures, "must_start_over", lambda *_: False)


def versions_that_only_a_follower_has_are_forgotten(patch: Patch) -> None:
    patch.setattr(replica_searches, "ends_of", lambda _named: {})


def a_filter_has_none_of_the_keys(patch: Patch) -> None:
    patch.setattr(KeyFilter, "possible", lambda *_: [])


PLANTS: Final[list[tuple[Callable[[Patch], None], str, tuple[str, ...] | None, int]]] = [
    (a_broker_confirms_before_its_files_are_clean, "E3:", ANY, 0),
    (a_broker_confirms_before_the_erasure_is_here, "E[13]:", ANY, 0),
    (an_erasure_takes_effect_when_it_is_appended, "R3:", LEADING, 0),
    (an_erasure_never_takes_effect_before_it_is_rewritten, "E1:", ANY, 0),
    (consumers_are_not_limited_before_an_erasure_is_committed, "E1:", LEADING, 0),
    (records_are_rewritten_away_before_an_erasure_is_committed, "R3:", LEADING, 0),
    (a_replica_that_truncates_a_begun_erasure_goes_on, "E2:", LOSING, 8),
    (a_truncated_erasure_stays, "L1: .* all replicas are in sync", TRUNCATING, 100),
    (a_start_finds_no_erasures_in_batches, "E[13]:", ANY, 0),
    (a_search_ends_at_the_high_watermark, "E[13]:", ANY, 0),
    (a_segments_last_batch_vanishes, "S1:", ANY, 0),
    (an_erasure_takes_the_next_record_too, "R3:", ANY, 0),
    (a_replica_that_is_out_of_sync_serves_readers, "E1:", BEHIND, 40),
    (a_new_leader_takes_its_log_for_searched, "E9:", ANY, 0),
    (a_standing_search_ends_at_the_high_watermark_and_counts_to_the_end, "E9:", ANY, 80),
    (a_filter_has_none_of_the_keys, "E[13]:", ANY, 0),
]
"""Each with what it violates, the faults that strike, and the seed to begin with: one that finds it soon."""


COMPACTED_PLANTS: Final[list[tuple[Callable[[Patch], None], str, tuple[str, ...] | None, int]]] = [
    (a_follower_is_not_searched, "E[13]:", ANY, 0),
    (the_end_of_a_search_is_ignored, "E2:", ANY, 0),
    (only_the_named_version_is_erased, "E[13]:", ANY, 0),
    (newer_versions_are_erased_too, "E2:", ANY, 0),
    (a_replica_that_was_away_goes_on, "E[13]:", ANY, 0),
    (versions_that_only_a_follower_has_are_forgotten, "E[13]:", ANY, 160),
    (a_named_record_that_only_a_follower_has_is_missed, "E[13]:", ANY, 160),
]


@pytest.mark.parametrize(
    ("plant", "expected", "faults", "first_seed", "compacts"),
    [*((*row, False) for row in PLANTS), *((*row, True) for row in COMPACTED_PLANTS)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_is_found(
    plant: Callable[[Patch], None],
    expected: str,
    faults: tuple[str, ...] | None,
    first_seed: int,
    compacts: bool,
    monkeypatch: Patch,
) -> None:
    plant(monkeypatch)
    unclean = True if faults is LOSING else None
    find(
        expected,
        lambda seed: simulate_cluster(seed, faults=faults, unclean=unclean, kinds=("erasures",), compacts=compacts),
        range(first_seed, first_seed + MAXIMUM_SEEDS),
    )
