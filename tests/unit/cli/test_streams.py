"""Output that cannot be written, and arguments in another encoding: a message, and no traceback."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from lowtide.cli.streams import guarded, in_utf8


class Unwritable(io.StringIO):
    """Accepts output, and fails when it is flushed, as a full disk does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def flush(self) -> None:
        raise OSError(self._number, "No space left on device") if self._number == errno.ENOSPC else BrokenPipeError


def ended(stdout: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Returns the exit code of a command that prints a line there, and the text on standard error."""
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", errors)
    code = guarded("lowtide", lambda: print("said") or 0)
    return code, errors.getvalue()


def test_a_full_disk_is_reported_with_a_message(monkeypatch):
    assert ended(Unwritable(errno.ENOSPC), monkeypatch) == (1, "lowtide: No space left on device.\n")


def test_a_file_that_fails_is_named(monkeypatch):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)

    def command() -> int:
        raise OSError(errno.EIO, "Input/output error", "some.log")

    assert guarded("lowtide", command) == 1
    assert errors.getvalue() == "lowtide: some.log: Input/output error.\n"


def test_a_closed_pipe_causes_no_message(monkeypatch):
    """No reader is left, as with a pipe to `head`. The exit code shows that not all was written."""
    assert ended(Unwritable(errno.EPIPE), monkeypatch) == (1, "")


def test_a_closed_output_is_no_error(monkeypatch):
    assert ended(None, monkeypatch) == (0, "")


def test_a_terminal_of_few_characters_gets_escapes(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert guarded("lowtide", lambda: print("t\u00e9") or 0) == 0
    assert written.getvalue() == b"t\\xe9\n"


def test_arguments_are_utf_8_in_any_locale(monkeypatch):
    """Under LC_ALL=C an argument has surrogates, which no request can carry."""
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert in_utf8(["a", b"x=\xc3\xbc".decode("ascii", "surrogateescape")]) == ["a", "x=\u00fc"]
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        in_utf8(["\udcff"])
