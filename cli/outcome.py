"""Exit codes of commands, and errors with a sentence and an exit code."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes; docs/command-line.md documents them."""

    DONE = 0
    FAILED = 1
    """Something failed, or a file is damaged. The output says what was done."""
    MISUSED = 2
    """Wrong arguments or configuration; nothing was done."""
    UNREACHABLE = 3
    """No broker was reachable, or the login failed; nothing is known to be done."""
    NOT_CONFIRMED = 4
    """A confirmation is missing; nothing was done."""
    INTERRUPTED = 130
    """Ctrl-C, with the shells' code."""


class CommandError(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, sentence: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(sentence)
        self.code = code


def misused(sentence: str) -> CommandError:
    """Returns the error for wrong arguments."""
    return CommandError(sentence, ExitCode.MISUSED)
