"""What a worker reads of segments, and what it reports: the records, the bytes, a filter, or why it can't go on."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import WorkStep
from lowtide.storage.erasures import found_keys, key_filter, search_work
from lowtide.storage.erasures.record_search import KeySelector, OffsetSelector, RecordSelector
from lowtide.storage.erasures.search_work import (
    SearchedSegment,
    SearchOrder,
    SearchProgress,
    SearchStopped,
    SegmentDone,
    decode_report,
    encode_search,
    search_log,
)
from lowtide.storage.errors import StorageError

FOLDER = "/disk/t-0"
PERSON, NOBODY = KeySelector(frozenset([b"person"])), KeySelector(frozenset([b"nobody"]))
compiled = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")
Rows = list[bytes | None]


class CountedFile:
    """A file that tells its disk when it is closed."""

    def __init__(self, file: Any, disk: CountedFiles) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        self._disk.open_count -= 1
        self._file.close()


class CountedFiles(MemoryFileSystem):
    """A disk that counts the files which are open for reading."""

    open_count = 0

    def open(self, path: str, *given: Any, **options: Any) -> Any:
        file = super().open(path, *given, **options)
        if given or options:
            return file
        self.open_count += 1
        return CountedFile(file, self)


class SearchedFiles:
    """Segments on a memory disk."""

    def __init__(self) -> None:
        self.filesystem = CountedFiles()
        self.filesystem.make_directories(FOLDER)
        self.segments: list[SearchedSegment] = []
        self.end_offset = 0
        self.moved_bytes = 0

    def add(self, *batches: Rows, is_closed: bool = True, floor: int = 0, value: bytes = b"v", **fields: Any) -> int:
        """Appends a segment. Returns its size."""
        base_offset, content = self.end_offset, b""
        for keys in batches:
            rows = [(1, key, value, ()) for key in keys]
            content += build_batch(rows, base_offset=self.end_offset, leader_epoch=2, **fields)
            self.end_offset += len(keys)
        path = f"{FOLDER}/{base_offset:020d}.log"
        self.filesystem.write_bytes(path, content)
        self.segments.append(SearchedSegment(base_offset, self.end_offset, path, floor, len(content), is_closed))
        return len(content)

    def damage(self, number: int, position: int) -> None:
        path = self.segments[number].path
        content = bytearray(self.filesystem.read_bytes(path))
        content[position] ^= 1
        self.filesystem.write_bytes(path, bytes(content))

    def order(self, selector: RecordSelector = PERSON, **changes: Any) -> SearchOrder:
        given: dict[str, Any] = {"end_offset": self.end_offset, "found_max": 100, "uses_filters": False}
        return SearchOrder(
            directory=FOLDER, segments=self.segments, selector=selector, secret=bytes(32), **(given | changes)
        )

    def steps(self, selector: RecordSelector = PERSON, **changes: Any) -> Iterator[WorkStep]:
        return search_log(self.filesystem, encode_search(self.order(selector, **changes)))

    def run(self, selector: RecordSelector = PERSON, **changes: Any) -> list[Any]:
        """Returns all messages."""
        before = self.filesystem.open_count
        taken = list(self.steps(selector, **changes))
        self.moved_bytes = sum(step.moved_bytes for step in taken)
        assert self.filesystem.open_count == before
        return [decode_report(step.message) for step in taken if step.message is not None]

    def done(self, selector: RecordSelector = PERSON, **changes: Any) -> list[SegmentDone]:
        """Returns what is reported about each segment. The reported bytes are those of all."""
        messages = self.run(selector, **changes)
        found = [each for each in messages if isinstance(each, SegmentDone)]
        reported = [each.searched_bytes for each in messages if isinstance(each, SearchProgress)]
        assert all(reported)
        assert len(found) + len(reported) == len(messages)
        if "end_offset" not in changes:
            assert sum(reported) == sum(each.size - each.floor for each in self.segments)
        return found

    def names(self) -> list[str]:
        return [name for name in sorted(self.filesystem.listdir(FOLDER)) if "keyfilter" in name]

    def name_filters(self) -> None:
        for name in self.names():
            self.filesystem.rename(f"{FOLDER}/{name}", f"{FOLDER}/{name.removesuffix('.tmp')}")


@pytest.fixture
def files() -> SearchedFiles:
    return SearchedFiles()


def offsets(done: SegmentDone) -> list[int]:
    return list(array("q", done.offsets))


def test_each_segment_reports_its_records(files: SearchedFiles) -> None:
    size = files.add([b"person", b"a"], [b"b"]) + files.add([b"c"]) + files.add([b"d", b"person"], [b"person"])
    found = files.done()
    assert [(each.base_offset, each.first_offset, offsets(each)) for each in found] == [
        (0, 0, [0]),
        (3, 3, []),
        (4, 4, [5, 6]),
    ]
    assert [(each.was_read, each.has_filter, each.keys) for each in found] == [(True, False, [])] * 3
    assert list(array("i", found[2].leader_epochs)) == [2, 2]
    assert list(array("q", found[2].timestamps)) == [1, 1]
    assert files.moved_bytes == size


def test_progress_is_reported_after_so_many_bytes(files: SearchedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [files.add([b"a"]), files.add([b"b"]), files.add([b"c"])]
    assert len(set(sizes)) == 1
    assert [each.searched_bytes for each in files.run() if isinstance(each, SearchProgress)] == sizes
    monkeypatch.setattr(search_work, "PROGRESS_BYTES", sizes[0])
    steps = [step for step in files.steps() if step.moved_bytes]
    reports = [decode_report(step.message) for step in steps if step.message is not None]
    assert reports == [SearchProgress(sizes[0])] * 3
    assert len(files.done()) == 3


def test_keys_are_reported_if_they_are_wanted(files: SearchedFiles) -> None:
    files.add([b"a", None, b"b"], [b"a"])
    files.add([b"c"])
    every = OffsetSelector(((1, 4),))
    found = files.done(every, with_keys=True)
    assert [each.keys for each in found] == [[None, b"b", b"a"], [b"c"]]
    assert [list(array("i", each.numbers)) for each in found] == [[0, 1, 2], [0]]
    assert [list(array("q", each.producer_ids)) for each in found] == [[-1] * 3, [-1]]
    assert [each.keys for each in files.done(every)] == [[], []]


def test_what_is_above_the_end_is_not_read(files: SearchedFiles) -> None:
    files.add([b"person"], [b"person"], [b"person"], is_closed=False)
    third = 2 * (files.segments[0].size // 3)
    files.damage(0, third + 65)
    [done] = files.done(end_offset=1)
    assert offsets(done) == [0]
    [stopped] = [each for each in files.run() if isinstance(each, SearchStopped)]
    assert stopped.error_number == 0


@pytest.mark.parametrize(
    ("ranges", "read"),
    [
        (((0, 0),), [True, False, False]),
        (((2, 2),), [True, False, False]),
        (((3, 3),), [False, True, False]),
        (((2, 3),), [True, True, False]),
        (((9, 9),), [False, False, False]),
    ],
)
def test_segments_without_a_wanted_offset_are_not_read(
    files: SearchedFiles, ranges: tuple[tuple[int, int], ...], read: list[bool]
) -> None:
    for _ in range(2):
        files.add([b"a"], [b"b", b"c"])
    files.add([b"d"])
    found = files.done(OffsetSelector(ranges))
    assert [each.was_read for each in found] == read
    wanted = [offset for first, last in ranges for offset in range(first, last + 1) if offset < 7]
    assert [offset for each in found for offset in offsets(each)] == wanted


def test_a_batch_without_a_wanted_offset_is_not_decompressed(files: SearchedFiles) -> None:
    files.add([b"a"], [b"b"], compression=Compression.ZSTD)
    path = files.segments[0].path
    broken = bytearray(build_batch([(1, b"a", b"v", ())], base_offset=0, compression=Compression.NONE))
    broken[22] |= Compression.ZSTD
    broken[17:21] = search_crc(bytes(broken))
    content = files.filesystem.read_bytes(path)
    files.filesystem.write_bytes(path, bytes(broken) + content[len(content) // 2 :])
    files.segments[0] = SearchedSegment(0, 2, path, 0, len(broken) + len(content) // 2, is_closed=True)
    assert [offsets(each) for each in files.done(OffsetSelector(((1, 1),)))] == [[1]]
    [stopped] = files.run(OffsetSelector(((0, 1),)))
    assert isinstance(stopped, SearchStopped)
    assert "the batch at offset 0" in stopped.reason


def search_crc(batch: bytes) -> bytes:
    return key_filter.crc32c(batch[21:]).to_bytes(4, "big")


def test_markers_are_no_records(files: SearchedFiles) -> None:
    files.add([b"person"], is_control=True)
    assert [offsets(each) for each in files.done()] == [[]]


def test_freed_and_empty_segments_have_only_what_is_left(files: SearchedFiles) -> None:
    files.add([b"person"], [b"person"])
    half = files.segments[0].size // 2
    files.segments[0] = SearchedSegment(0, 2, files.segments[0].path, half, 2 * half, is_closed=True)
    files.filesystem.write_bytes(f"{FOLDER}/{2:020d}.log", b"")
    files.segments.append(SearchedSegment(2, 2, f"{FOLDER}/{2:020d}.log", 0, 0, is_closed=False))
    found = files.done()
    assert [(each.first_offset, offsets(each), each.was_read) for each in found] == [(1, [1], True), (None, [], False)]


@pytest.mark.parametrize(("found_max", "is_too_many"), [(4, False), (3, True), (2, True), (1, True)])
def test_the_records_of_an_order_are_bounded(files: SearchedFiles, found_max: int, is_too_many: bool) -> None:
    """Within a segment, too: nothing is read after one record too many."""
    files.add([b"person"], [b"person"])
    files.add([b"person"], [b"person"])
    files.add([b"other"])
    messages = files.run(found_max=found_max)
    if is_too_many:
        assert messages[-1] == SearchStopped(f"more than {found_max} records match", is_too_many=True)
        assert [each.base_offset for each in messages if isinstance(each, SegmentDone)] == [0][: found_max // 2]
        files.damage(1, 65)
        assert messages[-1] == files.run(found_max=1)[-1] or found_max > 1
    else:
        assert [offsets(each) for each in files.done(found_max=found_max)] == [[0, 1], [2, 3], []]


def test_the_keys_of_a_segment_are_bounded(files: SearchedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_keys, "KEYS_MAX", 2)
    files.add([b"a"], [b"b"])
    files.add([b"a"], [b"b"], [b"c"])
    files.add([b"d"])
    messages = files.run(OffsetSelector(((0, 9),)), with_keys=True)
    assert messages[-1] == SearchStopped("the records have too many keys", has_too_many_keys=True)
    assert [each.base_offset for each in messages if isinstance(each, SegmentDone)] == [0]


def test_a_file_that_can_not_be_read_ends_the_search(files: SearchedFiles) -> None:
    files.add([b"person"])
    files.add([b"person"])
    files.filesystem.unlink(files.segments[1].path)
    messages = files.run()
    assert isinstance(messages[0], SearchProgress | SegmentDone)
    assert isinstance(messages[-1], SearchStopped)
    assert (messages[-1].error_number, messages[-1].is_too_many) == (2, False)


def test_an_error_of_the_disk_keeps_its_number(files: SearchedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker takes the directory offline by it."""
    files.add([b"person"])
    for error in (OSError(5, "broken"), StorageError(FOLDER, "broken", error_number=5)):

        def fail(*_: Any, failed: Exception = error) -> Any:
            raise failed

        with monkeypatch.context() as patch:
            patch.setattr(search_work, "open_key_filter", fail)
            messages = files.run(uses_filters=True)
        assert isinstance(messages[-1], SearchStopped)
        assert messages[-1].error_number == 5
        assert messages[-1].reason.startswith(f"{FOLDER}: broken")


def test_a_segment_that_ends_early_is_damaged(files: SearchedFiles) -> None:
    files.add([b"person"])
    files.filesystem.write_bytes(files.segments[0].path, b"short")
    [stopped] = files.run()
    assert isinstance(stopped, SearchStopped)
    assert (stopped.reason.endswith("no record batch begins at byte 0"), stopped.error_number) == (True, 0)


@pytest.mark.parametrize("base_offset", [0, 4, 2**40])
def test_offsets_that_no_crc_contains_are_not_searched(files: SearchedFiles, base_offset: int) -> None:
    """Protects from calling a wrong offset found: the records stay, and others are erased in their place."""
    files.add([b"others", b"person"], [b"person", b"others"])
    path = files.segments[0].path
    content = bytearray(files.filesystem.read_bytes(path))
    half = len(content) // 2
    content[half : half + 8] = base_offset.to_bytes(8, "big")
    files.filesystem.write_bytes(path, bytes(content))
    stopped = files.run()[-1]
    assert isinstance(stopped, SearchStopped)
    assert f"no sound record batch begins at byte {half}" in stopped.reason


@compiled
class TestFilters:
    """Filters of segments, which are built while a segment is read, and spare the next search from reading it."""

    @pytest.fixture(autouse=True)
    def _small_sections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_filter, "_SECTION_BYTES_MIN", 1)
        monkeypatch.setattr(search_work, "TAIL_BYTES", 1_000)

    def test_a_filter_is_built_once_and_used(self, files: SearchedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        files.add([b"others"], [b"person"])
        files.add([b"b"])
        files.add([b"person"], is_closed=False)
        found = files.done(uses_filters=True)
        assert [(each.has_filter, each.was_read) for each in found] == [(True, True), (True, True), (False, True)]
        assert files.names() == [f"{0:020d}.keyfilter.tmp", f"{2:020d}.keyfilter.tmp"]
        files.name_filters()
        files.damage(1, 65)
        found = files.done(uses_filters=True)
        assert [(each.has_filter, each.was_read) for each in found] == [(False, True), (False, False), (False, True)]
        assert [offsets(each) for each in found] == [[1], [], [3]]
        read = files.segments[0].size // 2 + files.segments[2].size
        assert files.moved_bytes == read, "the rate counts what is read"
        monkeypatch.setattr(search_work, "PROGRESS_BYTES", 1)
        files.run(uses_filters=True)
        assert files.moved_bytes == read

    @pytest.mark.parametrize(
        ("selector", "uses_filters"),
        [(PERSON, False), (OffsetSelector(((0, 9),)), True)],
    )
    def test_other_searches_build_and_use_none(
        self, files: SearchedFiles, selector: RecordSelector, uses_filters: bool
    ) -> None:
        files.add([b"person"])
        assert [each.has_filter for each in files.done(selector, uses_filters=uses_filters)] == [False]
        assert files.names() == []
        files.done(NOBODY, uses_filters=True)
        files.name_filters()
        assert [offsets(each) for each in files.done(selector, uses_filters=uses_filters)] == [[0]]

    def test_a_segment_that_is_not_searched_whole_has_no_filter(self, files: SearchedFiles) -> None:
        """A filter that doesn't know what is behind the end of a search would hide it."""
        files.add([b"a"], [b"b"])
        files.add([b"person"], [b"person"])
        found = files.done(uses_filters=True, end_offset=3)
        assert [each.has_filter for each in found] == [True, False]
        assert [each.has_filter for each in files.done(uses_filters=True, end_offset=4)] == [True, True]

    def test_a_segment_with_freed_bytes_has_no_new_filter(self, files: SearchedFiles) -> None:
        """They may come back after a power cut."""
        files.add([b"others"], [b"person"])
        whole = files.segments[0]
        files.segments[0] = SearchedSegment(0, 2, whole.path, whole.size // 2, whole.size, is_closed=True)
        assert [each.has_filter for each in files.done(uses_filters=True)] == [False]

    @pytest.mark.parametrize(("appended", "is_built"), [(1_000, False), (1_001, True)])
    def test_the_active_segment_is_built_when_much_was_appended(
        self, files: SearchedFiles, appended: int, is_built: bool
    ) -> None:
        rest = appended - files.add([b"a"], is_closed=False, value=b"")
        files.segments.clear()
        files.end_offset = 0
        overhead = len(build_batch([(1, b"a", bytes(500), ())])) - 500 - len(build_batch([(1, b"a", b"", ())]))
        size = files.add([b"a"], is_closed=False, value=bytes(rest - overhead))
        assert size == appended
        assert [each.has_filter for each in files.done(uses_filters=True)] == [is_built]

    @pytest.mark.parametrize(("tail", "is_built"), [(1_000, False), (1_001, True)])
    def test_of_a_large_active_segment_an_eighth_may_be_appended(
        self, files: SearchedFiles, monkeypatch: pytest.MonkeyPatch, tail: int, is_built: bool
    ) -> None:
        monkeypatch.setattr(search_work, "TAIL_BYTES", 10)
        search = search_work._SegmentsSearch(files.filesystem, files.order())
        segment = SearchedSegment(0, 1, f"{FOLDER}/0.log", 0, 8_000 + tail, is_closed=False)
        assert search._must_build(segment, 8_000) == is_built

    def test_a_search_that_is_cancelled_leaves_no_filter(self, files: SearchedFiles) -> None:
        """Protects from a filter that attests keys under a temporary name, which nobody renames or removes."""
        files.add([b"person"])
        files.add([b"person"])
        steps = files.steps(uses_filters=True)
        for step in steps:
            if step.message is not None and isinstance(decode_report(step.message), SegmentDone):
                break
        assert files.names() == [f"{0:020d}.keyfilter.tmp"]
        steps.close()  # type: ignore[attr-defined]
        assert files.names() == []

    def test_a_full_disk_leaves_no_filter_and_no_error(
        self, files: SearchedFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files.add([b"person"])
        genuine = files.filesystem.write_bytes

        def fill(path: str, content: bytes) -> None:
            genuine(path, content[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files.filesystem, "write_bytes", fill)
        [done] = files.done(uses_filters=True)
        assert (offsets(done), done.has_filter, files.names()) == ([0], False, [])

    def test_too_many_keys_make_no_filter(self, files: SearchedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_filter, "_HASHES_MAX", 2)
        files.add([b"a", b"b", b"c"])
        files.add([b"a", b"b"])
        assert [each.has_filter for each in files.done(uses_filters=True)] == [False, True]

    def test_an_invalid_filter_is_built_again(self, files: SearchedFiles) -> None:
        files.add([b"person"])
        files.filesystem.write_bytes(f"{FOLDER}/{0:020d}.keyfilter", b"of another version")
        [done] = files.done(uses_filters=True)
        assert (offsets(done), done.has_filter) == ([0], True)

    def test_markers_alone_make_a_filter_without_keys(self, files: SearchedFiles) -> None:
        files.add([b"person"], is_control=True)
        [done] = files.done(uses_filters=True)
        files.name_filters()
        assert done.has_filter
        assert [each.was_read for each in files.done(uses_filters=True)] == [False]
