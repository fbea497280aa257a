"""`make test-pythons` finds installed interpreters, and reports missing ones instead of passing without them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.suite import pythons

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def fake(path: Path, version: str) -> Path:
    """A program that reports this version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def test_the_python_of_the_tests_is_found():
    assert pythons.is_version(pythons.interpreter(HERE), HERE)


def test_a_program_of_another_version_or_that_does_not_start_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A pyenv shim of a version that is not selected behaves so."""
    fake(tmp_path / "python9.1", "9.2")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert pythons.interpreter("9.1") is None
    assert pythons.interpreter("9.3") is None


def test_pyenvs_newest_of_a_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("9.1.9", "9.1.10", "9.10.1"):
        fake(tmp_path / "versions" / name / "bin/python", "9.10" if name == "9.10.1" else "9.1")
    (tmp_path / "pyenv").write_text(f"#!/bin/sh\necho {tmp_path}\n")
    (tmp_path / "pyenv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert pythons.interpreter("9.1") == str(tmp_path / "versions/9.1.10/bin/python")


@pytest.mark.parametrize(
    ("missing", "failing", "code"), [(set(), set(), 0), ({"9.2"}, set(), 2), (set(), {"9.1"}, 1), ({"9.2"}, {"9.1"}, 1)]
)
def test_all_versions_run_and_each_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: set[str], failing: set[str], code: int
):
    ran = []
    monkeypatch.setattr(pythons, "interpreter", lambda version: None if version in missing else f"python{version}")
    monkeypatch.setattr(pythons, "passes", lambda version, _program: ran.append(version) or version not in failing)
    assert pythons.main(["9.1", "9.2", "9.3"]) == code
    assert set(ran) == {"9.1", "9.2", "9.3"} - missing
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.partition(";")[0] for line in lines] == [
        f"Python {version}: {'missing' if version in missing else 'failed' if version in failing else 'passed'}"
        for version in ("9.1", "9.2", "9.3")
    ]
