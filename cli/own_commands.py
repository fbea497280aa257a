"""The commands that parse their words themselves. Each is imported on use, so that `serve` starts fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from lowtide.runtime.long_lived import pause_for_imports

_MODULES: Final = {"serve": "serve", "dev": "dev", "keys": "keys", "metrics": "metrics", "repair-log-start": "repair"}


def own_command(name: str) -> Callable[[Sequence[str]], int] | None:
    """Imports and returns a command that parses its words itself; None for one that Typer parses."""
    if name == "version":
        return _version
    if name not in _MODULES:
        return None
    if name == "serve":
        pause_for_imports()  # `serve` ends the pause.
    command: Callable[[Sequence[str]], int] = getattr(
        import_module(f"lowtide.cli.{_MODULES[name]}"), name.replace("-", "_")
    )
    return command


def _version(_words: Sequence[str]) -> int:
    from lowtide import __version__  # noqa: PLC0415

    print(__version__)
    return 0
