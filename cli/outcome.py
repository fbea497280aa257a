"""How a command ends: its exit code, and errors that are a sentence and an exit code."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script can go by. docs/command-line.md lists them for users."""

    DONE = 0
    FAILED = 1
    """Some of it failed, or what was looked at is damaged. What was done is printed."""
    MISUSED = 2
    """Called or configured wrongly; nothing was done."""
    UNREACHABLE = 3
    """No broker could be reached, or none let us in; nothing is known to have been done."""
    NOT_CONFIRMED = 4
    """What needs a confirmation didn't get one; nothing was done."""
    INTERRUPTED = 130
    """By Ctrl-C, as shells say it."""


class CommandError(Exception):
    """Why a command cannot continue, as a message, and its exit code."""

    def __init__(self, sentence: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(sentence)
        self.code = code


def misused(sentence: str) -> CommandError:
    """The error of a command that was called wrongly."""
    return CommandError(sentence, ExitCode.MISUSED)
