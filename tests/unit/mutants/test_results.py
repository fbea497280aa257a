"""What is known about mutants: which are run again, how they are counted, and that explanations are of mutants that are there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.campaign import evidence
from tests.mutants.operators import mutants
from tests.mutants.results import (
    EXPLAINED,
    SUMS,
    Explained,
    Result,
    Sum,
    is_at_its_end,
    is_due,
    latest,
    load_lines,
    sum_of,
)
from tests.mutants.scope import GROUPS, ROOT


def result(key: str, outcome: str, *, wider: bool = False, tests: str = "t", digest: str = "d") -> Result:
    return Result(module="m.py", digest=digest, key=key, outcome=outcome, wider=wider, tests=tests)  # type: ignore[arg-type]


def test_a_killed_mutant_is_not_run_again_and_a_survivor_when_tests_have_changed():
    assert is_due(None, "t", wider=False)
    assert not is_due(result("a", "killed"), "other", wider=False)
    assert not is_due(result("a", "survived"), "t", wider=False)
    assert is_due(result("a", "survived"), "other", wider=False)


def test_wider_tests_are_asked_once_and_only_after_the_others():
    assert not is_due(None, "t", wider=True)
    assert is_due(result("a", "survived"), "t", wider=True)
    assert is_due(result("a", "not reached"), "t", wider=True)
    assert not is_due(result("a", "survived"), "other", wider=True)
    assert not is_due(result("a", "survived", wider=True), "t", wider=True)
    assert not is_due(result("a", "timed out"), "t", wider=True)


def test_the_last_line_counts_and_a_changed_module_has_none():
    lines = [result("a", "survived"), result("b", "survived", digest="old"), result("a", "killed")]
    assert latest(lines, {"m.py": "d"}) == {("m.py", "a"): lines[2]}


def test_counts():
    known = latest(
        [result("a", "killed"), result("b", "timed out"), result("c", "survived"), result("d", "not reached")],
        {"m.py": "d"},
    )
    explained = [
        Explained(module="m.py", key="c", why="equivalent", because=""),
        Explained(module="n.py", key="d", why="equivalent", because=""),
    ]
    assert sum_of("m.py", "abcde", known, explained) == {
        "mutants": 4,
        "killed": 1,
        "timed out": 1,
        "explained": 1,
        "open": 1,
    }


def test_a_module_is_at_its_end_when_wider_tests_have_seen_what_is_left():
    explained = [Explained(module="m.py", key="b", why="equivalent", because="")]
    lines = [result("a", "killed"), result("b", "survived"), result("c", "not reached")]
    assert not is_at_its_end("m.py", "abc", latest(lines, {"m.py": "d"}), explained)
    known = latest([*lines, result("c", "survived", wider=True)], {"m.py": "d"})
    assert is_at_its_end("m.py", "abc", known, explained)
    assert not is_at_its_end("m.py", "abc", known, [])
    assert not is_at_its_end("m.py", "abcd", known, explained), "one was never run"


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path):
    whole = msgspec.json.encode(result("a", "killed"))
    (tmp_path / "results.jsonl").write_bytes(whole + b"\n" + whole[:20])
    assert len(load_lines(tmp_path / "results.jsonl", Result)) == 1
    assert load_lines(tmp_path / "none", Result) == []


def test_what_is_explained_is_a_mutant_of_the_tree():
    """Otherwise the code has changed, and the explanation may be wrong."""
    listed: dict[str, set[str]] = {}
    for each in load_lines(EXPLAINED, Explained):
        if each.module not in listed:
            listed[each.module] = {mutant.key for mutant in mutants((ROOT / each.module).read_text(encoding="utf-8"))}
        assert each.key in listed[each.module], each
        assert each.because


def test_the_paths_of_groups_are_there():
    for group in GROUPS:
        assert group.files()
        assert all((ROOT / path).exists() for path in (*group.modules, *group.tests, *group.wider)), group


def test_the_published_page_has_the_counts_of_the_tree():
    part = evidence.mutant_part(load_lines(SUMS, Sum), lambda _each: True)
    rows = [row.split(" | ")[2:] for row in part.splitlines() if row.startswith("| ") and "`" in row]
    page = evidence.PAGE.read_text(encoding="utf-8")
    assert all(" | ".join(row) in page for row in rows)
