"""The page of evidence: sums that may be published again, and only of runs that a commit stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign import evidence
from tests.campaign.kinds import KINDS
from tests.campaign.ledger import Entry, Violation, append


def entry(kind: str, commit: str, first: int, *, changed: bool = False, reason: str = "") -> Entry:
    return Entry(
        kind=kind,
        commit=commit,
        changed=changed,
        first_seed=first,
        end_seed=first + 20,
        began=f"2026-01-{first + 1:02}T00:00:00Z",
        seconds=60.0,
        cpu_seconds=1800.0,
        faults={"kill": 2, "SIGKILL of a broker": 5, "execution": 1_000_000},
        violations=[Violation(reason, "again")] if reason else [],
        states=3,
    )


def test_runs_are_added_up_by_kind_and_commit():
    lines = evidence.sums(
        "1", [entry("cluster", "aaa", 0), entry("cluster", "aaa", 20, reason="D1: a"), entry("cluster", "bbb", 5)]
    )
    assert [(line.commit, line.runs, line.seeds, line.cpu_seconds, line.states, line.last[:10]) for line in lines] == [
        ("aaa", 2, 40, 3600.0, 6, "2026-01-21"),
        ("bbb", 1, 20, 1800.0, 3, "2026-01-06"),
    ]
    assert lines[0].violations == ["D1: a"]


def test_the_seeds_of_a_kind_are_those_of_all_ledgers():
    lines = [
        *evidence.sums("1", [entry("cluster", "aaa", 0), entry("kill", "aaa", 0)]),
        *evidence.sums("2", [entry("cluster", "bbb", 20)]),
    ]
    assert evidence.seeds_of(lines) == {"cluster": 40, "kill": 20}


def test_a_run_of_a_changed_tree_is_no_evidence():
    assert evidence.sums("1", [entry("cluster", "aaa", 0, changed=True)]) == []


def test_the_page_tells_what_is_current():
    lines = evidence.sums(
        "1", [entry("cluster", "old", 0), entry("cluster", "new", 20), entry("kill", "old", 0, reason="D1: a")]
    )
    text = evidence.page(lines, KINDS, lambda _kind, commit: commit == "new")
    assert "| cluster | 20 | 20 | 40 | 100,000 | 1.00 | 960 | 14 | 6 | 0 | 2026-01-21 |" in text
    assert "| kill | 0 | 5 | 5 | 5,000 | 0.50 | 240 | 7 | 3 | 1 | 2026-01-01 |" in text
    assert "| compiled walk | 0 | 0 | 0 | 500,000,000 | 0 | | 0 | | 0 | never |" in text
    assert "- kill, old: D1: a" in text
    assert "| kill | 6 |" in text
    assert "| execution |" not in text, "that is no fault"


def test_publishing_again_replaces_the_lines_of_this_ledger_and_keeps_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evidence, "unchanged_since", lambda _kind, _commit: True)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        append(folder / "ledger.jsonl", entry("cluster", "aaa", 0))
    sums, page = tmp_path / "evidence.jsonl", tmp_path / "evidence.md"
    for folder in (*folders, folders[0]):
        evidence.publish(folder, sums, page)
    assert [(line.seeds, line.commit) for line in evidence.load(sums)] == [(20, "aaa")] * 2
    append(folders[0] / "ledger.jsonl", entry("cluster", "aaa", 20))
    evidence.publish(folders[0], sums, page)
    assert sorted(line.seeds for line in evidence.load(sums)) == [20, 40]
    assert "| cluster | 60 | 60 | 60 |" in page.read_text()


def test_a_published_violation_names_no_folder_of_the_machine(tmp_path: Path):
    append(tmp_path / "ledger.jsonl", entry("kill", "aaa", 0, reason=f"FileNotFoundError: '{tmp_path}/tmp/broker-3/a'"))
    sums, page = tmp_path / "evidence.jsonl", tmp_path / "evidence.md"
    evidence.publish(tmp_path, sums, page)
    assert "- kill, aaa: FileNotFoundError: 'build/campaign/tmp/broker-3/a'" in page.read_text()
    assert str(tmp_path) not in page.read_text() + sums.read_text()


def test_a_commit_that_is_not_known_is_not_current():
    assert not evidence.unchanged_since(KINDS[0], "0" * 12)


def test_the_folders_of_kinds_are_there():
    assert all(kind.concerns and all((evidence.ROOT / folder).is_dir() for folder in kind.concerns) for kind in KINDS)


def test_the_published_page_has_the_sums_of_the_tree():
    """What is current depends on the history; all else is in the lines."""
    text, lines = evidence.PAGE.read_text(encoding="utf-8"), evidence.load()
    for kind in KINDS:
        count = sum(line.counted(kind) for line in lines if line.kind == kind.name)
        row = next(row for row in text.splitlines() if row.startswith(f"| {kind.name} | ") and row.count("|") == 12)
        assert row.split("|")[4].strip() == f"{count:,}"
