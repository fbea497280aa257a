"""Retention of real logs beside a list of records: appends, idle times, deletes, consumption, and changing rules.

D14 for one log. The model has each record's offset, timestamp and segment; the rules are applied to it one deletion at
a time.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.opening.loader import create_log
from lowtide.storage.log.retention.retention_explain import explain
from lowtide.storage.log.retention.retention_plan import Reason, RetentionOffsets, plan_retention
from lowtide.storage.log.retention.segment_ages import SegmentAges
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.examples import examples

from .test_retention_plan import FakeSegment, naive

BEGIN_MS = 1_000_000
NO_TIMESTAMP = -1
SEGMENT_BYTES = 250
"""Two or three small batches."""


class World:
    """A log, and a model that records every event."""

    def __init__(self, *, by_append_time: bool) -> None:
        self.now_ms = BEGIN_MS
        self.filesystem = MemoryFileSystem(now_ms=lambda: self.now_ms)
        self.ages = SegmentAges(self.filesystem)
        config = LogConfig(segment_bytes=SEGMENT_BYTES)
        self.log = create_log(
            LogPlace(
                filesystem=self.filesystem,
                directory="/disk/t-0",
                config=config,
                topic_partition=TopicPartition("t", 0),
                topic_id=bytes(16),
            ),
            now_ms=self.now_ms,
        )
        self.by_append_time = by_append_time
        self.rules = ValidationRules(
            timestamp_after_max_ms=2**62, timestamp_type="log_append" if by_append_time else "create"
        )
        self.segments: dict[int, list[int]] = {0: []}
        """The records' timestamps by the segment's base offset; offsets follow each other."""
        self.consumed: int | None = None

    def append(self, ages_ms: list[int]) -> None:
        """One batch with records of these ages; one from the future has a negative age."""
        timestamps = [self.now_ms - age if age != NO_TIMESTAMP else NO_TIMESTAMP for age in ages_ms]
        content = build_batch([(timestamp, None, b"v" * 30, ()) for timestamp in timestamps])
        validated = validate_produce(memoryview(bytearray(content)), self.rules, self.now_ms)
        assert isinstance(validated, ValidatedBatch)
        self.log.append_as_leader(validated, leader_epoch=0, now_ms=self.now_ms)
        kept = [self.now_ms] * len(timestamps) if self.by_append_time else timestamps
        self.segments.setdefault(self.log.segments[-1].base_offset, []).extend(kept)

    def delete(self, share: float) -> None:
        """As a client does it."""
        self.raise_start(self.log.log_start_offset + int((self.log.high_watermark - self.log.log_start_offset) * share))

    def raise_start(self, offset: int) -> None:
        """Segments left by a roll after a delete to the end are removed when the start rises again, or by a pass."""
        rises = offset > self.log.log_start_offset
        self.log.request_log_start(offset)
        make_log_start_visible(self.log, offset)
        if rises:
            self.forget_below_start()

    def forget_below_start(self) -> None:
        bases = sorted(self.segments)
        for base, following in itertools.pairwise(bases):
            if following <= self.log.log_start_offset:
                del self.segments[base]

    def offsets(self) -> RetentionOffsets:
        log = self.log
        return RetentionOffsets(log.log_start_offset, log.high_watermark, log.log_end_offset, self.consumed)

    def look(self, config: LogConfig) -> None:
        """A pass by these rules: it decides as the model does, and the earlier explanation was right."""
        log = self.log
        kept = explain(log.segments, self.offsets(), config, self.ages, self.now_ms)
        model = [
            FakeSegment(base, segment.size, tuple(self.segments[base]), self.filesystem.modified_ms(segment.path))
            for base, segment in zip(sorted(self.segments), log.segments, strict=True)
        ]
        expected = naive(model, self.offsets(), config, self.now_ms)
        plan = plan_retention(log.segments, self.offsets(), config, self.ages, self.now_ms)
        bases = iter(sorted(self.segments))
        found = [
            (deletion.reason.value, next(bases)) for deletion in plan.deletions for _ in range(deletion.segment_count)
        ]
        assert found == expected
        due = kept.hold is None and any(
            row.goes_at_ms is not None and row.goes_at_ms <= self.now_ms for row in kept.outlooks
        )
        assert due == any(reason != Reason.LOG_START.value for reason, _ in expected)
        if plan.rolls:
            log.roll(self.now_ms)
            self.segments[log.log_end_offset] = []
        if plan.deletions:
            self.raise_start(plan.log_start_offset)
        log.files.remove_below(log.log_start_offset, log.config)
        self.forget_below_start()
        assert [segment.base_offset for segment in log.segments] == sorted(self.segments)
        assert log.log_start_offset <= log.high_watermark

    def consume(self, where: tuple[int, int] | None) -> None:
        """All groups have consumed so many segments, except for so many records."""
        if where is None:
            self.consumed = None
            return
        ends = [*sorted(self.segments)[1:], self.log.log_end_offset]
        self.consumed = max(ends[min(where[0], len(ends) - 1)] + where[1], 0)

    def rules_of(self, drawn: LogConfig, size: tuple[int, int] | None) -> LogConfig:
        """Rules with a limit of size equal to the size of so many of the newest segments, minus so many bytes."""
        if size is None:
            return drawn
        newest = list(self.log.segments)[-size[0] :] if size[0] else []
        return replace(drawn, retention_bytes=max(sum(segment.size for segment in newest) + size[1], 0))


near = st.tuples(st.integers(0, 4), st.sampled_from([-1, 0, 1]))
ages = st.lists(st.sampled_from([NO_TIMESTAMP, 0, 1, 49, 50, 100, -50, -100_000]), min_size=1, max_size=3)
limits = st.sampled_from([-1, -1, -1, 0, 49, 50, 51, 100])
configs = st.builds(
    LogConfig,
    retention_ms=limits,
    retention_commitoffset_ms=limits,
    log_retention_min_timestamp=st.sampled_from([0] * 40 + [1, *range(BEGIN_MS - 51, BEGIN_MS + 2), BEGIN_MS + 50]),
    cleanup_policy=st.sampled_from(
        [frozenset({"delete"})] * 4 + [frozenset({"delete", "compact"}), frozenset({"compact"}), frozenset()]
    ),
)
looks = st.tuples(st.just("look"), st.tuples(configs, st.none() | near, st.none() | near))
appends = st.tuples(st.just("append"), st.tuples(ages, st.sampled_from([True, True, True, False])))
steps = st.one_of(
    appends,
    appends,
    st.tuples(st.just("idle"), st.sampled_from([1, 50, 5000])),
    st.tuples(st.just("delete"), st.floats(0, 1)),
    looks,
)


def take(world: World, what: str, value: Any) -> None:
    if what == "append":
        world.append(value[0])
        if value[1]:
            world.log.advance_high_watermark(world.log.log_end_offset)
    elif what == "idle":
        world.now_ms += value
    elif what == "delete":
        world.delete(value)
    else:
        config, size, consumed = value
        world.consume(consumed)
        world.look(world.rules_of(config, size))


ONE = ("append", ([NO_TIMESTAMP], True))


@example(False, [ONE] * 4, [("delete", 1.0), ONE, ("delete", 0.0)], ("look", (LogConfig(retention_ms=-1), None, None)))
@settings(max_examples=examples(300), deadline=None)
@given(st.booleans(), st.lists(appends, min_size=3, max_size=9), st.lists(steps, max_size=15), looks)
def test_a_log_keeps_what_the_rules_keep_of_its_records(
    by_append_time: bool,
    first: list[tuple[str, Any]],
    some: list[tuple[str, Any]],
    last: tuple[str, Any],
) -> None:
    world = World(by_append_time=by_append_time)
    for what, value in (*first, *some, last):
        take(world, what, value)
