"""The search of a log while it changes: nothing that is in a file is missed, and nothing that is cut is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import NO_RATE_LIMIT
from lowtide.storage.erasures import key_filter, log_search, search_work
from lowtide.storage.erasures.log_search import LogSearch, SearchedLog, SearchFailure, SearchPorts, SearchTerms
from lowtide.storage.erasures.record_search import KeySelector, OffsetSelector, RecordSelector
from lowtide.storage.log.truncation import LogTruncation
from tests.unit.storage.compaction.compacting import DIRECTORY, CompactedLog, StepwiseWorker, abort, produce

PERSON = KeySelector(frozenset([b"person"]))
Result = SearchedLog | SearchFailure


class SearchedWorld:
    """A log on a memory disk that is searched step by step."""

    def __init__(self) -> None:
        self.world = CompactedLog(MemoryFileSystem())
        self.worker = StepwiseWorker(self.world.filesystem)
        self.results: list[tuple[Result, str | None]] = []
        self.is_here = True

    def fill(self, segments: int = 4) -> None:
        """Segments with the person's record as the first of three batches."""
        for number in range(segments):
            self.world.append((b"person", b"secret"), (b"other", b"x"))
            self.world.append((b"else", b"%d" % number), compression=Compression.ZSTD)
            self.world.append((b"else", b"person"))
            if number + 1 < segments:
                self.world.roll()

    def begin(
        self,
        selector: RecordSelector = PERSON,
        *,
        filters: bool = False,
        end_offset: int | None = None,
        first_offset: int = -1,
    ) -> LogSearch:
        log = self.world.log
        end = log.log_end_offset if end_offset is None else end_offset
        terms = SearchTerms(selector, end, first_offset, filters, NO_RATE_LIMIT, bytes(32))
        ports = SearchPorts(self.world.filesystem, self.worker, lambda each: self.is_here and each is self.world.log)
        search = LogSearch(log, terms, ports, lambda *result: self.results.append(result))
        search.begin()
        return search

    def finish(self) -> Result:
        while self.worker.step():
            pass
        return self.results.pop()[0]

    def found(self, selector: RecordSelector = PERSON, **options: bool) -> list[int]:
        self.begin(selector, **options)
        result = self.finish()
        assert isinstance(result, SearchedLog), result
        return list(result.records.offsets)

    def in_files(self) -> list[int]:
        return [record.offset for record in self.world.records() if record.key == b"person"]

    def names(self) -> list[str]:
        return [name for name in self.world.names() if "keyfilter" in name]


@pytest.fixture
def searched() -> SearchedWorld:
    return SearchedWorld()


def test_a_search_finds_all_records_up_to_its_end(searched: SearchedWorld) -> None:
    """Protects the whole: offsets, timestamps and epochs, what was searched, and the progress."""
    searched.fill()
    end = searched.world.log.log_end_offset
    search = searched.begin()
    searched.world.append((b"person", b"later"))
    result = searched.finish()
    assert isinstance(result, SearchedLog)
    assert (result.first_offset, result.end_offset) == (0, end)
    assert list(result.records.offsets) == [0, 4, 8, 12]
    assert set(result.records.timestamps) == {searched.world.now_ms}
    assert set(result.records.leader_epochs) == {0}
    assert search.searched_bytes == search.total_bytes > 0
    searched.begin(end_offset=8)
    result = searched.finish()
    assert isinstance(result, SearchedLog)
    assert list(result.records.offsets) == [0, 4]


def test_records_of_transactions_are_found_in_any_state(searched: SearchedWorld) -> None:
    """Protects against records of aborted and open transactions that would stay on the disk; markers never match."""
    produce(searched.world, 1, 0, b"person")
    abort(searched.world, 1)
    produce(searched.world, 2, 0, b"person")
    end = searched.world.log.log_end_offset
    assert searched.found() == [0, 2]
    every = OffsetSelector(((0, end - 1),))
    assert searched.found(every) == [0, 2]


def test_deleted_records_that_are_still_in_the_file_are_found(searched: SearchedWorld) -> None:
    """Protects rule 8: a batch that straddles the log start still has them, and a follower may start lower."""
    searched.fill(1)
    searched.world.log.move_log_start(1)
    searched.begin()
    result = searched.finish()
    assert isinstance(result, SearchedLog)
    assert result.first_offset == 0
    assert list(result.records.offsets) == [0]


def test_an_empty_log_is_searched(searched: SearchedWorld) -> None:
    """Protects new partitions."""
    assert searched.found() == []


def test_a_wrong_checksum_ends_the_search(searched: SearchedWorld) -> None:
    """Protects from calling a log clean that can't be read."""
    searched.fill(2)
    path = searched.world.log.segments[0].path
    content = bytearray(searched.world.filesystem.read_bytes(path))
    content[70] ^= 1
    searched.world.filesystem.write_bytes(path, bytes(content))
    searched.begin()
    assert searched.finish() is SearchFailure.UNREADABLE


def test_a_compaction_meanwhile_is_noticed(searched: SearchedWorld) -> None:
    """Protects against files that were exchanged: at each step of the search a whole compaction happens."""
    steps = 0
    while True:
        world = SearchedWorld()
        world.fill()
        world.world.flush()
        world.begin()
        went_on = [world.worker.step() for _ in range(steps)]
        assert world.world.clean() is not None
        result = world.finish()
        assert isinstance(result, SearchedLog), (steps, result)
        assert set(world.in_files()) <= set(result.records.offsets), steps
        if not all(went_on):
            return
        steps += 1


def test_a_truncation_meanwhile_is_noticed() -> None:
    """Protects others' records: after a truncation another record may have the offset that was found."""
    steps = 0
    while True:
        world = SearchedWorld()
        world.fill()
        end = world.world.log.log_end_offset
        world.begin()
        for _ in range(steps):
            world.worker.step()
        if world.results:
            return
        LogTruncation(world.world.log).truncate_to(4, now_ms=world.world.now_ms)
        world.world.log.truncating = 0
        while world.world.log.log_end_offset < end:
            world.world.append((b"another", b"x"))
        result = world.finish()
        assert isinstance(result, SearchedLog), (steps, result)
        assert list(result.records.offsets) == [0] == world.in_files(), steps
        steps += 1


def test_a_log_that_is_cut_below_the_end_of_the_search_has_no_result(searched: SearchedWorld) -> None:
    """Protects an erasure, which is appended behind the searched end."""
    searched.fill()
    searched.begin()
    LogTruncation(searched.world.log).truncate_to(4, now_ms=searched.world.now_ms)
    assert searched.finish() is SearchFailure.CUT


def test_segments_that_retention_removes_meanwhile_are_passed_over(searched: SearchedWorld) -> None:
    """Protects the search from a missing file."""
    searched.fill()
    searched.begin()
    log = searched.world.log
    log.move_log_start(8)
    for removed in log.files.remove_below(8, log.config):
        removed.mark_deleted(searched.world.filesystem)
        removed.unlink(searched.world.filesystem)
    result = searched.finish()
    assert isinstance(result, SearchedLog)
    assert list(result.records.offsets) == [8, 12]


def test_a_log_that_changes_at_each_attempt_ends_the_search(searched: SearchedWorld) -> None:
    """Protects the worker from a search without end."""
    searched.fill(2)
    searched.begin()
    for _ in range(1000):
        searched.world.log.segments.active.token = type(searched.world.log.segments.active.token)()
        if not searched.worker.step():
            break
    assert searched.results.pop()[0] is SearchFailure.CHANGED


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        (lambda world, _search: setattr(world, "is_here", False), SearchFailure.MOVED),
        (lambda _world, search: search.cancel(), SearchFailure.CANCELLED),
    ],
    ids=["moved", "cancelled"],
)
def test_a_search_ends_once(
    searched: SearchedWorld, change: Callable[[SearchedWorld, LogSearch], None], failure: SearchFailure
) -> None:
    """Protects the jobs that wait for it, whenever it ends."""
    searched.fill()
    for steps in range(4):
        search = searched.begin(filters=True)
        for _ in range(steps):
            searched.worker.step()
        change(searched, search)
        assert searched.finish() is failure
        assert not searched.results
        searched.is_here = True
    assert not [name for name in searched.names() if name.endswith(".tmp")]


def test_too_many_records_are_refused(searched: SearchedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the memory of the broker."""
    monkeypatch.setattr(log_search, "FOUND_MAX", 3)
    searched.fill()
    searched.begin()
    assert searched.finish() is SearchFailure.TOO_MANY


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
def test_filters_spare_segments_and_never_a_record(searched: SearchedWorld) -> None:
    """Protects a person whose records a filter would hide; also after a compaction and a truncation."""
    searched.fill()
    assert searched.found(filters=True) == [0, 4, 8, 12]
    assert len(searched.names()) == 3
    searched.begin(KeySelector(frozenset([b"nobody"])), filters=True)
    steps = 0
    while searched.worker.step():
        steps += 1
    assert not searched.results.pop()[0].records.offsets
    for segment in searched.world.log.segments[:3]:  # Nothing but the headers is read any more.
        content = bytearray(searched.world.filesystem.read_bytes(segment.path))
        content[61] ^= 1
        searched.world.filesystem.write_bytes(segment.path, bytes(content))
    assert searched.found(KeySelector(frozenset([b"nobody"])), filters=True) == []
    searched.begin(filters=True)
    assert searched.finish() is SearchFailure.UNREADABLE


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
def test_a_search_reads_only_the_sections_that_may_have_a_key(
    searched: SearchedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects large segments, of which nearly each has one of a million records, and each record that is in one."""
    monkeypatch.setattr(key_filter, "_SECTION_BYTES_MIN", 1)
    for number in range(40):
        searched.world.append((b"person-%d" % number, bytes(80)), (b"person-%d" % (number // 2), bytes(80)))
    searched.world.roll()
    searched.world.append((b"end", b""))
    segment = searched.world.log.segments[0]
    selectors = [KeySelector(frozenset([b"person-%d" % number])) for number in range(40)]
    expected = [searched.found(selector) for selector in selectors]
    assert [searched.found(selector, filters=True) for selector in selectors] == expected
    content = bytearray(searched.world.filesystem.read_bytes(segment.path))
    place = segment.find(50)
    assert place is not None
    content[place.position + 65] ^= 1
    searched.world.filesystem.write_bytes(segment.path, bytes(content))
    unread = []
    for selector, offsets in zip(selectors, expected, strict=True):
        search = searched.begin(selector, filters=True)
        result = searched.finish()
        if result is SearchFailure.UNREADABLE:
            continue
        assert isinstance(result, SearchedLog)
        assert list(result.records.offsets) == offsets
        assert search.searched_bytes == search.total_bytes
        unread.append(offsets)
    assert len(unread) > 20, "the damaged section isn't read for most keys"
    assert all(offset // 2 != 25 for offsets in unread for offset in offsets)


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
def test_a_filter_of_the_active_segment_covers_its_beginning(
    searched: SearchedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects large segments that are being written, and each record that was appended since."""
    monkeypatch.setattr(search_work, "TAIL_BYTES", 4_000)
    nobody = KeySelector(frozenset([b"nobody"]))
    searched.world.append((b"person", bytes(800)))
    assert searched.found(filters=True) == [0]
    assert searched.names() == [], "it is small"
    for _ in range(9):
        searched.world.append((b"other", bytes(800)))
    assert searched.found(nobody, filters=True) == []
    built = searched.world.filesystem.read_bytes(f"{DIRECTORY}/{0:020d}.keyfilter")
    searched.world.append((b"person", b"later"))
    assert searched.found(filters=True) == [0, 10]
    assert searched.world.filesystem.read_bytes(f"{DIRECTORY}/{0:020d}.keyfilter") == built
    segment = searched.world.log.segments[0]
    place = segment.find(5)
    assert place is not None
    content = bytearray(searched.world.filesystem.read_bytes(segment.path))
    content[place.position + 61] ^= 1
    searched.world.filesystem.write_bytes(segment.path, bytes(content))
    assert searched.found(nobody, filters=True) == [], "only what isn't covered is read"
    content[place.position + 61] ^= 1
    searched.world.filesystem.write_bytes(segment.path, bytes(content))
    for _ in range(6):
        searched.world.append((b"other", bytes(800)))
    assert searched.found(filters=True) == [0, 10]
    assert searched.world.filesystem.read_bytes(f"{DIRECTORY}/{0:020d}.keyfilter") != built
    searched.world.roll()
    searched.world.append((b"end", b""))
    assert searched.found(filters=True) == [0, 10]


ROUNDS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2, 6]),
        st.lists(st.sampled_from([b"person", b"others", b"nobody"]), max_size=6),
        st.sampled_from(["", "", "roll", "reopen"]),
    ),
    min_size=2,
    max_size=8,
)
"""So many records are cut, these are appended in a later leader epoch, and what follows before the next search."""


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
@given(ROUNDS)
def test_filters_of_the_active_segment_never_hide_a_record(rounds: list[tuple[int, list[bytes], str]]) -> None:
    """Protects a person whatever was cut and appended again since the last search. All batches have the same size."""
    searched = SearchedWorld()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(search_work, "TAIL_BYTES", 200)  # Two batches.
        monkeypatch.setattr(key_filter, "_SECTION_BYTES_MIN", 1)
        for epoch, (cut, keys, event) in enumerate(rounds):
            log = searched.world.log
            if 0 < cut <= log.log_end_offset:
                LogTruncation(log).truncate_to(log.log_end_offset - cut, now_ms=searched.world.now_ms)
                log.truncating = 0
            for key in keys:
                rows = [(searched.world.now_ms, key, b"v", ())]
                searched.world.append_batch(build_batch(rows, base_offset=log.log_end_offset, leader_epoch=epoch))
            if event == "roll":
                searched.world.roll()
            elif event == "reopen":
                searched.world.reopen()
            assert searched.found(filters=True) == searched.found()


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
def test_a_filter_of_an_older_version_is_built_again(searched: SearchedWorld) -> None:
    """Protects upgrades: the old file isn't believed, and doesn't stay."""
    searched.fill()
    assert searched.found(filters=True) == [0, 4, 8, 12]
    path = f"{DIRECTORY}/{4:020d}.keyfilter"
    built = searched.world.filesystem.read_bytes(path)
    searched.world.filesystem.write_bytes(path, built[:4] + b"\0\1" + built[6:103])
    assert searched.found(filters=True) == [0, 4, 8, 12]
    assert searched.world.filesystem.read_bytes(path)[4:6] == b"\0\2"


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
def test_a_filter_of_replaced_segments_does_not_count(searched: SearchedWorld) -> None:
    """Protects rule 13: truncate, append, close gives a segment with the same name and other records."""
    searched.fill()
    searched.found(filters=True)
    LogTruncation(searched.world.log).truncate_to(5, now_ms=searched.world.now_ms)
    searched.world.log.truncating = 0
    searched.world.append((b"late", b"secret"), (b"other", b"x"))
    searched.world.append((b"else", b"0"))
    searched.world.append((b"else", b"person"))
    searched.world.roll()
    searched.world.append((b"end", b""))
    assert searched.found(KeySelector(frozenset([b"late"])), filters=True) == [4]
    assert f"{DIRECTORY}/{4:020d}.keyfilter".rsplit("/", 1)[1] in searched.names()


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
def test_a_start_removes_filters_without_a_segment(searched: SearchedWorld) -> None:
    """Protects erased keys: a filter attests them, and goes with its segment, also after a crash."""
    searched.fill()
    searched.found(filters=True)
    assert len(searched.names()) == 3
    searched.world.filesystem.unlink(searched.world.log.segments[0].path)
    searched.world.filesystem.write_bytes(f"{DIRECTORY}/{4:020d}.keyfilter.tmp", b"begun")
    searched.world.log.move_log_start(4)
    searched.world.reopen()
    assert searched.names() == [f"{4:020d}.keyfilter", f"{8:020d}.keyfilter"]
    assert searched.found(filters=True) == [4, 8, 12]


@pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
def test_filters_leave_with_the_segments_that_are_replaced(searched: SearchedWorld) -> None:
    """Protects erased keys: the filter of a segment that was written again still attests them."""
    searched.fill()
    searched.found(filters=True)
    searched.world.flush()
    assert searched.world.clean() is not None
    assert not [name for name in searched.names() if not name.endswith(".deleted")]
    for removed in searched.world.removed:
        removed.unlink(searched.world.filesystem)
    assert searched.names() == []
    assert searched.found(filters=True) == searched.in_files()


def test_a_search_from_an_offset_reads_what_is_behind_it(searched: SearchedWorld) -> None:
    """Protects standing erasures, which search what is new: nothing behind the offset is missed, and no filter lies."""
    searched.fill()
    every = searched.in_files()
    whole = searched.begin().total_bytes
    searched.finish()
    for first_offset in range(searched.world.log.log_end_offset + 1):
        search = searched.begin(first_offset=first_offset, filters=True)
        result = searched.finish()
        assert isinstance(result, SearchedLog)
        assert list(result.records.offsets) == [each for each in every if each >= first_offset]
        assert search.searched_bytes <= whole
    assert searched.found(filters=True) == every, "a filter knows all of its segment"
