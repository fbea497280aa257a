"""Prints tables and JSON on standard output, progress and remarks on standard error.

Names, keys and values come from other users, so unprintable characters are escaped. On a terminal, tables fit its
width; elsewhere they have their full width, for programs that cut columns.

JSON output is one document, or one line for each of many things. Keys are stable, and new ones may be added. Times are
milliseconds since 1970; unknown offsets are null.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

_GAP: Final = "  "
_OLDEST_MS: Final = -62_135_596_800_000
_NEWEST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, the range of dates."""


class Output(StrEnum):
    """The format for people or for programs."""

    TEXT = "text"
    JSON = "json"


def print_json(value: Any) -> None:
    """Prints an indented document."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: Any) -> None:
    """Prints a document in one line."""
    print(msgspec.json.encode(value).decode())


def remark(text: str) -> None:
    """Prints a remark for people on standard error."""
    print(text, file=sys.stderr)


def printable(text: str) -> str:
    """Escapes unprintable characters, which could control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def moment(time_ms: int) -> str:
    """Formats a time as UTC in ISO 8601, or as a number if it is not a date."""
    if not _OLDEST_MS <= time_ms <= _NEWEST_MS:
        return str(time_ms)
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plural(count: int, word: str) -> str:
    """Formats a count: `1 record`, `2 records`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of a table. Columns of numbers are right-aligned. None is a dash."""
    texts, numeric = _cells(columns, rows)
    widths = [max([len(title), *(len(row[place]) for row in texts)]) for place, title in enumerate(columns)]
    lines = []
    for row in [list(columns), *texts]:
        cells = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        lines.append(_GAP.join(cells).rstrip())
    return lines


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table; on a terminal with rich, which fits the width."""
    if not sys.stdout.isatty():
        print("\n".join(table(columns, rows)))
        return
    from rich.console import Console  # noqa: PLC0415 - for terminals only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    texts, numeric = _cells(columns, rows)
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for title, right in zip(columns, numeric, strict=True):
        drawn.add_column(Text(title), justify="right" if right else "left", overflow="fold")
    for row in texts:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


def _cells(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> tuple[list[list[str]], list[bool]]:
    """Returns the texts of a table, and which columns contain numbers only."""
    texts = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    numeric = [bool(texts) and all(_is_number(row[place]) for row in texts) for place in range(len(columns))]
    return texts, numeric


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").removeprefix("-").isdigit()


class ProgressBar(Protocol):
    """Shows the progress of long work."""

    def advance(self, count: int) -> None:
        """Notes that so many more are done."""


class _Silent:
    def advance(self, count: int) -> None:
        pass


class _Bar:
    def __init__(self, console: Console, total: int, title: str, *, is_bytes: bool) -> None:
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        count = DownloadColumn(binary_units=True) if is_bytes else MofNCompleteColumn()
        self.drawn = RichProgress(
            TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn(), console=console
        )
        self._task = self.drawn.add_task(title, total=total)

    def advance(self, count: int) -> None:
        self.drawn.advance(self._task, count)


@contextmanager
def progress(title: str, total: int, *, is_bytes: bool = False) -> Iterator[ProgressBar]:
    """Shows a progress bar on standard error, if that is a terminal. `is_bytes`: the unit is bytes."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console  # noqa: PLC0415 - for terminals only

    bar = _Bar(Console(stderr=True), total, title, is_bytes=is_bytes)
    with bar.drawn:
        yield bar
