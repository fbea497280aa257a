"""The `lowtide` command. Some commands parse their words themselves; Typer parses the others.

A broker should start in a fraction of a second, so `serve` imports neither Typer nor rich. Exit codes are those of
`outcome.ExitCode`. This module imports nothing before `end_by_signals` except what that needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from lowtide.runtime.early_signals import end_by_signals, restore_signals

COMPLETE: Final = "_LOWTIDE_COMPLETE"
"""The variable with which a shell requests completion; other variables have the words."""

_INTERRUPTED: Final = 130
"""`ExitCode.INTERRUPTED`, for signals during imports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of the process; returns the exit code.

    Signals end it until a command runs.
    """
    if arguments is None:
        end_by_signals()
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED


def delete_records() -> int:
    """Runs `lowtide-delete-records` with the command line of the process; returns the exit code."""
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
    if words[:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("help", "--help", "-h"):
        code = _parsed(["--help"])
        return code if words else 2
    name, rest = words[0], words[1:]
    command = own_command("version" if name == "--version" else name)
    if command is None:
        return _parsed(words)
    if name != "serve":  # Signals end `serve` until its event loop handles them.
        restore_signals()
    return command(rest)


def _parsed(words: Sequence[str]) -> int:
    from lowtide.cli.app import run  # noqa: PLC0415 - slow
    from lowtide.cli.streams import guarded  # noqa: PLC0415

    return guarded("lowtide", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
