"""The log of a coordinator's partition is read into its state: all of it, in order, or it is not used."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.runtime.shard_loader import (
    LOAD_BYTES_MAX,
    MANY_RECORDS,
    NAMED_RECORDS_MAX,
    RECORDS_A_STEP,
    ShardLoader,
)
from lowtide.protocol.batch_building import assemble_batch, build_batch
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, iterate_batches, read_batch_header
from lowtide.storage.errors import StorageError
from tests.markers import build_end_transaction_marker
from tests.unit.broker.coordinator.runtime.runtime_world import State, partition_of

UNKNOWN, BROKEN = b"unknown", b"broken"


def decode(key: bytes | None, value: bytes | None) -> Any:
    if value == BROKEN:
        message = "no such record"
        raise ProtocolError(message)
    return None if value == UNKNOWN else (key, value)


def batch(base_offset: int, *values: bytes, producer_id: int = -1) -> bytes:
    records = [(1_000, b"k", value, ()) for value in values]
    return build_batch(
        records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )  # fmt: skip


def marker(base_offset: int, *, is_commit: bool, producer_id: int = 7) -> bytes:
    control = ControlRecord(ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT, 0)
    return build_end_transaction_marker(
        control, timestamp_ms=1_000, producer_id=producer_id, producer_epoch=0, base_offset=base_offset
    )


class Log:
    """A log in memory. `reads` has what was asked for: offset, bytes, exclusive end."""

    def __init__(self, *batches: bytes, start_offset: int = 0) -> None:
        self.image = b"".join(batches)
        headers = list(iterate_batches(self.image))
        self.log_start_offset = start_offset
        self.log_end_offset = headers[-1][1].next_offset if headers else start_offset
        self.offline = False
        self.reads: list[tuple[int, int, int]] = []
        self.token = SimpleNamespace(valid=True)
        self.fails: StorageError | None = None
        self.is_empty = False

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> Any:
        self.reads.append((offset, max_bytes, end_offset))
        if self.fails is not None:
            raise self.fails
        if self.is_empty:
            return SimpleNamespace(slice=None)
        position, header = next(row for row in iterate_batches(self.image) if row[1].next_offset > offset)
        size = max(min(max_bytes, len(self.image) - position), header.size_bytes)
        return SimpleNamespace(slice=SimpleNamespace(file=self, size=size, position=position, token=self.token))

    def pread(self, size: int, position: int) -> bytes:
        return self.image[position : position + size]


class World:
    """A loader of one partition. With `slow`, each look at the clock takes three milliseconds."""

    def __init__(self, log: Log, *, slow: bool = False, buffer_bytes: int = 5 << 20) -> None:
        self.log = log
        self.now_ms = self.looks = 0
        self.slow = slow
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.soon: list[Callable[[], None]] = []
        self.outcomes: list[str] = []
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[Any] = []
        self.shard: Shard[State] = Shard(0, partition_of(0, log=log), State())
        self.shard.state.settings = SimpleNamespace(commit_timeout_ms=0, load_buffer_bytes=buffer_bytes)
        report = {
            level: (lambda _event, *, level=level, **words: self.lines.append((level, words)))
            for level in ("info", "warning", "error")
        }
        stand_ins: dict[str, Any] = {
            "replicas": SimpleNamespace(on_read_failed=lambda *failure: self.failures.append(failure)),
            "clock": SimpleNamespace(monotonic_ms=self._look),
            "loop": SimpleNamespace(call_soon=self.soon.append),
            "worker": SimpleNamespace(submit=lambda call, on_done: self.work.append((call, on_done))),
            "log": SimpleNamespace(**report),
        }
        loader = ShardLoader(decode, **stand_ins)
        loader.load(
            self.shard,
            on_loaded=lambda _: self.outcomes.append("loaded"),
            on_failed=lambda _: self.outcomes.append("failed"),
        )

    def _look(self) -> int:
        self.looks += 1
        self.now_ms += 3 if self.slow else 0
        return self.now_ms

    def run(self) -> World:
        """Lets the worker and the loop do all their work."""
        while self.work or self.soon:
            if self.soon:
                self.soon.pop(0)()
            else:
                call, on_done = self.work.pop(0)
                on_done(call())
        return self

    @property
    def applied(self) -> list[tuple[Any, int]]:
        """What was applied: what the record says, and its offset."""
        return [(change, offset) for _, change, offset in self.shard.state.events]

    def levels(self) -> list[str]:
        return [level for level, _ in self.lines]


def rows(start: int, *values: bytes) -> list[tuple[Any, int]]:
    return [((b"k", value), offset) for offset, value in enumerate(values, start)]


# ------------------------------------------------------------------ reading
def test_an_empty_log_is_loaded_at_once() -> None:
    world = World(Log(start_offset=9))
    assert (world.outcomes, world.log.reads, world.applied) == (["loaded"], [], [])


def test_all_records_are_applied_in_their_order() -> None:
    world = World(Log(batch(0, b"1", b"2"), batch(2, b"3"), batch(7, b"4")))
    assert world.outcomes == []
    world.run()
    assert world.outcomes == ["loaded"]
    assert world.applied == rows(0, b"1", b"2", b"3") + rows(7, b"4")
    assert (world.shard.records_loaded, world.lines) == (4, [])


@pytest.mark.parametrize(("buffer_bytes", "asked"), [(100, 100), (LOAD_BYTES_MAX + 1, LOAD_BYTES_MAX)])
def test_a_piece_of_the_log_is_read_at_a_time(buffer_bytes: int, asked: int) -> None:
    world = World(Log(batch(0, b"1", b"2"), batch(2, b"3"), batch(3, b"4")), buffer_bytes=buffer_bytes).run()
    assert world.log.reads == [(offset, asked, 4) for offset in ((0, 2, 3) if asked == 100 else (0,))]
    assert world.applied == rows(0, b"1", b"2", b"3", b"4")
    assert world.outcomes == ["loaded"]


def test_what_is_below_the_start_of_the_log_is_not_applied() -> None:
    world = World(Log(marker(0, is_commit=True), batch(1, b"1", b"2", b"3"), start_offset=2)).run()
    assert world.applied == rows(2, b"2", b"3")
    assert (world.outcomes, world.shard.records_loaded) == (["loaded"], 2)


def test_what_was_appended_since_the_load_began_is_not_read() -> None:
    log = Log(batch(0, b"1"), batch(1, b"2"))
    world = World(log, buffer_bytes=1)
    log.log_end_offset = 9
    world.run()
    assert (world.log.reads, world.outcomes) == ([(0, 1, 2), (1, 1, 2)], ["loaded"])


@pytest.mark.parametrize("place", [7, RECORD_BATCH_OVERHEAD + 8])
def test_a_damaged_batch_is_not_applied(place: int) -> None:
    """Protects committed offsets: a changed bit is another offset, or another group's."""
    log = Log(batch(0, b"1"), batch(1, b"2"))
    damaged = bytearray(log.image)
    damaged[len(damaged) // 2 + place] ^= 2
    log.image = bytes(damaged)
    world = World(log).run()
    assert (world.outcomes, world.applied) == (["failed"], rows(0, b"1"))
    assert world.levels() == ["error", "error", "error"]


def test_a_log_that_has_nothing_more_is_loaded() -> None:
    log = Log(batch(0, b"1"), batch(1, b"2"))
    world = World(log, buffer_bytes=1)
    log.is_empty = True
    world.run()
    assert (world.outcomes, world.applied) == (["loaded"], rows(0, b"1"))


# ------------------------------------------------------------------ transactions
def test_records_of_transactions_and_markers_are_applied_as_such() -> None:
    log = Log(
        batch(0, b"1", producer_id=7),
        marker(1, is_commit=True),
        batch(2, b"2", producer_id=8),
        marker(3, is_commit=False, producer_id=8),
    )
    world = World(log).run()
    assert world.applied == [
        (InTransaction(7, (b"k", b"1")), 0),
        (EndMarker(7, is_commit=True), 1),
        (InTransaction(8, (b"k", b"2")), 2),
        (EndMarker(8, is_commit=False), 3),
    ]
    assert (world.outcomes, world.shard.records_loaded) == (["loaded"], 2)


def test_a_marker_at_the_start_of_the_log_is_applied() -> None:
    world = World(Log(marker(3, is_commit=True), start_offset=3)).run()
    assert world.applied == [(EndMarker(7, is_commit=True), 3)]


def test_a_control_batch_that_ends_no_transaction_is_passed_over() -> None:
    control = build_batch([(1_000, b"\0\0\0\2", b"", ())], is_control=True)
    assert World(Log(control, batch(1, b"1"))).run().applied == rows(1, b"1")


# ------------------------------------------------------------------ records that can't be used
@pytest.mark.parametrize("value", [UNKNOWN, BROKEN])
def test_a_record_that_cannot_be_used_costs_itself_only(value: bytes) -> None:
    world = World(Log(batch(0, b"1", value, b"3"))).run()
    assert world.applied == rows(0, b"1") + rows(2, b"3")
    assert (world.outcomes, world.shard.records_left_aside) == (["loaded"], 1)
    assert [(level, words["offset"]) for level, words in world.lines] == [("warning", 1)]


def test_many_records_that_cannot_be_used_are_counted() -> None:
    world = World(Log(batch(0, *[UNKNOWN] * NAMED_RECORDS_MAX))).run()
    assert world.levels() == ["warning"] * NAMED_RECORDS_MAX
    world = World(Log(batch(0, *[UNKNOWN] * (NAMED_RECORDS_MAX + 1)))).run()
    assert world.levels() == ["warning"] * (NAMED_RECORDS_MAX + 1)
    assert world.lines[-1][1]["records"] == NAMED_RECORDS_MAX + 1


@pytest.mark.parametrize(("before", "answered"), [(MANY_RECORDS - 2, []), (MANY_RECORDS - 1, ["info"])])
def test_a_long_load_is_logged(before: int, answered: list[str]) -> None:
    world = World(Log(batch(0, b"1")))
    world.shard.records_loaded = before
    assert world.run().levels() == answered


# ------------------------------------------------------------------ failures
def test_a_damaged_log_is_not_used() -> None:
    log = Log(batch(0, b"1"), batch(1, b"2"), batch(2, b"3"))
    size = len(batch(0, b"1"))
    log.image = log.image[:size] + bytes(16) + b"\1" + log.image[size + 17 :]
    log.read = lambda offset, *_, **__: SimpleNamespace(
        slice=SimpleNamespace(file=log, size=3 * size, position=offset * size, token=log.token)
    )
    world = World(log).run()
    assert (world.outcomes, world.applied) == (["failed"], rows(0, b"1"))
    assert set(world.levels()) == {"error"}


def test_a_disk_that_fails_is_reported() -> None:
    log = Log(batch(0, b"1"))
    log.fails = StorageError("log", "the disk is broken")
    world = World(log)
    assert (world.outcomes, world.failures, world.work) == (["failed"], [(world.shard.partition, log.fails)], [])


@pytest.mark.parametrize("fails", ["read", "segment"])
@pytest.mark.parametrize("unloaded", [False, True])
def test_what_could_not_be_read_is_not_used(fails: str, unloaded: bool) -> None:
    world = World(Log(batch(0, b"1")))
    [(call, on_done)] = world.work
    world.shard.unloaded = unloaded
    world.log.token.valid = fails != "segment"
    on_done(call() if fails == "segment" else OSError("input/output error"))
    assert (world.outcomes, world.applied) == ([] if unloaded else ["failed"], [])
    assert world.levels() == ([] if unloaded else ["error"])


def test_a_partition_that_is_led_no_longer_is_not_read_on() -> None:
    world = World(Log(batch(0, b"1"), batch(1, b"2")), buffer_bytes=1)
    world.shard.partition.led_since += 1
    world.run()
    assert (world.outcomes, world.applied, len(world.log.reads)) == (["failed"], rows(0, b"1"), 1)


def test_a_shard_that_is_unloaded_before_a_read_is_left_alone() -> None:
    world = World(Log(batch(0, b"1"), batch(1, b"2")), buffer_bytes=1)
    call, on_done = world.work.pop()
    world.shard.state.apply = lambda *_: setattr(world.shard, "unloaded", True)
    on_done(call())
    assert (world.outcomes, world.work, world.levels()) == ([], [], [])


# ------------------------------------------------------------------ slices
def test_records_are_applied_a_slice_at_a_time() -> None:
    values = [b"%d" % number for number in range(2 * RECORDS_A_STEP + 1)]
    world = World(Log(batch(0, *values)), slow=True)
    call, on_done = world.work.pop()
    on_done(call())
    assert (len(world.applied), len(world.soon)) == (RECORDS_A_STEP, 1)
    world.soon.pop()()
    assert (len(world.applied), len(world.soon)) == (2 * RECORDS_A_STEP, 1)
    world.run()
    assert (world.applied, world.outcomes, world.looks) == (rows(0, *values), ["loaded"], 6)


def test_a_shard_that_is_unloaded_between_slices_is_left_alone() -> None:
    values = [b"1"] * RECORDS_A_STEP
    world = World(Log(batch(0, *values), batch(RECORDS_A_STEP, *values)), slow=True)
    call, on_done = world.work.pop()
    on_done(call())
    world.shard.unloaded = True
    world.run()
    assert (len(world.applied), world.outcomes, world.levels()) == (RECORDS_A_STEP, [], [])


def test_damage_of_a_log_that_is_loaded_for_nothing_is_no_failure() -> None:
    """The batch says that it has one record more than there are in it."""
    image = batch(0, *[b"1"] * (RECORDS_A_STEP + 1))
    header = read_batch_header(image)
    header.record_count += 1
    log = Log(assemble_batch(header, image[RECORD_BATCH_OVERHEAD:]))
    world = World(log, slow=True)
    call, on_done = world.work.pop()
    on_done(call())
    world.shard.unloaded = True
    world.run()
    assert (world.outcomes, world.levels()) == ([], ["error"])
