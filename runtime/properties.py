"""Java properties files, the configuration format of Kafka's brokers and clients.

`key=value`, `key: value` or `key value`; # and ! comments, backslash escapes and continued lines. Values are texts; the
caller interprets them. Source: java.util.Properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

_LINE_END = re.compile(r"\r\n|\r|\n")


class PropertiesError(ValueError):
    """Invalid properties; one sentence that names the file and the line."""


class Property(NamedTuple):
    """A key, its value, and its line, from 1."""

    key: str
    value: str
    line: int


def read_properties(text: str, name: str) -> Iterator[Property]:
    """Yields the properties in order.

    If a key is listed twice, the last entry wins. A byte order mark, which some editors put first, is skipped.
    `name` is the file's, for messages.

    Errors: PropertiesError for a line without a key or with a broken escape.
    """
    for number, line in _logical_lines(text.removeprefix("\ufeff")):
        try:
            key, value = _split(line)
        except ValueError:
            raise PropertiesError(
                f"{name} line {number} has a broken escape: allowed after \\u are four hexadecimal digits."
            ) from None
        if not key:
            raise PropertiesError(f"{name} line {number} has no key: allowed is key=value.")
        yield Property(key, value, number)


def property_text(key: str, value: object) -> str:
    """Returns a value in the form of properties: `true` for True, digits for a number, commas between items of a list.

    Errors: PropertiesError with the key for anything else, such as None or bytes.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        return ",".join(property_text(key, each) for each in value)
    raise PropertiesError(f"{key} is {value!r}: allowed are texts, numbers, True and False, and lists of them.")


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yields non-empty lines, joined where they are continued, with the number of their first."""
    pending, started = "", 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        started = started if pending else number
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            continue
        yield started, pending + line
        pending = ""
    if pending:
        yield started, pending


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _split(line: str) -> tuple[str, str]:
    """Returns key and value of a logical line: the first unescaped `=`, `:` or white space ends the key."""
    key: list[str] = []
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        step = 2 if line[position] == "\\" else 1
        key.append(line[position : position + step])
        position += step
    rest = line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape("".join(key)), _unescape(rest)


def _unescape(text: str) -> str:
    """Resolves backslash escapes. Errors: ValueError for a broken one."""
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position >= len(text):
            out.append(char)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            out.append(_code_point(text[position : position + 4]))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)


def _code_point(digits: str) -> str:
    """Returns the character for four hexadecimal digits. Errors: ValueError."""
    if re.fullmatch(r"[0-9A-Fa-f]{4}", digits) is None:
        raise ValueError(digits)
    return chr(int(digits, 16))
