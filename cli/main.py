"""The `lowtide` command: `serve` and what else parses its own words is started from here, everything else is Typer's.

`serve` is to answer a fraction of a second after it was called, so it imports neither Typer nor rich; `app` is imported for the others.
Exit codes are those of `outcome.ExitCode`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from lowtide.cli.own_commands import own_command
from lowtide.cli.streams import guarded, in_utf8
from lowtide.runtime.process import environment

COMPLETE: Final = "_LOWTIDE_COMPLETE"
"""The variable by which a shell requests the completion of a word: the words are in others, and none are given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # While a command is still being imported; later it says more.
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    try:
        words = in_utf8(sys.argv[1:] if arguments is None else arguments)
    except ValueError as error:
        print(f"lowtide: {error}", file=sys.stderr)
        return 2
    if COMPLETE in environment():
        return _parsed([])
    if not words or words[0] in ("help", "--help", "-h"):
        code = _parsed(["--help"])
        return code if words else 2
    name, rest = words[0], words[1:]
    command = own_command("version" if name == "--version" else name)
    return _parsed(words) if command is None else command(rest)


def _parsed(words: Sequence[str]) -> int:
    from lowtide.cli.app import run  # noqa: PLC0415 - Typer is for those that need it

    return guarded("lowtide", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
