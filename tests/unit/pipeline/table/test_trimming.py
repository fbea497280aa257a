"""What is trimmed when: what the table has had for a while, and has still."""

from __future__ import annotations

from types import SimpleNamespace

from lowtide.pipeline.ranges import QueryProgress
from lowtide.pipeline.table import trimming
from lowtide.pipeline.table.committing import TableChange, commit_change
from lowtide.pipeline.table.progress import TableProgress, carried
from lowtide.pipeline.table.trimming import TableTrimmer, TableTrimSettings, due_positions
from lowtide.protocol.types import TopicPartition

from .tables import TOPIC_ID, progress

P0, P1 = TopicPartition("numbers", 0), TopicPartition("numbers", 1)


def at(ms: int, topic_id: bytes = TOPIC_ID, **positions: int) -> TableProgress:
    places = {TopicPartition("numbers", int(name[1:])): offset for name, offset in positions.items()}
    return TableProgress("numbers", topic_id, places, f"r{ms}", ms, ms)


def test_only_what_was_committed_long_enough_ago_is_due():
    rounds = [at(10, p0=1), at(20, p0=5, p1=2), at(30, p0=9, p1=7)]
    assert due_positions(rounds, rounds[-1], 9) == {}
    assert due_positions(rounds, rounds[-1], 20) == {P0: 5, P1: 2}
    assert due_positions(rounds, rounds[-1], 99) == {P0: 9, P1: 7}


def test_nothing_above_the_present_progress_is_due():
    assert due_positions([at(10, p0=9, p1=3)], at(5, p0=4), 99) == {P0: 4}


def test_rounds_of_a_deleted_topic_do_not_count():
    assert due_positions([at(10, b"x" * 16, p0=9)], at(20, p0=4), 99) == {}


class Offers:
    """Takes the place of the thread that trims."""

    def __init__(self, *_arguments):
        self.all: list[QueryProgress] = []

    def offer(self, consumed: QueryProgress) -> None:
        self.all.append(consumed)


def trimmer_of(monkeypatch, clock, **settings) -> tuple[TableTrimmer, Offers, list[str]]:
    offers, told = Offers(), []
    monkeypatch.setattr(trimming, "Trimmer", lambda *_: offers)
    return TableTrimmer(TableTrimSettings(**settings), SimpleNamespace, clock, told.append), offers, told


def test_a_round_is_trimmed_after_its_time_also_if_compactions_carry_it_on(monkeypatch, table):
    snapshot = commit_change(table, TableChange(properties=progress({0: 5}, "a")))
    committed = snapshot.timestamp_ms
    now = committed + 999
    trimmer, offers, _ = trimmer_of(monkeypatch, SimpleNamespace(wall_ms=lambda: now), after_ms=1000)
    trimmer.on_table(table.metadata)
    assert offers.all == []
    commit_change(table, TableChange(properties=carried(table.metadata)))
    table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    now = committed + 1000
    trimmer.on_table(table.refresh().metadata)
    assert offers.all == [QueryProgress({P0: 5}, {"numbers": TOPIC_ID})]


def test_a_new_process_finds_the_times_in_the_snapshots(monkeypatch, table):
    first = commit_change(table, TableChange(properties=progress({0: 5}, "a")))
    commit_change(table, TableChange(properties=progress({0: 9}, "b")))
    clock = SimpleNamespace(wall_ms=lambda: first.timestamp_ms)
    trimmer, offers, _ = trimmer_of(monkeypatch, clock, after_ms=0)
    trimmer.on_table(table.metadata)
    assert offers.all[-1].positions[P0] in (5, 9), "the second commit may be of the same millisecond"
    clock.wall_ms = lambda: first.timestamp_ms + 60_000
    trimmer.on_table(table.metadata)
    assert offers.all[-1].positions == {P0: 9}


def test_a_dry_run_says_each_offset_once(monkeypatch, table):
    commit_change(table, TableChange(properties=progress({0: 5, 1: 0}, "a")))
    clock = SimpleNamespace(wall_ms=lambda: table.metadata.snapshots[-1].timestamp_ms)
    trimmer, offers, told = trimmer_of(monkeypatch, clock, after_ms=0, is_dry_run=True)
    trimmer.on_table(table.metadata)
    trimmer.on_table(table.metadata)
    assert told == ["dry run: numbers-0 would be trimmed to offset 5"]
    assert offers.all == []


def test_the_memory_of_rounds_is_bounded(monkeypatch, table):
    monkeypatch.setattr(trimming, "ROUNDS_MAX", 4)
    trimmer, _, _ = trimmer_of(monkeypatch, SimpleNamespace(wall_ms=lambda: 0), after_ms=1000)
    rounds = [at(number, p0=number) for number in range(9)]
    for number in range(9):
        trimmer._remember(rounds[: number + 1][-1:], rounds[number])
    kept = list(trimmer._rounds.values())
    assert len(kept) <= 5
    assert kept[0] == rounds[0]
    assert kept == sorted(kept, key=lambda one: one.committed_ms)
