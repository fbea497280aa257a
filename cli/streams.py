"""Standard output and standard error as they may be: closed, full, of an encoding that lacks characters; and words that came in one.

Nothing of that is a bug of ours, and none of it ends in a traceback.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence

from lowtide.cli.outcome import ExitCode


def guarded(name: str, command: Callable[[], int]) -> int:
    """Runs a command; its exit code, or FAILED when what it says can't be written.

    A reader that stops reading is not an error.
    """
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
        sys.stdout = io.StringIO()  # Or Python would try once more at its end, and complain.
        return ExitCode.FAILED
    except OSError as error:
        sys.stdout = io.StringIO()
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"{name}: {where}{error.strerror or error}.", file=sys.stderr)
        return ExitCode.FAILED
    return code


def in_utf8(words: Sequence[str]) -> list[str]:
    """The words as they were typed, where Python took them for another encoding than UTF-8.

    Errors: ValueError, a sentence.
    """
    return [_in_utf8(word) for word in words]


def _in_utf8(word: str) -> str:
    if not any("\ud800" <= each <= "\udfff" for each in word):
        return word
    try:
        return word.encode(sys.getfilesystemencoding(), "surrogateescape").decode("utf-8")
    except UnicodeError:
        message = f"{word!a} is no text in UTF-8."
        raise ValueError(message) from None
