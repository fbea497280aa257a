"""The ledger is all that a campaign needs to continue, even if a crash truncated it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.campaign.ledger import Entry, Violation, append, load, read, table, totals

FIRST = Entry(
    kind="cluster",
    commit="1a2b3c4d5e6f",
    changed=False,
    first_seed=40,
    end_seed=60,
    began="2026-01-02T03:04:05Z",
    seconds=21.5,
    cpu_seconds=17.5,
    faults={"kill": 31},
    violations=[],
)
BROKEN = Violation("D1: offset 7 is back", "make sim SEED=61")
SECOND = msgspec.structs.replace(FIRST, first_seed=60, end_seed=80, faults={"kill": 2, "pause": 3}, violations=[BROKEN])
OTHER = msgspec.structs.replace(FIRST, kind="kill", first_seed=0, end_seed=1)


def line(entry: Entry) -> bytes:
    return msgspec.json.encode(entry) + b"\n"


def test_appended_lines_are_read(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    assert load(path) == []
    for entry in (FIRST, SECOND):
        append(path, entry)
    assert load(path) == [FIRST, SECOND]
    assert path.read_bytes().count(b"\n") == 2


@given(st.integers(0, len(line(SECOND)) - 1))
def test_a_line_that_was_cut_short_anywhere_is_skipped(size: int):
    assert read(line(FIRST) + line(SECOND)[:size]) == [FIRST]


@pytest.mark.parametrize("size", [1, 50, len(line(SECOND)) - 1])
def test_the_line_behind_one_that_was_cut_short_is_whole(tmp_path: Path, size: int):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(line(FIRST) + line(SECOND)[:size])
    append(path, OTHER)
    assert load(path) in ([FIRST, OTHER], [FIRST, SECOND, OTHER])
    assert load(path) == [FIRST, OTHER] or size == len(line(SECOND)) - 1


def test_lines_of_another_form_are_skipped():
    assert read(b'{"kind": 7}\n\n[]\n\xff\xfe\n' + line(FIRST)) == [FIRST]


def test_totals_are_by_kind():
    found = totals([FIRST, SECOND, OTHER])
    cluster = found["cluster"]
    assert (cluster.runs, cluster.seeds, cluster.next_seed, cluster.cpu_seconds) == (2, 40, 80, 35.0)
    assert cluster.faults == Counter({"kill": 33, "pause": 3})
    assert cluster.violations == [BROKEN]
    assert (found["kill"].runs, found["kill"].next_seed) == (1, 1)


def test_the_next_seed_follows_the_highest_for_any_order_of_lines():
    """As after joining the ledgers of two campaigns."""
    assert totals([SECOND, FIRST])["cluster"].next_seed == 80


def test_the_table_has_each_kind_the_faults_and_how_to_reproduce_violations():
    text = "\n".join(table(totals([FIRST, SECOND, OTHER])))
    assert "cluster" in text
    assert "64 kill" in text
    assert "D1: offset 7 is back\n    make sim SEED=61" in text
