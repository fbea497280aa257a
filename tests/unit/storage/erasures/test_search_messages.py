"""What a search makes of the messages of its worker, in whatever order they and changes of the log come."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lowtide.protocol.compression import Compression
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import WorkFailedError
from lowtide.storage.erasures import found_keys, log_search
from lowtide.storage.erasures.key_filter import key_filter_path
from lowtide.storage.erasures.log_search import (
    ATTEMPTS_MAX,
    LogSearch,
    SearchedLog,
    SearchFailure,
    SearchPorts,
    SearchTerms,
)
from lowtide.storage.erasures.record_search import KeySelector
from lowtide.storage.erasures.search_work import (
    FOUND_MAX,
    SearchedSegment,
    SearchOrder,
    SearchProgress,
    SearchStopped,
    SegmentDone,
)
from lowtide.storage.errors import DamagedSegmentError
from lowtide.storage.log.segments.segment_file import SliceToken
from lowtide.storage.log.truncation import LogTruncation
from tests.unit.storage.compaction.compacting import DIRECTORY, CompactedLog

PERSON = KeySelector(frozenset([b"person"]))
SECRET = bytes(range(32))
RATE = 7.0
decode_order = msgspec.msgpack.Decoder(SearchOrder).decode


class MessagedSearch:
    """A search of a log of four segments with four records each, whose worker is the test."""

    def __init__(
        self, *, end_offset: int = 16, first_offset: int = -1, with_keys: bool = False, is_empty: bool = False
    ) -> None:
        self.world = CompactedLog(MemoryFileSystem())
        for number in range(0 if is_empty else 4):
            self.world.append((b"a", b"x"), (b"b", b"x"))
            self.world.append((b"c", b"%d" % number), (b"d", b"x"), compression=Compression.ZSTD)
            if number < 3:
                self.world.roll()
        self.is_here = True
        self.orders: list[SearchOrder] = []
        self.cancelled = 0
        self.results: list[tuple[Any, str | None]] = []
        terms = SearchTerms(PERSON, 0 if is_empty else end_offset, first_offset, True, RATE, SECRET, with_keys)
        worker: Any = self
        ports = SearchPorts(self.world.filesystem, worker, lambda each: self.is_here and each is self.world.log)
        self.search = LogSearch(self.world.log, terms, ports, lambda *result: self.results.append(result))

    # as HeavyWorker, and as its running work
    def begin(self, _work: Any, argument: bytes, listener: LogSearch, bytes_per_second: float) -> MessagedSearch:
        assert (listener, bytes_per_second) == (self.search, RATE)
        self.orders.append(decode_order(argument))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    # what the worker says
    def done(self, number: int, *offsets: int, **fields: Any) -> None:
        """Segment `number` of the last order is done."""
        segment = self.orders[-1].segments[number]
        given = {"first_offset": segment.base_offset, "has_filter": False, "was_read": True} | fields
        self.say(
            SegmentDone(
                base_offset=segment.base_offset,
                offsets=array("q", offsets).tobytes(),
                timestamps=array("q", [100 + each for each in offsets]).tobytes(),
                leader_epochs=array("i", [0] * len(offsets)).tobytes(),
                **given,
            )
        )

    def say(self, report: SegmentDone | SearchProgress | SearchStopped) -> None:
        self.search.on_message(msgspec.msgpack.encode(report))

    def end(self, error: WorkFailedError | None = None) -> Any:
        """The work ends. Returns the result, if the search has ended too."""
        self.search.on_end(error)
        return self.results.pop() if self.results else None

    def found(self) -> list[int]:
        """The work ends with a result. Returns the offsets of the records."""
        result, detail = self.end()
        assert isinstance(result, SearchedLog)
        assert detail is None
        assert list(result.records.timestamps) == [100 + each for each in result.records.offsets]
        assert len(result.records.leader_epochs) == len(result.records)
        return list(result.records.offsets)

    @property
    def left(self) -> list[int]:
        """Base offsets of the segments that were ordered last."""
        return [each.base_offset for each in self.orders[-1].segments]

    def change(self, number: int = -1) -> None:
        """Replaces a segment's token, as a truncation or an erasure does."""
        self.world.log.segments[number].token = SliceToken()

    def write_filter(self, number: int) -> str:
        path = key_filter_path(DIRECTORY, self.orders[-1].segments[number].base_offset)
        self.world.filesystem.write_bytes(f"{path}.tmp", b"filter")
        return path

    def filters(self) -> list[str]:
        return [name for name in self.world.names() if "keyfilter" in name]

    @property
    def second_batch(self) -> int:
        """Where it begins in each segment."""
        place = self.world.log.segments[0].find(2)
        assert place is not None
        return place.position

    def bytes_of(self, *numbers: int) -> int:
        return sum(self.world.log.segments[number].size for number in numbers)


@pytest.fixture
def begun() -> MessagedSearch:
    searched = MessagedSearch()
    searched.search.begin()
    return searched


def test_an_order_has_the_segments_as_they_are(begun: MessagedSearch) -> None:
    segments = begun.world.log.segments
    [order] = begun.orders
    assert order.segments == [
        SearchedSegment(4 * number, 4 * number + 4, segments[number].path, 0, segments[number].size, number < 3)
        for number in range(4)
    ]
    assert (order.directory, order.end_offset, order.selector, order.found_max) == (DIRECTORY, 16, PERSON, FOUND_MAX)
    assert (order.uses_filters, order.secret, order.with_keys) == (True, SECRET, False)
    assert (begun.search.searched_bytes, begun.search.total_bytes) == (0, begun.bytes_of(0, 1, 2, 3))


def test_records_of_all_segments_are_found(begun: MessagedSearch) -> None:
    begun.done(0, 0, 3)
    begun.done(1)
    begun.done(2, 9)
    begun.done(3, 15)
    assert begun.found() == [0, 3, 9, 15]


@pytest.mark.parametrize(("end_offset", "first", "expected"), [(16, None, 0), (16, 2, 2), (1, 2, 1), (2, 0, 0)])
def test_the_first_offset_is_that_of_the_first_batch(end_offset: int, first: int | None, expected: int) -> None:
    """A follower may have records below the leader's log start. What is above the end was not searched."""
    searched = MessagedSearch(end_offset=end_offset)
    searched.search.begin()
    for number in range(len(searched.left)):
        searched.done(number, first_offset=first if number == 0 else 99)
    result, _ = searched.end()
    assert (result.first_offset, result.end_offset) == (expected, end_offset)


def test_a_log_without_records_ends_where_it_begins() -> None:
    searched = MessagedSearch(is_empty=True)
    searched.search.begin()
    assert searched.left == []
    result, _ = searched.end()
    assert (result.first_offset, result.end_offset) == (0, 0)


def test_only_segments_and_records_within_the_bounds_count() -> None:
    searched = MessagedSearch(first_offset=6, end_offset=9)
    searched.search.begin()
    assert searched.left == [4, 8]
    place = searched.world.log.segments[1].find(6)
    assert place is not None
    assert [each.floor for each in searched.orders[0].segments] == [place.position, 0]
    searched.done(0, 4, 5, 6, 7)
    searched.done(1, 8, 9, 10)
    assert searched.found() == [6, 7, 8]


def test_an_unreadable_place_is_searched_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker reports what can't be read."""
    searched = MessagedSearch(first_offset=6)

    def fail(*_: Any) -> Any:
        raise DamagedSegmentError("path", "index")

    with monkeypatch.context() as patch:
        patch.setattr(type(searched.world.log.segments[1]), "find", fail)
        searched.search.begin()
    assert [each.floor for each in searched.orders[0].segments] == [0, 0, 0]
    nothing = MessagedSearch(first_offset=6)
    with monkeypatch.context() as patch:
        patch.setattr(type(searched.world.log.segments[1]), "find", lambda *_: None)
        nothing.search.begin()
    first = nothing.orders[0].segments[0]
    assert first.floor == first.size


def test_progress_is_that_of_whole_segments_after_a_change(begun: MessagedSearch) -> None:
    """Protects the client's display: it never shows more than the whole."""
    total = begun.bytes_of(0, 1, 2, 3)
    begun.say(SearchProgress(begun.bytes_of(0)))
    begun.done(0)
    begun.say(SearchProgress(5))
    assert begun.search.searched_bytes == begun.bytes_of(0) + 5
    begun.change(1)
    begun.done(1)
    assert begun.end() is None
    assert (begun.left, begun.search.searched_bytes, begun.search.total_bytes) == ([4, 8, 12], begun.bytes_of(0), total)
    begun.say(SearchProgress(7))
    begun.done(0)
    begun.say(SearchProgress(9))
    begun.change(2)
    begun.done(1)
    begun.end()
    assert (begun.left, begun.search.searched_bytes) == ([8, 12], begun.bytes_of(0, 1))
    begun.change()
    begun.done(0)
    begun.end()
    assert (begun.left, begun.search.searched_bytes, begun.search.total_bytes) == ([0, 4, 8, 12], 0, total)


def test_what_was_found_before_a_change_is_kept(begun: MessagedSearch) -> None:
    begun.done(0, 1, first_offset=1)
    begun.change(1)
    begun.done(1, 5)
    assert begun.cancelled == 1
    begun.done(2, 9)
    assert begun.end() is None
    assert (begun.left, begun.orders[1].found_max) == ([4, 8, 12], FOUND_MAX - 1)
    for number, offset in enumerate((4, 8, 12)):
        begun.done(number, offset, first_offset=77)
    result, _ = begun.end()
    assert (list(result.records.offsets), result.first_offset) == ([1, 4, 8, 12], 1)


@pytest.mark.parametrize("at", [0, 2, 4])
def test_after_a_cut_all_is_searched_again(at: int) -> None:
    """Other records may have the offsets now, and other keys."""
    begun = MessagedSearch(with_keys=True)
    begun.search.begin()
    one = array("i", [0]).tobytes(), array("q", [-1]).tobytes()
    for number in range(at):
        begun.done(number, 4 * number, keys=[b"old"], numbers=one[0], producer_ids=one[1])
    begun.change()
    if at < 4:
        begun.done(at, 4 * at, keys=[b"old"], numbers=one[0], producer_ids=one[1])
    assert begun.end() is None
    assert (begun.left, begun.orders[-1].found_max) == ([0, 4, 8, 12], FOUND_MAX)
    for number in range(4):
        begun.done(number, 4 * number + 1, keys=[b"new"], numbers=one[0], producer_ids=one[1], first_offset=3)
    result, _ = begun.end()
    assert (list(result.records.offsets), result.first_offset) == ([1, 5, 9, 13], 3)
    assert [key for key, _ in result.keys.each()] == [b"new"] * 4


def leave(begun: MessagedSearch) -> None:
    begun.is_here = False


def go_offline(begun: MessagedSearch) -> None:
    begun.world.log.offline = True


def cut(begun: MessagedSearch) -> None:
    LogTruncation(begun.world.log).truncate_to(14, now_ms=begun.world.now_ms)


@pytest.mark.parametrize(
    ("change", "failure"),
    [(leave, SearchFailure.MOVED), (go_offline, SearchFailure.MOVED), (cut, SearchFailure.CUT)],
)
def test_a_log_that_left_or_was_cut_is_not_searched_again(
    begun: MessagedSearch, change: Callable[[MessagedSearch], None], failure: SearchFailure
) -> None:
    begun.done(0, 0)
    begun.change(1)
    change(begun)
    begun.done(1, 4)
    assert begun.end() is None
    assert begun.left == []
    assert begun.end() == (failure, None)
    assert begun.cancelled == 1, "work that has ended is not cancelled"


@pytest.mark.parametrize("has_begun", [False, True])
def test_of_a_log_that_left_nothing_counts(has_begun: bool) -> None:
    """Protects from an erasure that is appended to a log which has been moved or deleted."""
    searched = MessagedSearch()
    if has_begun:
        searched.search.begin()
        searched.done(0, 0)
    leave(searched)
    if has_begun:
        searched.done(1, 4)
        assert searched.end() is None
    else:
        searched.search.begin()
    assert searched.end() == (SearchFailure.MOVED, None)


def remove(begun: MessagedSearch) -> None:
    log = begun.world.log
    log.move_log_start(4)
    assert log.files.remove_below(4, log.config)


def free_the_beginning(begun: MessagedSearch) -> None:
    begun.world.log.segments[0].floor = begun.second_batch


@pytest.mark.parametrize(("change", "left"), [(remove, [4, 8, 12]), (free_the_beginning, [0, 4, 8, 12])])
def test_a_segment_that_retention_has_changed_is_ordered_as_it_is_now(
    begun: MessagedSearch, change: Callable[[MessagedSearch], None], left: list[int]
) -> None:
    change(begun)
    begun.write_filter(0)
    begun.done(0, 0, has_filter=True)
    assert begun.end() is None
    assert (begun.left, begun.filters()) == (left, [])


def test_bytes_that_are_freed_are_not_counted(begun: MessagedSearch) -> None:
    free_the_beginning(begun)
    begun.done(0)
    begun.end()
    total = begun.bytes_of(0, 1, 2, 3) - begun.second_batch
    assert (begun.search.total_bytes, begun.orders[-1].segments[0].floor) == (total, begun.second_batch)
    begun.done(0)
    begun.change(1)
    begun.done(1)
    begun.end()
    assert begun.search.searched_bytes == begun.bytes_of(0) - begun.second_batch
    assert begun.search.total_bytes == total


def test_records_that_were_cut_and_appended_again_are_other_records(begun: MessagedSearch) -> None:
    begun.done(0, 0)
    begun.done(1, 4)
    log = begun.world.log
    LogTruncation(log).truncate_to(8, now_ms=begun.world.now_ms)
    log.truncating = 0
    while log.log_end_offset < 16:
        begun.world.append((b"another", b"x"))
    begun.done(2, 8)
    assert begun.end() is None
    assert begun.left[0] == 0
    for number in range(len(begun.left)):
        begun.done(number)
    assert begun.found() == []


def test_a_search_is_ordered_a_bounded_number_of_times(begun: MessagedSearch) -> None:
    for _ in range(ATTEMPTS_MAX):
        assert begun.left
        begun.change(0)
        begun.done(0)
        assert begun.end() is None
    assert (len(begun.orders), begun.left) == (ATTEMPTS_MAX + 1, [])
    assert begun.end() == (SearchFailure.CHANGED, None)


@pytest.mark.parametrize("must_repeat", [False, True])
def test_what_is_on_the_way_when_a_search_ends_is_dropped(begun: MessagedSearch, must_repeat: bool) -> None:
    """Protects erased keys: the filter of a segment that has changed still attests them."""
    if must_repeat:
        begun.write_filter(0)
        begun.change(0)
        begun.done(0, has_filter=True)
    else:
        begun.search.cancel()
        begun.search.cancel()
    assert begun.cancelled == 1
    begun.write_filter(1)
    begun.done(1, 4, has_filter=True)
    assert begun.filters() == []
    begun.write_filter(2)
    begun.done(2, 8)
    begun.say(SearchProgress(9))
    begun.say(SearchStopped("too late", is_too_many=True))
    assert begun.filters() == [f"{8:020d}.keyfilter.tmp"], "it is not of this search"
    assert begun.search.searched_bytes == 0
    if must_repeat:
        assert begun.end() is None
        assert begun.left == [0, 4, 8, 12]
    else:
        assert begun.end() == (SearchFailure.CANCELLED, None)
        assert len(begun.orders) == 1


def test_a_filter_gets_its_name_when_the_segment_is_the_same(begun: MessagedSearch) -> None:
    begun.write_filter(0)
    begun.done(0, has_filter=True)
    begun.write_filter(1)
    begun.done(1, has_filter=False)
    assert begun.filters() == [f"{0:020d}.keyfilter", f"{4:020d}.keyfilter.tmp"]


def test_a_filter_that_can_not_be_named_is_removed(begun: MessagedSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr(begun.world.filesystem, "rename", fail)
    begun.write_filter(0)
    begun.done(0, 0, has_filter=True)
    assert begun.filters() == []
    begun.done(1, has_filter=True)
    for number in (2, 3):
        begun.done(number)
    assert begun.found() == [0], "a missing filter is no failure"


@pytest.mark.parametrize(
    ("stopped", "failure", "detail"),
    [
        (SearchStopped("many", is_too_many=True), SearchFailure.TOO_MANY, None),
        (SearchStopped("keys", has_too_many_keys=True), SearchFailure.TOO_MANY_KEYS, None),
        (SearchStopped("damaged"), SearchFailure.UNREADABLE, "damaged"),
    ],
)
def test_a_worker_that_stops_has_a_reason(
    begun: MessagedSearch, stopped: SearchStopped, failure: SearchFailure, detail: str | None
) -> None:
    """Unless the segment has changed: then it is read again."""
    begun.done(0)
    begun.change(1)
    begun.say(stopped)
    assert begun.end() is None
    assert begun.left == [4, 8, 12]
    begun.say(stopped)
    assert begun.end() == (failure, detail)


@pytest.mark.parametrize(
    ("error", "detail"), [(WorkFailedError("died"), "died"), (None, "the worker stopped")], ids=["error", "none"]
)
def test_a_worker_that_ends_early_has_searched_nothing(
    begun: MessagedSearch, error: WorkFailedError | None, detail: str
) -> None:
    """Protects from calling a log clean of which a part was not read."""
    for number in range(3):
        begun.done(number)
    assert begun.end(error) == (SearchFailure.UNREADABLE, detail)


def test_the_records_of_all_segments_are_bounded(begun: MessagedSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "FOUND_MAX", 3)
    begun.done(0, 0, 1)
    begun.done(1, 4)
    begun.done(2)
    assert begun.cancelled == 0
    begun.done(3, 12)
    assert begun.cancelled == 1
    assert begun.end() == (SearchFailure.TOO_MANY, None)


def keyed(*keys: bytes | None) -> dict[str, Any]:
    numbers = array("i", range(len(keys))).tobytes()
    return {"keys": list(keys), "numbers": numbers, "producer_ids": array("q", [-1] * len(keys)).tobytes()}


def test_the_keys_of_all_segments_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_keys, "KEYS_MAX", 2)
    searched = MessagedSearch(with_keys=True)
    searched.search.begin()
    assert searched.orders[0].with_keys
    searched.done(0, 0, 1, **keyed(b"a", b"b"))
    searched.done(1, 4, 5, **keyed(b"b", None))
    assert searched.cancelled == 0
    searched.done(2, 8, **keyed(b"c"))
    assert searched.end() == (SearchFailure.TOO_MANY_KEYS, None)


def test_keys_belong_to_the_records_that_count() -> None:
    searched = MessagedSearch(with_keys=True, first_offset=1, end_offset=6)
    searched.search.begin()
    searched.done(0, 0, 1, **keyed(b"a", b"b"))
    searched.done(1, 4, 5, 6, **keyed(b"b", None, b"g"))
    result, _ = searched.end()
    assert list(result.records.offsets) == [1, 4, 5]
    assert [key for key, _ in result.keys.each()] == [b"b", b"b", None]
    without = MessagedSearch()
    without.search.begin()
    without.done(0, 0, **keyed(b"a"))
    for number in (1, 2, 3):
        without.done(number)
    assert without.end()[0].keys is None
