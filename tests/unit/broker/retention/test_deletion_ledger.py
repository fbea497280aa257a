"""Each deletion is counted once, under its reason, and logged in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.groups.consumed import Release
from lowtide.broker.retention.deletion_ledger import LINES_AT_ONCE, QUIET_S, DeletedCount, DeletionLedger
from lowtide.protocol.types import TopicPartition, topic_id_text
from lowtide.storage.directory.directory_reports import RoomShortage
from lowtide.storage.directory.log_settings import PrefixDeletion
from lowtide.storage.log.retention.retention_plan import Reason, SegmentDeletion

KEY = TopicPartition("t", 0)
ID = bytes(15) + b"\1"


class World:
    """A ledger over a partition that this broker leads or follows."""

    def __init__(self, *, leads: bool = True) -> None:
        self.soon: list[Any] = []
        self.lines: list[dict[str, Any]] = []
        self.partitions: dict[tuple[str, int], Any] = {
            ("t", number): SimpleNamespace(is_leader=leads, topic_id=ID) for number in range(3)
        }
        self.now_s = 100.0
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []
        loop: Any = SimpleNamespace(call_soon=self.soon.append, call_later=self._call_later, time=lambda: self.now_s)

        def note(event: str, **values: Any) -> None:
            self.lines.append({"event": event, **values})

        log = SimpleNamespace(info=note, warning=note)
        self.audited: list[dict[str, Any]] = []
        audit: Any = SimpleNamespace(
            unrequested=lambda _kind, event, **fields: self.audited.append({"event": event, **fields})
        )
        self.ledger = DeletionLedger(self.partitions, loop, log, audit)

    def _call_later(self, delay_s: float, callback: Any, *arguments: Any) -> None:
        self.later.append((self.now_s + delay_s, callback, arguments))

    def wait(self, delay_s: float) -> None:
        self.now_s += delay_s
        due = [row for row in self.later if row[0] <= self.now_s]
        self.later = [row for row in self.later if row[0] > self.now_s]
        for _, callback, arguments in due:
            callback(*arguments)

    def rise(self, before: int, after: int, *bases: int, number: int = 0) -> None:
        """The log start rises; the segments with these base offsets, of 100 bytes each, are removed."""
        removed: Any = [SimpleNamespace(base_offset=base, size=100) for base in bases]
        log: Any = SimpleNamespace(topic_partition=TopicPartition("t", number))
        self.ledger.uncounted.append(PrefixDeletion(log, before, after, removed))

    def told(self) -> list[dict[str, Any]]:
        self.ledger.count()
        while self.soon:
            self.soon.pop(0)()
        told, self.lines = self.lines, []
        return told


def test_a_delete_that_retention_did_not_announce_counts_as_a_request() -> None:
    world = World()
    world.rise(0, 25, 0, 10)
    assert world.ledger.counts == {("t", Reason.REQUEST): DeletedCount(2, 200, 25)}
    (line,) = world.told()
    assert line == {
        "event": "segments are deleted",
        "reason": "request",
        "partition": "t-0",
        "log_start_offset": 25,
        "segments": 2,
        "bytes": 200,
        "offsets": 25,
    }


class Compared(SimpleNamespace):
    """A segment that counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return self is other

    __hash__ = object.__hash__


def test_each_removed_segment_is_visited_once_for_any_number() -> None:
    """Ten thousand deletions must not block the event loop for most of a second."""
    world, count = World(), 500
    half = count // 2
    sizes = half, half * 100
    world.ledger.expect(
        KEY,
        [
            SegmentDeletion(Reason.SIZE, *sizes, 0, half * 10),
            SegmentDeletion(Reason.TIME, *sizes, half * 10, count * 10),
        ],
    )
    removed: Any = [Compared(base_offset=number * 10, size=100) for number in range(count)]
    log: Any = SimpleNamespace(topic_partition=KEY)
    world.ledger.uncounted.append(PrefixDeletion(log, 0, count * 10, removed))
    counted = DeletedCount(*sizes, half * 10)
    assert world.ledger.counts == {("t", Reason.SIZE): counted, ("t", Reason.TIME): counted}
    assert Compared.comparisons == 0


def test_deletes_within_a_segment_are_logged_at_once_and_then_together() -> None:
    """A client that trims record by record would fill the log."""
    world = World()
    world.rise(0, 1)
    (line,) = world.told()
    assert (line["event"], line["reason"], line["log_start_offset"], line["offsets"]) == (
        "records are deleted",
        "request",
        1,
        1,
    )
    for offset in range(1, 9):
        world.rise(offset, offset + 1)
    assert (world.told(), len(world.later)) == ([], 1)
    world.wait(QUIET_S)
    assert [(line["offsets"], line["log_start_offset"]) for line in world.told()] == [(8, 9)]
    world.rise(9, 10, 0)
    assert [(line["event"], line["offsets"]) for line in world.told()] == [("segments are deleted", 1)], (
        "a segment was removed: at once"
    )
    assert world.ledger.counts == {("t", Reason.REQUEST): DeletedCount(1, 100, 10)}


def test_the_line_of_a_removed_segment_includes_the_requests_not_logged_yet() -> None:
    world = World()
    world.rise(0, 1)
    world.told()
    world.rise(1, 4)
    world.rise(4, 10, 0)
    assert [(line["offsets"], line["segments"]) for line in world.told()] == [(9, 1)]
    world.wait(QUIET_S)
    assert world.told() == []


def test_lines_about_many_topics_are_logged_a_few_at_a_time() -> None:
    world = World()
    for number in range(LINES_AT_ONCE + 1):
        log: Any = SimpleNamespace(topic_partition=TopicPartition(f"t{number}", 0))
        world.ledger.uncounted.append(PrefixDeletion(log, 0, 1, []))
    world.ledger.count()
    world.soon.pop(0)()
    assert (len(world.lines), len(world.soon)) == (LINES_AT_ONCE, 1)
    assert len(world.told()) == LINES_AT_ONCE + 1


def test_a_follower_uses_its_leaders_reasons() -> None:
    world = World(leads=False)
    world.rise(0, 10, 0)
    assert world.ledger.counts == {("t", Reason.LOG_START): DeletedCount(1, 100, 10)}


def test_announced_deletions_have_their_reasons_and_count_once() -> None:
    """A client had moved the log start into the first segment, and its records are counted already."""
    world = World()
    world.rise(0, 4)
    world.told()
    deletions = (SegmentDeletion(Reason.CONSUMED, 1, 100, 0, 10), SegmentDeletion(Reason.SIZE, 2, 200, 10, 30))
    world.ledger.expect(KEY, deletions, Release(12, "etl", "User:etl"))
    world.rise(4, 30, 0, 10, 20)
    world.ledger.count()
    (audited,) = world.audited
    assert audited == {
        "event": "records deleted",
        "reason": "consumed",
        "group": "etl",
        "committer": "User:etl",
        "topic": "t",
        "topic_id": topic_id_text(ID),
        "partition": 0,
        "old_log_start_offset": 4,
        "log_start_offset": 10,
    }, "of what was consumed alone"
    assert world.ledger.counts == {
        ("t", Reason.REQUEST): DeletedCount(0, 0, 4),
        ("t", Reason.CONSUMED): DeletedCount(1, 100, 6),
        ("t", Reason.SIZE): DeletedCount(2, 200, 20),
    }
    assert [(line["reason"], line["segments"]) for line in world.told()] == [("consumed", 1), ("size", 2)]
    world.rise(30, 40, 30)
    assert world.ledger.counts[("t", Reason.REQUEST)] == DeletedCount(1, 100, 14), "the announcement is used up"


def test_a_segment_removed_later_than_its_records_is_logged_as_below_the_log_start() -> None:
    """A delete to the end leaves the active segment; its next roll removes it."""
    world = World()
    world.rise(0, 10)
    world.rise(10, 10, 0)
    assert world.ledger.counts == {
        ("t", Reason.REQUEST): DeletedCount(0, 0, 10),
        ("t", Reason.LOG_START): DeletedCount(1, 100, 0),
    }
    world.rise(10, 10)
    assert [(line["event"], line["reason"]) for line in world.told()] == [
        ("records are deleted", "request"),
        ("segments are deleted", "log-start"),
    ]


def test_partitions_that_are_deleted_from_together_are_logged_in_one_line() -> None:
    world = World()
    for number in range(3):
        world.rise(0, 10, 0, number=number)
    (line,) = world.told()
    assert (line["topic"], line["partitions"], line["segments"], line["bytes"], line["offsets"]) == ("t", 3, 3, 300, 30)


def test_counters_of_deleted_topics_are_removed() -> None:
    world = World()
    world.ledger.expect(KEY, (SegmentDeletion(Reason.SIZE, 1, 100, 0, 10),))
    world.rise(0, 5, number=1)
    del world.partitions[("t", 0)]
    world.ledger.forget_all_but(["t"])
    assert len(world.ledger.counts) == 1
    world.ledger.forget_all_but([])
    assert world.ledger.counts == {}


def test_a_line_says_that_erasing_waits_for_room() -> None:
    world = World()
    log: Any = SimpleNamespace(topic_partition=TopicPartition("t", 3))
    world.ledger.on_without_room(log, RoomShortage("/data", 900, 12, ""), 2)
    (line,) = world.told()
    assert line == {
        "event": "no room to erase records: they stay in the files, and no reader gets them",
        "partition": "t-3",
        "directory": "/data",
        "bytes_needed": 900,
        "bytes_free": 12,
        "reason": "no room in /data: needs 900 bytes, has 12",
        "partitions": 2,
    }
