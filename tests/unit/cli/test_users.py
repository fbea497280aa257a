"""`lowtide users` before the first start of a broker."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lowtide.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    return main.main(["users", *words])


def test_a_user_is_added_before_there_is_a_log_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """These are the commands of the quick start. No file contains the password."""
    directory = tmp_path / "var" / "lowtide"
    assert run(monkeypatch, "add", "alice", "--log-dirs", str(directory)) == 0
    assert run(monkeypatch, "list", "--log-dirs", str(directory)) == 0
    assert "alice" in capsys.readouterr().out
    assert not any(b"secret\n" in path.read_bytes() for path in directory.rglob("*") if path.is_file())


def test_a_log_directory_that_cannot_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert run(monkeypatch, "add", "alice", "--log-dirs", str(tmp_path / "file" / "data")) != 0
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_password_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = tmp_path / "password"
    for content, code in (("pencil\nmore\n", 0), ("\n", 2), ("x" * 2000, 2)):
        file.write_text(content)
        assert (
            run(monkeypatch, "add", "alice", "--log-dirs", str(tmp_path / "data"), "--password-file", str(file)) == code
        )
    assert (
        run(
            monkeypatch, "add", "alice", "--log-dirs", str(tmp_path / "data"), "--password-file", str(tmp_path / "none")
        )
        == 2
    )
    shown = capsys.readouterr()
    assert "pencil" not in shown.out + shown.err
    assert "No such file" in shown.err
