"""Confirmation before a delete: only yes confirms, and Ctrl-C ends the question."""

from __future__ import annotations

import asyncio
import io
import signal
import sys

import pytest

from lowtide.cli.confirmation import confirm
from lowtide.cli.outcome import CommandError, ExitCode


class Terminal(io.StringIO):
    """A user who types the contents; with `interrupted`, Ctrl-C comes first."""

    interrupted = False

    def isatty(self) -> bool:
        return True

    def readline(self, *_: int) -> str:  # type: ignore[override]
        if self.interrupted:
            signal.raise_signal(signal.SIGINT)
        return super().readline()


def asked(typed: str, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool = False) -> CommandError | None:
    """Returns the result of a question that a command asks in its event loop."""
    person = Terminal(typed)
    person.interrupted = interrupted
    monkeypatch.setattr(sys, "stdin", person)
    monkeypatch.setattr(sys, "stderr", Terminal())

    async def command() -> None:
        confirm("Delete all?")

    try:
        asyncio.run(command())
    except CommandError as error:
        return error
    return None


@pytest.mark.parametrize("typed", ["y\n", "YES\n", " yes \n"])
def test_yes_continues(typed, monkeypatch):
    assert asked(typed, monkeypatch) is None


@pytest.mark.parametrize("typed", ["n\n", "\n", "", "yess\n", "ja\n"])
def test_anything_else_ends_it(typed, monkeypatch):
    ended = asked(typed, monkeypatch)
    assert ended is not None
    assert ended.code is ExitCode.NOT_CONFIRMED


def test_ctrl_c_ends_the_waiting_for_an_answer(monkeypatch):
    """The event loop only recorded it: the question stayed open until a line arrived, which could be a yes."""
    ended = asked("y\n", monkeypatch, interrupted=True)
    assert ended is not None
    assert (ended.code, str(ended)) == (ExitCode.INTERRUPTED, "interrupted, nothing was done.")


def test_without_a_terminal_nothing_is_done(monkeypatch):
    """The message does not name an option that the command does not have."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(CommandError, match="give --yes, or try --dry-run first"):
        confirm("Delete all?")
    with pytest.raises(CommandError, match=r"give --yes\. Nothing was done"):
        confirm("Delete all?", rehearsal="")
