"""Bugs planted on purpose in retention and compaction: each must be found.

Each was found within 40 seeds from the first one on; PLANT_SEEDS=n searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from lowtide.broker.coordinator.groups.consumed import ConsumedEnd
from lowtide.broker.retention import cleaner
from lowtide.broker.retention.cleaner import Cleaner
from lowtide.broker.retention.log_retention import Retention
from lowtide.protocol.batch_building import assemble_batch, build_batch
from lowtide.protocol.records import (
    DELETE_HORIZON_BIT,
    RECORD_BATCH_OVERHEAD,
    iterate_records,
    read_batch_header,
    read_varint,
)
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.compaction import cleaning, compaction
from lowtide.storage.log.retention import retention_plan as retention
from lowtide.storage.log.retention.segment_ages import SegmentAges

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest


# Retention


def what_is_not_committed_goes(patch: Patch) -> None:
    """The high watermark is not checked."""

    def may_go(segments: Any, number: int, _offsets: Any) -> bool:
        return not (number + 1 == len(segments) and not segments[number].size)

    patch.setattr(retention, "may_go", may_go)


def one_segment_too_many(patch: Patch) -> None:
    """A partition is left with less than `retention.bytes`."""
    original = retention._size_rule

    def size_rule(segments: Any, retention_bytes: int) -> Any:
        return original(segments, max(retention_bytes - segments[0].size, 0))

    patch.setattr(retention, "_size_rule", size_rule)


def as_old_as_the_first_record(patch: Patch) -> None:
    """A segment's newest record does not keep it."""
    patch.setattr(SegmentAges, "largest_timestamp", staticmethod(SegmentAges.first_timestamp))


def the_fastest_group_counts(patch: Patch) -> None:
    """Records are deleted that only one group has consumed."""
    patch.setattr(ConsumedEnd, "__and__", lambda self, other: max(self, other))


def consumed_at_any_age(patch: Patch) -> None:
    """Consumed records are deleted at once."""
    original = retention.active_rules

    def rules(segments: Any, offsets: Any, config: Any, times: Any, now_ms: int) -> Any:
        found = original(segments, offsets, config, times, now_ms)

        def is_consumed(number: int) -> bool:
            return retention.end_of(segments, number, offsets) <= offsets.consumed_offset

        return [(reason, is_consumed if reason is retention.Reason.CONSUMED else goes) for reason, goes in found]

    patch.setattr(retention, "active_rules", rules)


def what_is_as_old_as_the_minimum_goes(patch: Patch) -> None:
    """The minimum timestamp is compared with a segment's first record."""
    original = retention.active_rules

    def rules(segments: Any, offsets: Any, config: Any, times: Any, now_ms: int) -> Any:
        found = original(segments, offsets, config, times, now_ms)

        def is_before(number: int) -> bool:
            return bool(0 <= times.first_timestamp(segments[number]) < config.log_retention_min_timestamp)

        return [(reason, is_before if reason is retention.Reason.MIN_TIMESTAMP else goes) for reason, goes in found]

    patch.setattr(retention, "active_rules", rules)


def nothing_goes(patch: Patch) -> None:
    """Passes end when the first one has failed, or never begin."""
    patch.setattr(Retention, "_steps", lambda _self, left, _consumed: left.clear() or iter(()))


# Compaction


def with_less(patch: Patch, change: Callable[[Any, bytes], bytes]) -> None:
    """Changes every batch that compaction leaves with fewer records."""
    original = cleaning.compact_batch

    def compact_batch(offsets: Any, header: Any, batch: Any, rules: Any, **more: Any) -> Any:
        left = original(offsets, header, batch, rules, **more)
        if left is None or header.is_control or left is batch:
            return left
        written = read_batch_header(left)
        return left if written.compression or not written.record_count else change(written, bytes(left))

    patch.setattr(cleaning, "compact_batch", compact_batch)


def the_first_of_what_stays_goes(patch: Patch) -> None:
    """A record is removed that no other supersedes."""

    def without_first(header: Any, batch: bytes) -> bytes:
        records = memoryview(batch)[RECORD_BATCH_OVERHEAD:]
        length, position = read_varint(records, 0)
        if header.record_count == 1:
            return batch
        return assemble_batch(
            msgspec.structs.replace(header, record_count=header.record_count - 1), bytes(records[position + length :])
        )

    with_less(patch, without_first)


def tombstones_go_at_once(patch: Patch) -> None:
    """`delete.retention.ms` is not waited for."""
    original = compaction._retained

    def retained(*arguments: Any, drops_tombstones: bool, **more: Any) -> Any:
        return original(*arguments, drops_tombstones=True, **more)

    patch.setattr(compaction, "_retained", retained)
    # The bug cannot be planted in the compiled form.
    patch.setattr(compaction.OffsetMap, "retain", lambda *_arguments, **_more: None)


def aborted_ones_supersede(patch: Patch) -> None:
    """Records are removed because of aborted ones."""
    original = cleaning.note_batch

    def note_batch(*arguments: Any, aborted: bool, **more: Any) -> bool:
        return original(*arguments, aborted=False, **more)

    patch.setattr(cleaning, "note_batch", note_batch)


def everything_is_compacted(patch: Patch) -> None:
    """Records that are not stable, or not even committed, are compacted too."""
    original = cleaner.find_cleanable

    def find(segments: Any, ends: Any, *others: Any) -> Any:
        end = ends.log_end_offset
        return original(segments, ends._replace(last_stable_offset=end, recovery_point=end), *others)

    patch.setattr(cleaner, "find_cleanable", find)


def nothing_is_compacted(patch: Patch) -> None:
    """No log to compact is searched for."""
    patch.setattr(Cleaner, "_look", lambda _self: None)


def offsets_shift(patch: Patch) -> None:
    """A batch is rewritten with consecutive offsets."""

    def closed_up(header: Any, batch: bytes) -> bytes:
        rows = [
            (record.timestamp, record.key, record.value, record.headers)
            for record in iterate_records(batch, max_bytes=1 << 20)
        ]
        moved = build_batch(rows)
        changed = msgspec.structs.replace(
            header, base_timestamp=rows[0][0], attributes=header.attributes & ~DELETE_HORIZON_BIT
        )
        return assemble_batch(changed, moved[RECORD_BATCH_OVERHEAD:])

    with_less(patch, closed_up)


PLANTS: Final = [
    (what_is_not_committed_goes, "D14:", "retention", 3),
    (one_segment_too_many, "D14:", "retention", 3),
    (as_old_as_the_first_record, "D14:", "retention", 1),
    (the_fastest_group_counts, "(D7|D14):", "retention", 1),
    (consumed_at_any_age, "D14:", "retention", 2),
    (what_is_as_old_as_the_minimum_goes, "D14:", "retention", 2),
    (nothing_goes, "L1: .* what rules let go of has gone", "retention", 0),
    (the_first_of_what_stays_goes, "C1:", "compaction", 0),
    (tombstones_go_at_once, "C1:", "compaction", 1),
    (aborted_ones_supersede, "C1:", "compaction", 3),
    (everything_is_compacted, "C1:", "compaction", 3),
    (nothing_is_compacted, "C2:", "compaction", 0),
    (offsets_shift, "R2:", "compaction", 0),
]
"""Each with what it violates, what clients do, and the seed to begin with: one that finds it soon."""


@pytest.mark.parametrize(
    ("plant", "expected", "kind", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_is_found(
    plant: Callable[[Patch], None], expected: str, kind: str, first_seed: int, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    find(expected, lambda seed: simulate_cluster(seed, kinds=(kind,)), range(first_seed, first_seed + MAXIMUM_SEEDS))
