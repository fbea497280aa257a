"""Asking before something is deleted: only yes is yes, and Ctrl-C ends the asking."""

from __future__ import annotations

import asyncio
import io
import signal
import sys

import pytest

from lowtide.cli.confirmation import confirm
from lowtide.cli.outcome import CommandError, ExitCode


class Terminal(io.StringIO):
    """A person who types what it holds; `interrupted` presses Ctrl-C first."""

    interrupted = False

    def isatty(self) -> bool:
        return True

    def readline(self, *_: int) -> str:  # type: ignore[override]
        if self.interrupted:
            signal.raise_signal(signal.SIGINT)
        return super().readline()


def asked(typed: str, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool = False) -> CommandError | None:
    """How a question ends that a command asks in its event loop."""
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
def test_yes_goes_on(typed, monkeypatch):
    assert asked(typed, monkeypatch) is None


@pytest.mark.parametrize("typed", ["n\n", "\n", "", "yess\n", "ja\n"])
def test_anything_else_ends_it(typed, monkeypatch):
    ended = asked(typed, monkeypatch)
    assert ended is not None
    assert ended.code is ExitCode.NOT_CONFIRMED


def test_ctrl_c_ends_the_waiting_for_an_answer(monkeypatch):
    """The event loop only takes note of it: the question stood until a line came, which could then be a yes."""
    ended = asked("y\n", monkeypatch, interrupted=True)
    assert ended is not None
    assert (ended.code, str(ended)) == (ExitCode.INTERRUPTED, "interrupted, nothing was done.")


def test_without_a_terminal_nothing_is_done(monkeypatch):
    """Not named is an option that the command doesn't have."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(CommandError, match="give --yes, or look with --dry-run first"):
        confirm("Delete all?")
    with pytest.raises(CommandError, match=r"give --yes\. Nothing was done"):
        confirm("Delete all?", rehearsal="")
