"""Asks for confirmation before a change. Without a terminal nothing is changed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Sequence

from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.cli.printing import print_table


def confirm(
    question: str,
    shown: tuple[Sequence[str], Iterable[Sequence[object]]] | None = None,
    *,
    rehearsal: str = ", or try --dry-run first",
) -> None:
    """Asks on the terminal, below a table if one is given. Errors: CommandError unless the answer is yes.

    `rehearsal` is an alternative for calls without a terminal.
    """
    check_terminal(rehearsal)
    if shown is not None:
        print_table(*shown)
        sys.stdout.flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if _answer().strip().lower() not in ("y", "yes"):
        raise CommandError("not confirmed, nothing was done.", ExitCode.NOT_CONFIRMED)


def check_terminal(rehearsal: str = ", or try --dry-run first") -> None:
    """Checks that there is a terminal to ask on. Errors: CommandError."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        reason = "this command asks for confirmation, and there is no terminal"
        raise CommandError(f"{reason}: give --yes{rehearsal}. Nothing was done.", ExitCode.NOT_CONFIRMED)


def _answer() -> str:
    """Reads the answer. Ctrl-C interrupts at once: the event loop would notice it only after the answer."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise CommandError("interrupted, nothing was done.", ExitCode.INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, handler)
