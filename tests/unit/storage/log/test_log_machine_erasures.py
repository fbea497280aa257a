"""The histories of a log with erasures that name offsets, and mistakes that they find.

The model knows which offsets each erasure in the log names, and the largest high watermark at which each was seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.records import iterate_batches
from lowtide.storage.compaction import erasing
from lowtide.storage.directory.log_erasure import segment_to_erase
from lowtide.storage.log import erased_reads
from lowtide.storage.log.erased_reads import without_erased
from lowtide.storage.log.log import AppendedBatch
from lowtide.storage.log.log_erasures import LogErasures
from lowtide.storage.log.markers import make_erasure
from lowtide.storage.log.opening import loader
from tests.examples import examples
from tests.unit.storage.log.test_log_machine import LogMachine, Row, records_of
from tests.unit.storage.log.test_log_machine_erasing import TELLING_BYTES, ErasingLogMachine
from tests.unit.storage.log.test_log_machine_plants import finds


class ErasuresLogMachine(ErasingLogMachine):
    """Records are erased from the middle of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[int, set[int]] = {}
        """The offsets that each erasure names, by its own offset."""
        self.maybe_gone: set[int] = set()
        """Named by an erasure that was in effect, and may have been cut by an unclean truncation since."""
        self.took_part: dict[UUID, int] = {}
        """The searches in which this replica has taken part, each with the change that must be on the disk."""

    @rule(shares=st.lists(st.floats(0, 1), min_size=1, max_size=4), run=st.integers(0, 5))
    def name_offsets(self, shares: list[float], run: int) -> None:
        end = len(self.rows)
        firsts = {self.log_start + int((end - self.log_start) * share) for share in shares}
        self._name({each for first in firsts for each in range(first, first + run + 1)})

    def _name(self, wanted: set[int]) -> None:
        end = len(self.rows)
        offsets = {each for each in wanted if self.log_start <= each < end} - self.named.keys()
        if not offsets:
            return
        record = ErasureRecord(UUID(int=end), OffsetRanges.of_offsets(offsets).ranges())
        batch = make_erasure(record, self.log.segments.active.max_timestamp)
        self.in_flight = [Row(b"", self.leader_epoch, end, end, -1)]
        appended = self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, now_ms=self.now_ms)
        assert appended == AppendedBatch(end, end, -1)
        self.rows += self.in_flight
        self.in_flight = []
        self.named[end] = offsets

    def _forget_from(self, end: int) -> None:
        self.maybe_gone |= self._in_effect(self.high_watermark)
        if end and end - 1 in self.maybe_gone and self.rows[end - 1].batch_last >= end:
            for offset in range(self.rows[end - 1].batch_base, end):
                self.rows[offset] = self.rows[offset]._replace(batch_base=offset, batch_last=offset)
        super()._forget_from(end)
        self.named = {offset: named for offset, named in self.named.items() if offset < len(self.rows)}
        self.maybe_gone = {offset for offset in self.maybe_gone if offset < len(self.rows)}

    def _end_after_cut(self, offset: int) -> int:
        """A batch that lost all its records leaves a gap, in which the log may end."""
        if offset >= len(self.rows):
            return len(self.rows)
        if self.log.erasures.has_begun_from(offset):
            return self.log_start
        place = self.log.segments[max(self.log.segments.number_of(offset), 0)].find(offset)
        return max(offset if place is None else min(place.base_offset, offset), self.log_start)

    @rule(flushes=st.booleans())
    def take_part_in_a_search(self, flushes: bool) -> None:
        search_id = UUID(int=self.random.getrandbits(100))
        self.took_part[search_id] = self.log.erasures.note_search(search_id)
        if flushes:
            self.log.flush_wanted = True
            self.flush()

    def _load(self, *, clean: bool, lowest: int) -> None:
        erasures = self.log.erasures
        durable = {each for each in erasures.searches if erasures.is_durable(self.took_part[each])}
        self._load_records(clean=clean, lowest=lowest)
        found = self.log.erasures.searches
        assert durable <= set(found), "a replica that took part in a search has forgotten it"
        assert set(found) <= set(self.took_part)
        self.took_part = dict.fromkeys(found, self.log.erasures.changes)

    def _load_records(self, *, clean: bool, lowest: int) -> None:
        # Nothing is left of erased records at the end, if an unclean truncation has cut their erasure.
        while lowest - 1 in self.maybe_gone:
            lowest -= 1
        super()._load(clean=clean, lowest=lowest)

    def _known_on_disk(self) -> dict[str, Any]:
        """The checkpoint of recovery points is written now and then."""
        return super()._known_on_disk() | {"recovery_point": self.random.randint(0, self.synced_end)}

    def _in_effect(self, high_watermark: int) -> set[int]:
        effective = [named for offset, named in self.named.items() if offset < high_watermark]
        return set().union(*effective)

    @rule()
    def begin_erasing_what_is_named(self) -> None:
        if self.is_erasing:
            return
        segment = segment_to_erase(self.log)
        if segment is not None:
            self._rewrite(segment)

    @rule(commits=st.booleans())
    def note_that_erasing_begins(self, commits: bool) -> None:
        """It begins once this is on the disk."""
        if commits:
            self.commit()
        self.flush()
        segment_to_erase(self.log)
        self.flush()

    @rule(commits=st.booleans(), power=st.booleans(), dies=st.booleans())
    def erase_what_is_named(self, commits: bool, power: bool, dies: bool) -> None:
        if commits:
            self.commit()
        self.note_that_erasing_begins(commits=False)
        for _ in range(2 * len(self.log.segments) + 2):
            self.begin_erasing_what_is_named()
            while self.jobs:
                self.go_on()
        assert segment_to_erase(self.log) is None
        assert not commits or self.log.erasures.is_done(len(self.rows))
        if dies:
            self.cut_power() if power else self.kill()

    @rule(power=st.booleans())
    def erase_the_last_batch_of_a_segment(self, power: bool) -> None:
        """Erases the last batch. Only its position is left, which tells a start where the segment ends."""
        if self.rows:
            self.roll()
            self._name(set(range(self.rows[-1].batch_base, len(self.rows))))
            self.erase_what_is_named(commits=True, power=power, dies=True)

    @rule(
        shares=st.lists(st.floats(0, 1), min_size=1, max_size=4),
        steps=st.integers(0, 12),
        cut=st.floats(0, 1),
        sizes=LogMachine.sizes,
    )
    def truncate_while_erasing_what_is_named(
        self, shares: list[float], steps: int, cut: float, sizes: list[int]
    ) -> None:
        self.name_offsets(shares, 2)
        self.note_that_erasing_begins(commits=True)
        self.begin_erasing_what_is_named()
        for _ in range(steps):
            self.go_on()
        self.truncate(cut)
        self._append(sizes, idempotent=False)

    # What must hold

    def _read_all(self, end: int, *, seeks_records: bool) -> Iterator[Any]:
        """Reads as a client does: from each answer on, behind its last batch."""
        offset = self.log_start
        while offset < end:
            limit = self.random.choice((0, 150, 1000))
            read = self.log.read(offset, limit, end_offset=end, seeks_records=seeks_records)
            if read.slice is None:
                return
            content = read.slice.file.pread(read.slice.size, read.slice.position)
            headers = [header for _, header in iterate_batches(content)]
            assert headers, f"no whole batch at {offset}"
            assert headers[-1].last_offset >= offset, "a reader stands still"
            yield from (record for record in records_of(content) if record.offset >= self.log_start)
            offset = headers[-1].last_offset + 1

    @invariant()
    def every_record_is_read_from_every_offset(self) -> None:
        """Each live record once and in order, no erased one, whoever reads."""
        log, end = self.log, len(self.rows)
        gone = self._in_effect(log.high_watermark)
        readable = log.erasures.readable_end(log.high_watermark, log.high_watermark)
        if readable < end:  # A batch that may lose a record waits whole.
            readable = min(readable, self.rows[readable].batch_base)
        ends = {True: readable, False: end}
        for is_consumer in (True, False):
            read_to = log.high_watermark if is_consumer else end
            found = [each.offset for each in self._read_all(read_to, seeks_records=is_consumer)]
            live = [offset for offset in range(self.log_start, ends[is_consumer]) if offset not in gone]
            assert found == [offset for offset in live if offset in found], (is_consumer, log)
            assert set(live) - set(found) <= self.maybe_gone, (is_consumer, live, found, self.named, log)
        for each in self._read_all(end, seeks_records=False):
            assert each.offset in self.named or each.value == self.rows[each.offset].value

    @invariant()
    def consumers_read_nothing_that_may_be_erased(self) -> None:
        """An erasure that isn't known to be committed: its records are neither read nor skipped."""
        uncertain = [named for offset, named in self.named.items() if offset >= self.log.high_watermark]
        first = min((min(named) for named in uncertain), default=len(self.rows))
        for record in self._read_all(self.log.high_watermark, seeks_records=True):
            assert record.offset < first

    @invariant()
    def nothing_at_or_above_the_end_that_was_given_is_read(self) -> None:
        if self.log_start < len(self.rows):
            offset = self.random.randrange(self.log_start, len(self.rows))
            end = self.random.randrange(offset, len(self.rows) + 1)
            read = self.log.read(offset, 10_000, end_offset=end)
            content = b"" if read.slice is None else read.slice.file.pread(read.slice.size, read.slice.position)
            assert all(record.offset < end for record in records_of(content))

    @invariant()
    def what_was_rewritten_is_in_no_segment(self) -> None:
        """Behind a hole, if the log start has passed the erasure: a power cut may bring back what a hole had."""
        known = {each.offset for each in self.log.erasures.known}
        for offset, named in self.named.items():
            values = [self.rows[each].value for each in named if len(self.rows[each].value) >= TELLING_BYTES]
            for segment in self.log.segments if values and self._is_done(offset) else ():
                begin = 0 if offset in known else segment.floor
                content = self.filesystem.read_bytes(segment.path)[begin : segment.size]
                assert not any(value in content for value in values), segment

    def _is_done(self, offset: int) -> bool:
        return all(not each.left for each in self.log.erasures.known if each.offset == offset)

    @invariant()
    def erasures_are_those_of_the_log(self) -> None:
        known = {each.offset for each in self.log.erasures.known}
        assert known <= self.named.keys()
        assert {offset for offset in self.named if offset >= self.log_start} <= known


ErasuresLogMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
test_any_history_of_a_log_with_erasures = ErasuresLogMachine.TestCase


def test_an_erasure_that_takes_a_live_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(path: str, position: int, batch: Any, erased: OffsetRanges) -> Any:
        return without_erased(path, position, batch, OffsetRanges((first, last + 1) for first, last in erased))

    monkeypatch.setattr(erasing, "without_erased", too_much)
    finds(ErasuresLogMachine)


@pytest.mark.slow
def test_an_erasure_that_is_read_around_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erased_reads, "without_erased", lambda _path, _at, batch, _erased: (None, batch))
    finds(ErasuresLogMachine)


@pytest.mark.slow
def test_an_erasure_that_takes_effect_before_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = LogErasures.begin
    monkeypatch.setattr(LogErasures, "begin", lambda self, _durable_end: begin(self, 1 << 40))
    finds(ErasuresLogMachine)


def test_an_erasure_that_is_lost_in_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "merged", lambda stored, _found, _recovery_point: list(stored))
    finds(ErasuresLogMachine)


def test_an_erasure_that_a_truncation_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogErasures, "cut", lambda _self, _end_offset: None)
    finds(ErasuresLogMachine)


def test_consumers_that_read_what_may_be_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogErasures, "readable_end", lambda _self, end_offset, _high_watermark: end_offset)
    finds(ErasuresLogMachine)


@pytest.mark.slow
def test_a_rewritten_segment_without_its_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    change = erasing.SegmentErasure._change

    def without_last(self: erasing.SegmentErasure, position: int, size: int, erased: OffsetRanges) -> Any:
        found = change(self, position, size, erased)
        if found is not None and position + size == self.order.size and len(found.left) == 61:
            return found._replace(left=b"")
        return found

    monkeypatch.setattr(erasing.SegmentErasure, "_change", without_last)
    finds(ErasuresLogMachine)
