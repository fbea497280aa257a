"""The subcommands that parse their words themselves, each imported when it is called: `serve` must not pay for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowtide.runtime.long_lived import pause_for_imports


def own_command(name: str) -> Callable[[Sequence[str]], int] | None:
    """The subcommand that parses its words itself, imported now; None for one that Typer parses."""
    if name == "serve":
        pause_for_imports()  # `serve` ends the pause
        from lowtide.cli.serve import serve  # noqa: PLC0415

        return serve
    if name == "dev":
        from lowtide.cli.dev import dev  # noqa: PLC0415

        return dev
    if name == "keys":
        from lowtide.cli.keys import keys  # noqa: PLC0415

        return keys
    if name == "metrics":
        from lowtide.cli.metrics import metrics  # noqa: PLC0415

        return metrics
    if name == "repair-log-start":
        from lowtide.cli.repair import repair_log_start  # noqa: PLC0415

        return repair_log_start
    return _version if name == "version" else None


def _version(_words: Sequence[str]) -> int:
    from lowtide import __version__  # noqa: PLC0415

    print(__version__)
    return 0
