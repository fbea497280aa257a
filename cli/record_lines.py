r"""Reads lines into records, in the formats of `records show`.

>>> reader = LineReader(form=LineForm.TEXT, separator=":")
>>> reader.read(b"UA:on time", 7)
(7, b'UA', b'on time', [])
>>> LineReader(form=LineForm.JSON).read(b'{"key": "UA", "value": {"delay": 3}, "timestamp": 5}', 7)
(5, b'UA', b'{"delay":3}', [])
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from lowtide.protocol.batch_building import UnplacedRecord
from lowtide.protocol.records import Header
from lowtide.runtime.json_text import decode_json

_SHOWN: Final = 60
"""Bytes of a line that an error shows."""

_KNOWN: Final = frozenset({"key", "value", "headers", "timestamp", "offset", "partition", "decoded"})
"""Keys of an object. The last three come from `records show`, and are ignored."""

_TIMESTAMP_MAX: Final = 2**63 - 1


class LineForm(StrEnum):
    """The format of lines."""

    TEXT = "text"
    HEX = "hex"
    JSON = "json"


class LineError(Exception):
    """A line is not a record; the text is a sentence without a full stop."""


class LineReader:
    """Reads lines into records."""

    def __init__(
        self, *, form: LineForm, key: str | None = None, separator: str | None = None, headers: Sequence[str] = ()
    ) -> None:
        """Takes `headers` as NAME=TEXT. Errors: ValueError for conflicting options, without a full stop."""
        if separator is not None and (key is not None or form is LineForm.JSON):
            raise ValueError(f"--separator and {'--format json' if key is None else '--key'} exclude each other")
        if separator == "":
            raise ValueError("--separator is empty: it must have at least one character")
        self._form = form
        self._separator = None if separator is None else separator.encode()
        self._key = None if key is None else _bytes_of(key, form)
        self._headers = [_header_of(each) for each in headers]
        self._line = 0

    @property
    def takes_empty_lines(self) -> bool:
        """Whether an empty line is a record with an empty value."""
        return self._form is LineForm.TEXT and self._separator is None

    def read(self, line: bytes, now_ms: int) -> UnplacedRecord:
        """Reads a line into a record with the present time. Errors: LineError."""
        self._line += 1
        if self._form is LineForm.JSON:
            return self._read_object(line, now_ms)
        key, value = self._key, line
        if self._separator is not None:
            first, found, value = line.partition(self._separator)
            if not found:
                raise self._error(line, f"it lacks the separator {self._separator.decode()!r}")
            key = self._content(first, line)
        return now_ms, key, self._content(value, line), self._headers

    def _content(self, text: bytes, line: bytes) -> bytes:
        if self._form is LineForm.TEXT:
            return text
        try:
            return bytes.fromhex(text.decode("ascii"))
        except ValueError:
            raise self._error(line, "it must be hex digits, two for each byte") from None

    def _read_object(self, line: bytes, now_ms: int) -> UnplacedRecord:
        try:
            given = decode_json(line)
        except ValueError as error:
            raise self._error(line, f"it is not JSON ({error})") from None
        if type(given) is not dict or "value" not in given or not given.keys() <= _KNOWN:
            raise self._error(
                line, 'it must be an object with "value", and optionally "key", "headers" and "timestamp"'
            )
        timestamp = given.get("timestamp", now_ms)
        if type(timestamp) is not int or not 0 <= timestamp <= _TIMESTAMP_MAX:
            raise self._error(line, '"timestamp" must be milliseconds since 1970')
        headers = list(self._headers)
        try:
            headers += [(each["name"].encode(), _json_bytes(each["value"])) for each in given.get("headers") or []]
        except (AttributeError, KeyError, TypeError):
            raise self._error(line, '"headers" must be a list of objects with "name", a string, and "value"') from None
        return (
            timestamp,
            _json_bytes(given["key"]) if "key" in given else self._key,
            _json_bytes(given["value"]),
            headers,
        )

    def _error(self, line: bytes, reason: str) -> LineError:
        shown = line[:_SHOWN].decode("utf-8", "backslashreplace")
        return LineError(f"line {self._line}, {shown!r}, is not a record: {reason}")


def _json_bytes(value: Any) -> bytes | None:
    """Encodes strings as UTF-8, null as no value (a tombstone), and everything else as JSON."""
    return None if value is None else value.encode() if type(value) is str else msgspec.json.encode(value)


def _bytes_of(text: str, form: LineForm) -> bytes:
    if form is not LineForm.HEX:
        return text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"--key {text} is invalid: it must be hex digits, two for each byte") from None


def _header_of(text: str) -> Header:
    name, found, value = text.partition("=")
    if not name or not found:
        raise ValueError(f"--header {text} is invalid: it must be NAME=TEXT")
    return name.encode(), value.encode("utf-8", "surrogateescape")
