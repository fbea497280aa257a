"""The `lowtide` command: `serve` and what else parses its own words is started from here, everything else is Typer's.

`serve` is to answer a fraction of a second after it was called, so it imports neither Typer nor rich; `app` is imported for the others.
Exit codes are those of `outcome.ExitCode`. Here nothing is imported before `end_by_signals` but what that needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from lowtide.runtime.early_signals import end_by_signals, restore_signals

COMPLETE: Final = "_LOWTIDE_COMPLETE"
"""The variable by which a shell requests the completion of a word: the words are in others, and none are given."""

_INTERRUPTED: Final = 130
"""`ExitCode.INTERRUPTED`, while a command is still being imported; later it says more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Without arguments it is that of the process: signals end it until the command runs.
    """
    if arguments is None:
        end_by_signals()
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED


def delete_records() -> int:
    """Run the command line of the process as that of `lowtide-delete-records`; returns the exit code."""
    end_by_signals()
    try:
        from lowtide.cli import delete_records_tool  # noqa: PLC0415 - signals end the process now

        restore_signals()
        return delete_records_tool.main()
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    from lowtide.cli.own_commands import own_command  # noqa: PLC0415 - signals end the process now
    from lowtide.cli.streams import in_utf8  # noqa: PLC0415
    from lowtide.runtime.process import environment  # noqa: PLC0415

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
    if command is None:
        return _parsed(words)
    if name != "serve":  # Signals end that one until its event loop handles them.
        restore_signals()
    return command(rest)


def _parsed(words: Sequence[str]) -> int:
    from lowtide.cli.app import run  # noqa: PLC0415 - Typer is for those that need it
    from lowtide.cli.streams import guarded  # noqa: PLC0415

    return guarded("lowtide", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
