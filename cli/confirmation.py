"""Asking a person before something is deleted. Where nobody can be asked, nothing is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.cli.printing import print_table


def confirm(question: str, shown: tuple[Sequence[str], Iterable[Sequence[object]]] | None = None) -> None:
    """Asks on the terminal, below a table if there is one to be shown. Errors: CommandError unless the answer is yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = (
            "this deletes, and nobody can be asked, since there is no terminal: give --yes, or look with --dry-run first. Nothing was done."
        )
        raise CommandError(message, ExitCode.NOT_CONFIRMED)
    if shown is not None:
        print_table(*shown)
        sys.stdout.flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("not confirmed, nothing was done.", ExitCode.NOT_CONFIRMED)
