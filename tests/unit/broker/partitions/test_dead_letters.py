"""What a dead letter has, where it may go, and how the records that it copies are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from lowtide.broker.partitions.batch_lane import BatchLane
from lowtide.broker.partitions.share import dead_letters
from lowtide.broker.partitions.share.dead_letters import BATCH_BYTES, LETTERS_MAX, Letters, fault_of, make_letters
from lowtide.broker.partitions.share.given_up_records import GivenUpContents, read_contents
from lowtide.broker.partitions.share.share_values import GivenUpRange
from lowtide.metadata.image import TopicImage
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.records import Record, iterate_records, read_batch_header
from lowtide.protocol.types import TopicPartition
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log_erasures import LogErasures
from lowtide.storage.log.log_values import AppendedBatch
from lowtide.storage.log.markers import make_erasure
from lowtide.storage.log.segments.segment_file import FileSlice, SliceToken
from tests.unit.storage.directory.test_erasures import filled
from tests.unit.storage.directory.test_holes import World

ORIGIN, NOW = TopicPartition("t", 3), 1_700_000_000_000
LARGE = 1 << 20


def given(first: int, last: int, count: int = 2, *, is_rejected: bool = False) -> GivenUpRange:
    return GivenUpRange(first, last, count, is_rejected)


def topic(**configs: str) -> TopicImage:
    return TopicImage("dlq.t", b"\1" * 16, (), {name.replace("_", "."): value for name, value in configs.items()}, 1)


ALLOWS = topic(errors_deadletterqueue_group_enable="true")


@pytest.mark.parametrize(
    ("name", "found", "creates", "prefix", "fault"),
    [
        ("dlq.t", ALLOWS, False, "dlq.", ""),
        ("dlq.t", None, True, "dlq.", ""),
        ("t", ALLOWS, False, "", ""),
        ("", None, True, "", "no dead-letter topic"),
        ("__t", ALLOWS, True, "", "begins with __"),
        ("dlq.t", topic(), True, "dlq.", "does not have errors.deadletterqueue.group.enable=true"),
        ("dlq.t", topic(errors_deadletterqueue_group_enable="false"), True, "dlq.", "does not have"),
        ("dlq.t", None, False, "dlq.", "does not exist"),
        ("t", ALLOWS, False, "dlq.", "does not begin with errors.deadletterqueue.topic.name.prefix=dlq."),
    ],
)
def test_a_topic_must_allow_dead_letters(
    name: str, found: TopicImage | None, creates: bool, prefix: str, fault: str
) -> None:
    text = fault_of(name, found, creates=creates, prefix=prefix)
    assert bool(text) == bool(fault)
    assert fault in text


# ---------------------------------------------------------------------- batches
def made(ranges: list[GivenUpRange], contents: GivenUpContents, most: int = LARGE) -> Letters:
    return make_letters(ORIGIN, "g", ranges, contents, NOW, most)


def records(letters: Letters) -> list[Record]:
    return list(iterate_records(letters.batch, max_bytes=LARGE))


def test_headers_name_the_record_and_the_reason() -> None:
    letters = made([given(4, 4, 1, is_rejected=True), given(9, 9, 5)], GivenUpContents(9))
    assert (letters.count, letters.last_offset) == (2, 9)
    first, second = records(letters)
    assert dict(first.headers) == {
        b"__dlq.errors.topic": b"t", b"__dlq.errors.partition": b"3", b"__dlq.errors.offset": b"4",
        b"__dlq.errors.group": b"g", b"__dlq.errors.delivery.count": b"1",
        b"__dlq.errors.message": b"Offset rejected by client.",
    }  # fmt: skip
    assert second.headers[-1] == (b"__dlq.errors.message", b"Offset delivery count exceeded the threshold.")
    assert {(each.key, each.value, each.timestamp) for each in (first, second)} == {(None, None, NOW)}


def test_what_is_read_is_copied_and_what_comes_later_waits() -> None:
    letters = made([given(0, 9)], GivenUpContents(2, {0: (b"k", b"v"), 2: (None, b"w")}))
    assert letters.last_offset == 2
    assert [(each.key, each.value) for each in records(letters)] == [(b"k", b"v"), (None, None), (None, b"w")]


def test_a_batch_has_at_most_so_many_dead_letters() -> None:
    letters = made([given(0, 5 * LETTERS_MAX)], GivenUpContents(5 * LETTERS_MAX))
    assert (letters.count, letters.last_offset) == (LETTERS_MAX, LETTERS_MAX - 1)


@pytest.mark.parametrize("most", [400, 2_000, 70_000])
def test_a_batch_is_not_larger_than_the_topic_allows(most: int) -> None:
    """Records that don't fit in a batch by themselves are not copied."""
    contents = GivenUpContents(30, {offset: (b"k", bytes(60 * offset)) for offset in range(31)})
    ranges, seen = [given(0, 30)], list[Record]()
    while ranges:
        letters = made(ranges, contents, most)
        assert len(letters.batch) <= most
        seen += records(letters)
        ranges = [given(letters.last_offset + 1, 30)] if letters.last_offset < 30 else []
    assert [dict(each.headers)[b"__dlq.errors.offset"] for each in seen] == [b"%d" % offset for offset in range(31)]
    assert all(each.value == bytes(60 * offset) for offset, each in enumerate(seen) if each.value is not None)
    assert [each.value is not None for each in seen] == sorted((each.value is not None for each in seen), reverse=True)


def test_a_record_that_is_larger_than_usual_batches_is_alone() -> None:
    contents = GivenUpContents(1, {0: (None, b""), 1: (None, bytes(BATCH_BYTES))})
    assert made([given(0, 1)], contents, 4 * LARGE).last_offset == 0
    letters = made([given(1, 1)], contents, 4 * LARGE)
    assert records_of_size(letters) == [BATCH_BYTES]


def records_of_size(letters: Letters) -> list[int]:
    return [len(each.value or b"") for each in iterate_records(letters.batch, max_bytes=4 * LARGE)]


def test_a_dead_letter_is_written_even_if_it_is_too_large() -> None:
    """The topic refuses it then, and the record is given up without one."""
    letters = made([given(0, 3)], GivenUpContents(3), most=100)
    assert (letters.count, len(letters.batch) > 100) == (1, True)
    assert dead_letters.RESERVED_PREFIX == "__"


# ---------------------------------------------------------------------- contents
class File:
    """A file in memory, or one that can't be read."""

    def __init__(self, content: bytes, error: OSError | None = None) -> None:
        self.content, self.error = content, error

    def pread(self, size: int, position: int) -> bytes:
        if self.error is not None:
            raise self.error
        return self.content[position : position + size]


class FakeLog:
    """A log whose next read returns these batches."""

    directory, high_watermark, log_end_offset = "/t-0", 1_000, 1_000

    def __init__(self, *batches: bytes, error: OSError | None = None, is_valid: bool = True) -> None:
        self.erasures = LogErasures()
        content = b"".join(batches)
        self.token = SliceToken()
        self.token.valid = is_valid
        self.slice = FileSlice(File(content, error), 0, len(content), self.token) if content else None

    def read(self, _offset: int, _max_bytes: int, *, end_offset: int) -> Any:
        assert end_offset == self.high_watermark
        return SimpleNamespace(slice=self.slice)


class InlineWorker:
    def submit(self, work: Any, on_done: Any) -> None:
        try:
            outcome = work()
        except Exception as error:
            outcome = error
        on_done(outcome)

    def close(self) -> None:
        """Nothing to close."""


def batch(base: int, *values: bytes, compression: Compression = Compression.NONE) -> bytes:
    rows = [(NOW, b"k", value, ()) for value in values]
    return build_batch(rows, base_offset=base, compression=compression)


def read(log: FakeLog, *ranges: GivenUpRange, most: int = LARGE) -> GivenUpContents | None:
    return asyncio.run(read_contents(log, ranges, most, BatchLane(InlineWorker())))


def last_and_contents(found: GivenUpContents | None) -> tuple[int, dict[int, Any]]:
    assert found is not None
    return found.last_offset, dict(found.contents)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_keys_and_values_of_given_up_records_are_read(compression: Compression) -> None:
    log = FakeLog(batch(0, b"0", b"1", b"2", compression=compression), batch(3, b"3", b"4", compression=compression))
    found = read(log, given(1, 1), given(4, 4))
    assert found is not None
    assert (found.last_offset, found.contents) == (4, {1: (b"k", b"1"), 4: (b"k", b"4")})


def test_offsets_without_records_are_done() -> None:
    """Compaction removed them: between batches, below the first one, or all of them."""
    log = FakeLog(batch(5, b"5"), batch(9, b"9"))
    assert last_and_contents(read(log, given(0, 3))) == (3, {})
    assert last_and_contents(read(log, given(4, 7))) == (7, {5: (b"k", b"5")})
    assert last_and_contents(read(FakeLog(), given(4, 7))) == (7, {})


def test_the_rest_comes_with_the_next_read() -> None:
    log = FakeLog(batch(0, b"a" * 10, b"b" * 10, b"c" * 10))
    found = read(log, given(0, 9), most=15)
    assert found is not None
    assert (found.last_offset, list(found.contents)) == (1, [0, 1])
    assert last_and_contents(read(log, given(2, 9))) == (2, {2: (b"k", b"c" * 10)}), "beyond the slice"


def test_a_damaged_batch_is_not_copied() -> None:
    damaged = bytearray(batch(0, b"x" * 100, compression=Compression.ZSTD))
    damaged[61:70] = bytes(9)
    assert read_batch_header(damaged).compression is Compression.ZSTD
    found = read(FakeLog(bytes(damaged), batch(1, b"1")), given(0, 1))
    assert last_and_contents(found) == (1, {1: (b"k", b"1")})
    changed = bytearray(batch(0, b"x" * 100))
    changed[-5] ^= 1
    assert last_and_contents(read(FakeLog(bytes(changed), batch(1, b"1")), given(0, 1)))[1].keys() == {1}
    damaged[16] = 1  # The magic.
    assert last_and_contents(read(FakeLog(bytes(damaged), batch(1, b"1")), given(0, 1))) == (1, {})


def test_a_log_that_was_truncated_or_failed_is_read_later() -> None:
    assert read(FakeLog(batch(0, b"0"), is_valid=False), given(0, 0)) is None
    with pytest.raises(StorageError, match="/t-0"):
        read(FakeLog(batch(0, b"0"), error=OSError("gone")), given(0, 0))


# ---------------------------------------------------------------------- erasures
class HeldWorker:
    """Ends each piece of work only after `meanwhile` was called."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def submit(self, work: Any, on_done: Any) -> None:
        outcome = work()
        self._meanwhile()
        on_done(outcome)

    def close(self) -> None:
        """Nothing to close."""


class ErasedLog:
    """A log of twenty batches of five records, in which records are erased."""

    def __init__(self) -> None:
        self.world = World()
        self.log = filled(self.world)

    def append(self, *offsets: int) -> int:
        """Appends an erasure. Returns its end."""
        record = ErasureRecord(UUID(int=1), OffsetRanges.of_offsets(offsets).ranges())
        appended = self.log.append_as_leader(make_erasure(record, 1), leader_epoch=3, now_ms=1)
        assert isinstance(appended, AppendedBatch)
        return appended.last_offset + 1

    def erase(self, *offsets: int) -> None:
        """Appends an erasure, which takes effect at once."""
        self.log.advance_high_watermark(self.append(*offsets))

    def rewrite(self) -> None:
        """Erases, and removes the records from the files."""
        self.erase(11)
        self.world.begin_round()
        for _ in range(30):
            self.world.tick(100)
        assert not self.log.erasures.pending

    def read(self, meanwhile: Callable[[], object] = lambda: None) -> GivenUpContents | None:
        lane = BatchLane(HeldWorker(meanwhile))
        return asyncio.run(read_contents(self.log, [given(10, 13)], LARGE, lane))


def offsets_of(contents: GivenUpContents | None) -> list[int]:
    assert contents is not None
    return list(contents.contents)


def test_an_erased_record_is_not_copied() -> None:
    world = ErasedLog()
    assert offsets_of(world.read()) == [10, 11, 12, 13]
    world.erase(11)
    assert offsets_of(world.read()) == [10, 12, 13]


def test_a_record_that_is_erased_while_it_is_read_is_not_copied() -> None:
    world = ErasedLog()
    assert world.read(lambda: world.erase(11)) is None
    assert offsets_of(world.read()) == [10, 12, 13]


@pytest.mark.parametrize("rewrites", [False, True])
def test_a_record_that_is_erased_after_it_was_read_is_no_longer_current(rewrites: bool) -> None:
    """So the dead letter isn't sent when the connection to another leader is open at last."""
    world = ErasedLog()
    contents = world.read()
    assert contents is not None
    world.erase(90)
    assert contents.is_current()
    if rewrites:
        world.rewrite()
    else:
        world.erase(11)
    assert not contents.is_current()


def test_a_record_whose_erasure_is_not_committed_is_read_later() -> None:
    """The erasure may have been acknowledged by an earlier leader, or be truncated."""
    world = ErasedLog()
    end_offset = world.append(11)
    assert world.read() is None
    world.log.advance_high_watermark(end_offset)
    assert offsets_of(world.read()) == [10, 12, 13]


def test_nothing_is_copied_while_an_erasure_may_be_missing() -> None:
    world = ErasedLog()
    world.log.erasures.withhold(withheld=True)
    assert world.read() is None
    world.log.erasures.withhold(withheld=False)
    assert offsets_of(world.read()) == [10, 11, 12, 13]
