"""The program behind `make test`: every test folder is in a lane, every selected test exists, and a run reports what it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests import examples, taste
from tests.suite import __main__ as program
from tests.suite import until
from tests.suite.lanes import FULL_ONLY, TASTE_ONLY, Lane, Part, lanes
from tests.suite.report import (
    LaneState,
    causes,
    clock,
    counts,
    kind_of,
    progress_line,
    summary,
    what_is_left,
    without_progress,
)

ROOT = Path(__file__).resolve().parents[2]
TESTED = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.rglob("test_*.py")))


def paths(part: Part) -> set[str]:
    return {
        path
        for lane in lanes(part, 2)
        if not set(lane.env) & {"PYTHONASYNCIODEBUG", "LOWTIDE_PURE"}
        for path in lane.paths
    }


@pytest.mark.parametrize("part", [Part.TEST, Part.CI, Part.REST, Part.ALL])
def test_every_folder_of_tests_is_in_a_lane(part: Part):
    """All except those that need Maven or Go, or disks of their own."""
    assert paths(part) == {f"tests/{name}" for name in TESTED if name not in ("interop", "power")}


def test_test_and_rest_together_are_all():
    """Together the marks exclude nothing, and the seeds are consecutive."""
    few, rest, everything = (
        [lane for lane in lanes(part, 2) if not set(lane.env) & {"PYTHONASYNCIODEBUG", "LOWTIDE_PURE"}]
        for part in (Part.TEST, Part.REST, Part.ALL)
    )
    assert [{lane.select for lane in part} for part in (few, rest, everything)] == [{TASTE_ONLY}, {FULL_ONLY}, {""}]
    first, second, whole = (next(lane.env for lane in part if "SEEDS" in lane.env) for part in (few, rest, everything))
    for begin, count in (("FIRST_SEED", "SEEDS"), ("FIRST_CLUSTER_SEED", "CLUSTER_SEEDS")):
        assert int(first[begin]) + int(first[count]) == int(second[begin])
        assert int(second[begin]) + int(second[count]) == int(whole[begin]) + int(whole[count])


def test_ci_adds_no_test_that_the_rest_lacks():
    """It leaves out what takes longest, and seeds at the end."""
    ci, rest = lanes(Part.CI, 2), lanes(Part.REST, 2)
    for short, whole in zip(ci, rest, strict=True):
        assert short.name == whole.name
        assert all(any(path == each or path.startswith(f"{each}/") for each in whole.paths) for path in short.paths)
        assert short.select in (whole.select, f"({whole.select}) and not longest")
        for first, count in (("FIRST_SEED", "SEEDS"), ("FIRST_CLUSTER_SEED", "CLUSTER_SEEDS")):
            if count in whole.env:
                assert short.env[first] == whole.env[first]
                assert int(short.env[count]) <= int(whole.env[count])


@pytest.mark.parametrize("path", sorted({path for lane in lanes(Part.CI, 2) for path in lane.paths}))
def test_what_a_lane_names_exists(path: str):
    assert (ROOT / path).exists()


def test_a_log_is_printed_without_its_dots():
    log = "..s.xFE [ 7%]\n.....\n=== FAILURES ===\nE   assert 1 == 2\n...and so on\n...F [100%]\n"
    assert without_progress(log) == "=== FAILURES ===\nE   assert 1 == 2\n...and so on\n"


def test_what_is_drawn_less_or_killed_less_often_is_done_in_whole_by_the_rest():
    """The same tests run again, without the numbers that make them short."""
    for name in ("EXAMPLES_PERCENT", "ROUNDS", "RESTORE_SEEDS", "SECONDS_OF_TRANSFER"):
        assert any(name in lane.env for lane in lanes(Part.TEST, 2))
        again = {"PYTHONASYNCIODEBUG", "LOWTIDE_PURE"}
        whole = [
            lane for part in (Part.CI, Part.REST, Part.ALL) for lane in lanes(part, 2) if not again & lane.env.keys()
        ]
        assert not any(name in lane.env for lane in whole)
    assert {"seeds", "hypothesis"} <= set(FULL_ONLY.split())


@pytest.mark.parametrize(("percent", "counts"), [("100", [1, 10, 200]), ("25", [1, 10, 50])])
def test_some_examples_are_drawn_always(monkeypatch: pytest.MonkeyPatch, percent: str, counts: list[int]):
    monkeypatch.setattr(examples, "PERCENT", int(percent))
    assert [examples.examples(count) for count in (1, 10, 200)] == counts


def test_lanes_have_names_of_their_own():
    """Their logs are named for them."""
    for part in Part:
        names = [lane.name for lane in lanes(part, 2)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("prefix", [*taste.FULL, *taste.LONGEST, *taste.SECONDS])
def test_what_the_table_names_exists(prefix: str):
    """A file; and in it the test, if one is named."""
    name, _, test = prefix.partition("::")
    path = ROOT / name
    assert path.is_file()
    assert not test or f"def {test.partition('[')[0]}" in path.read_text(encoding="utf-8")


def test_every_test_that_is_left_out_has_a_reason():
    assert all(len(reason.split()) > 2 for reason in [*taste.FULL.values(), *taste.LONGEST.values()])


def test_a_lane_with_workers_shares_files_among_them_in_the_order_of_collection():
    """The long ones come first."""
    options = Lane("x", ("tests/a", "tests/b"), "not full", workers=3).options(7)
    assert options[-2:] == ["tests/a", "tests/b"]
    assert {"--dist=loadfile", "--no-loadscope-reorder", "--randomly-seed=7"} <= set(options)
    assert "-n" not in Lane("x", ("tests/a",)).options(7)


STATE = LaneState(
    total=30,
    done=20,
    failed=["tests/chaos/test_x.py::test_y"],
    running={"tests/chaos/test_z.py::test_a": 100.0, "tests/unit/test_b.py::test_c": 104.0},
    seconds={"chaos": 61.2, "unit": 3.0},
    outcomes={"chaos": {"passed": 8, "failed": 1}, "unit": {"passed": 10, "skipped": 1}},
    skipped={"no disk": 1},
    left={"chaos": 5, "sim": 1100},
)


def test_kinds_are_folders_of_tests():
    assert kind_of("tests/unit/broker/test_x.py::test_y[a/b]") == "unit"
    assert kind_of("tests/test_x.py::test_y") == "tests"


def test_progress_names_what_runs_longest():
    line = progress_line({"one": STATE, "two": LaneState()}, 80.0, 131.0)
    assert line == "1:20  20 of 30 tests, 1 failed; one 20/30, two begins; for 31 s: tests/chaos/test_z.py::test_a"


def test_the_summary_counts_by_kind():
    lines = summary([STATE, STATE], 125.0)
    assert [line.split()[:5] for line in lines[1:3]] == [
        ["unit", "20", "0", "2", "6"],
        ["chaos", "16", "2", "0", "122"],
    ]
    assert lines[-2:] == ["skipped 2: no disk", "took 2:05"]
    assert counts([STATE, STATE]) == "36 passed, 2 failed, 2 skipped"


def test_what_is_left_is_counted_by_kind():
    assert what_is_left([STATE]).startswith("make test-all adds 1,105 tests (1,100 of sim, 5 of chaos), ")


def test_times_are_minutes_and_seconds():
    assert [clock(seconds) for seconds in (0, 9.9, 60, 3_725)] == ["0:00", "0:09", "1:00", "62:05"]


SUITE = """
import time

import pytest


@pytest.mark.parametrize("number", range(4))
def test_passes(number): ...


def test_fails():
    assert False


def test_is_skipped():
    pytest.skip("why not")


@pytest.mark.full
def test_is_left_out(): ...
"""

CONFTEST = """
from tests.suite import state, until

def pytest_configure(config):
    config.addinivalue_line("markers", "full: left out")
    state.register(config)
    until.register(config)
"""


def run_suite(folder: Path, workers: int, **env: str) -> tuple[subprocess.CompletedProcess[str], LaneState]:
    """Run `SUITE` as a lane in this folder."""
    tests = folder / "tests/unit"
    tests.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (tests / "test_some.py").write_text(SUITE)
    file = folder / "state.json"
    lane = Lane("x", ("tests",), "not full", workers=workers)
    command = [sys.executable, "-m", "pytest", "--rootdir", str(folder), "-p", "no:cacheprovider", *lane.options(7)]
    env |= {"PYTHONPATH": str(ROOT), "TEST_STATE": str(file), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return ended, msgspec.json.decode(file.read_bytes(), type=LaneState)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_keeps_how_far_it_is(tmp_path: Path, workers: int):
    """This also holds with workers: the file has each test once, the deselected ones, and no running test."""
    ended, state = run_suite(tmp_path, workers)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert (state.total, state.done, state.running, state.left) == (6, 6, {}, {"unit": 1})
    assert state.failed == ["tests/unit/test_some.py::test_fails"]
    (cause,) = state.causes.values()
    assert cause.startswith("test_some.py:") and cause in causes([state])[0]
    assert state.outcomes == {"unit": {"passed": 4, "failed": 1, "skipped": 1}}
    assert state.skipped == {"Skipped: why not": 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_no_test_begins_when_the_time_is_up(tmp_path: Path, workers: int):
    """Not even its fixtures do. What is left is counted, with the reason."""
    ended, state = run_suite(tmp_path, workers, TEST_UNTIL="0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (state.outcomes, state.skipped) == ({"unit": {"skipped": 6}}, {f"Skipped: {until.REASON}": 6})


def test_a_lane_that_cannot_begin_in_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """One lane at a time, and no test begins in the first: the second has no time at all."""
    (tmp_path / "test_some.py").write_text(SUITE)
    monkeypatch.setattr(program, "LOGS", tmp_path)
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(
        program, "lanes", lambda _part, _cores: [Lane("first", ("test_some.py",)), Lane("second", ("test_some.py",))]
    )
    assert (
        program.main(["ci", "--at-once", "1", "--within", "0.0001"]) == 1
    )  # Its test fails: here no conftest.py heeds the time.
    printed = capsys.readouterr().out
    assert "not begun, because the time was up: second\n" in printed
    assert "first ended with 1" in printed


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "x"])
def test_a_time_that_is_none_is_refused(minutes: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        program.main(["ci", "--within", minutes])
    assert ended.value.code == 2
    assert f"--within: minutes above 0, not '{minutes}'" in capsys.readouterr().err
