"""Asks a person before something is deleted. Without a terminal nothing is deleted."""

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
    rehearsal: str = ", or look with --dry-run first",
) -> None:
    """Asks on the terminal, below a table if there is one to be shown.

    `rehearsal`: what else could be done without a terminal.
    Errors: CommandError unless the answer is yes.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"this command asks before it acts, and there is no terminal to ask on: give --yes{rehearsal}. Nothing was done."
        raise CommandError(message, ExitCode.NOT_CONFIRMED)
    if shown is not None:
        print_table(*shown)
        sys.stdout.flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if _answer().strip().lower() not in ("y", "yes"):
        raise CommandError("not confirmed, nothing was done.", ExitCode.NOT_CONFIRMED)


def _answer() -> str:
    """What is typed.

    An event loop would take note of Ctrl-C when it next runs, which it doesn't while we wait: here it interrupts.
    """
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise CommandError("interrupted, nothing was done.", ExitCode.INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, handler)
