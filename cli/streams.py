"""Handles closed or full output streams and incomplete encodings, without a traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence

from lowtide.cli.outcome import ExitCode


def guarded(name: str, command: Callable[[], int]) -> int:
    """Runs a command; returns its exit code, or FAILED if its output can't be written. A closed pipe is no error."""
    if sys.stdout is None:
        sys.stdout = io.StringIO()
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = io.StringIO()  # Otherwise Python writes again at its exit, and complains.
        return ExitCode.FAILED
    except OSError as error:
        sys.stdout = io.StringIO()
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"{name}: {where}{error.strerror or error}.", file=sys.stderr)
        return ExitCode.FAILED
    return code


def in_utf8(words: Sequence[str]) -> list[str]:
    """Decodes words that Python has decoded with another encoding than UTF-8. Errors: ValueError, a sentence."""
    return [_in_utf8(word) for word in words]


def _in_utf8(word: str) -> str:
    if not any("\ud800" <= each <= "\udfff" for each in word):
        return word
    try:
        return word.encode(sys.getfilesystemencoding(), "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise ValueError(f"{word!a} is not UTF-8 text.") from None
