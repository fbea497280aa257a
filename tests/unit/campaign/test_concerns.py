"""What a run depends on: its programs and what they import, without comments and docstrings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.campaign import concerns
from tests.campaign.kinds import KINDS

BY_NAME = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize(
    ("file", "kinds"),
    [
        ("docs/erasure.md", set()),
        ("console/topics.py", set()),
        ("cli/groups.py", set()),
        ("pipeline/table/job.py", {"table kill"}),
        ("simulation/erasing_work.py", {"cluster", "drawn faults", "erasures"}),
        ("tests/campaign/drawn.py", {"drawn faults"}),
        ("tests/sim/crash_states.py", {"crash states"}),
        ("tests/chaos/transfer_programs.py", {"transfers"}),
        ("tests/chaos/test_bad_input.py", set()),
        ("tests/native/fuzz_walk.c", {"compiled walk"}),
        ("protocol/native/records.c", set(BY_NAME)),
        ("storage/log_start/journal.py", set(BY_NAME) - {"compiled walk"}),
        ("replication/partition.py", set(BY_NAME) - {"compiled walk"}),
    ],
)
def test_a_change_of_a_file_concerns_the_kinds_that_execute_it(file: str, kinds: set[str]):
    found = {kind.name for kind in KINDS if kind.name != "properties" and kind.concerns(file)}
    assert found == kinds - {"properties"}


def test_every_program_of_a_kind_is_there():
    for kind in KINDS:
        for program in kind.programs():
            assert (concerns.ROOT / program).is_file(), (kind.name, program)
        assert kind.programs() or kind.folders


def test_imports_in_functions_count_and_those_for_types_do_not():
    imports = concerns.imported("cli/main.py")
    assert "cli/own_commands.py" in imports
    assert "runtime/early_signals.py" in imports
    source = "if TYPE_CHECKING:\n    import lowtide.storage\nelse:\n    import lowtide.protocol\n"
    assert list(concerns._imported_modules(concerns.ast.parse(source), "x")) == ["lowtide.protocol"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b", ["a.b"]),
        ("from a import b, c", ["a.b", "a.c"]),
        ("from . import b", ["p.q.b"]),
        ("from .r import b", ["p.q.r.b"]),
        ("from ..r import b", ["p.r.b"]),
        ("def f():\n    import a", ["a"]),
    ],
)
def test_all_forms_of_imports_are_read(source: str, expected: list[str]):
    assert list(concerns._imported_modules(concerns.ast.parse(source), "p.q")) == expected


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ('def f():\n    """One."""\n    return 1\n', 'def f():\n    """Two."""\n    return 1  # as it is\n', True),
        ("def f():\n    return 1\n", "def f():\n    return 2\n", False),
        ('LIMIT = 1\n"""One."""\n', 'LIMIT = 1\n"""Two."""\n', True),
        ('NAME = "one"\n', 'NAME = "two"\n', False),
        ('class C:\n    """Nothing."""\n', 'class C:\n    """Something."""\n', True),
        ("def f(:\n", "def f():\n    pass\n", False),
    ],
)
def test_only_comments_and_docstrings_may_differ(before: str, after: str, is_same: bool):
    assert concerns.same(before.encode(), after.encode(), "a.py") is is_same
    assert concerns.same(before.encode(), after.encode(), "a.c") is (before == after)


def test_a_commit_stands_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a repository of its own, with a program, what it imports, and a page."""

    def git(*words: str) -> str:
        names = ("-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *names, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        git("add", name)
        git("commit", "-m", "a change")
        return git("rev-parse", "HEAD")

    monkeypatch.setattr(concerns, "ROOT", tmp_path)
    (tmp_path / "storage").mkdir()
    git("init", "-q")
    commit("storage/log.py", "import lowtide.storage.index\n")
    first = commit("storage/index.py", "A = 1\n")
    files = ["storage/log.py", "storage/index.py"]
    commit("page", "a page")
    assert concerns.unchanged(first, files)
    commit("storage/index.py", "A = 1  # one\n")
    assert concerns.unchanged(first, files)
    assert concerns.unchanged(first, files, ["native"])
    second = commit("storage/index.py", "A = 2\n")
    assert not concerns.unchanged(first, files)
    assert concerns.unchanged(first, files[:1])
    assert not concerns.unchanged(first, (), ["storage"])
    assert concerns.unchanged(second, files)
    assert not concerns.unchanged("no such commit", files)
