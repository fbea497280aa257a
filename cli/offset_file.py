"""Reads the JSON file of offsets of Kafka's `kafka-delete-records`.

    {"version": 1, "partitions": [{"topic": "flights", "partition": 0, "offset": 1200}]}

`version` is optional. An offset is the first one that stays; -1 stands for the high watermark.

A damaged or mistyped file must not delete anything. It is read completely first, and refused with the line, the key and
the reason. Likely typing errors that Kafka's tool accepts are refused too: unknown keys, repeated keys, offsets below
-1, text after the end. Only the offsets are kept in memory, so files may have many megabytes.

    >>> parse_offset_file(b'{"partitions": [{"topic": "t", "partition": 1, "offset": 7}]}', "f.json")
    {TopicPartition(topic='t', partition=1): 7}
    >>> text = b'{"partitions": [{"topic": "t", "partition": 1, "offset": 7.5}]}'
    >>> parse_offset_file(text, "f.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lowtide.cli.offset_file.OffsetFileError: f.json line 1, partition 1 of the list: "offset" is 7.5: it must...

Source: Kafka's `DeleteRecordsCommand`, KIP-107.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import Final, NoReturn

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.filesystem import FileSystem

FILE_BYTES_MAX: Final = 100 << 20
"""About a million and a half partitions."""

_VERSION: Final = 1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_HIGH_WATERMARK: Final = -1
_SHOWN: Final = 40
"""Characters of a value that an error shows."""

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"')
_SCALAR = re.compile(r"[^\s,\[\]{}\":]+")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_KINDS: Final = {'"': "a string", "{": "an object", "[": "a list", "": "the end of the file"}


class OffsetFileError(ValueError):
    """An invalid file; the text names the file, the line, the key and the reason."""


def read_offset_file(path: str, files: FileSystem) -> dict[TopicPartition, Offset]:
    """Reads a file. Errors: OffsetFileError, also for an unreadable or too large file."""
    try:
        size = files.file_size(path)
        if size > FILE_BYTES_MAX:
            raise OffsetFileError(f"{path} has {size} bytes: a file of offsets has at most {FILE_BYTES_MAX}.")
        content = files.read_bytes(path)
    except OSError as error:
        raise OffsetFileError(f"{path} can't be read: {error.strerror}.") from error
    return parse_offset_file(content, PurePath(path).name)


def parse_offset_file(content: bytes, name: str) -> dict[TopicPartition, Offset]:
    """Returns the offsets in a file, in its order. Errors have its `name`. Errors: OffsetFileError."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise OffsetFileError(
            f"{name} line {line}: byte {error.start} is {content[error.start]:#x}, which is not UTF-8."
        ) from None
    if text.startswith("\ufeff"):
        raise OffsetFileError(
            f"{name} line 1: the file begins with a byte order mark (EF BB BF), which is not valid in JSON."
        )
    if not text.strip():
        raise OffsetFileError(f'{name} is empty: it must have an object with the key "partitions".')
    return _OffsetFileReader(text, name).document()


class _OffsetFileReader:
    """Reads the text once, from left to right."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._at = 0
        self._offsets: dict[TopicPartition, Offset] = {}
        self._number = 0
        """The number of the present partition, from 1 on; 0 outside of the list."""

    def document(self) -> dict[TopicPartition, Offset]:
        """Reads the file."""
        start, seen = self._next(), set[str]()
        if not self._take("{"):
            self._refuse(start, f"an object {{…}} is expected, not {self._found()}")
        while (key := self._key(seen, ("version", "partitions"))) is not None:
            if key == "version":
                self._version()
            else:
                self._partitions()
        if "partitions" not in seen:
            self._refuse(start, 'the key "partitions" is missing')
        end = self._next()
        if end < len(self._text):
            self._refuse(end, f"after the end of the object there is {self._found()}")
        return self._offsets

    def _version(self) -> None:
        place = self._next()
        version = self._integer("version", 0, _INT32_MAX)
        if version != _VERSION:
            self._refuse(place, f'"version" is {version}: only {_VERSION} is supported')

    def _partitions(self) -> None:
        place = self._next()
        if not self._take("["):
            self._refuse(place, f'"partitions" is {self._found()}: it must be a list')
        if self._take("]"):
            return
        while True:
            self._number += 1
            self._partition()
            if self._take("]"):
                self._number = 0
                return
            self._comma("]")

    def _partition(self) -> None:
        start, seen = self._next(), set[str]()
        values: dict[str, str | int] = {}
        if not self._take("{"):
            self._refuse(start, f"an object {{…}} is expected, not {self._found()}")
        while (key := self._key(seen, ("topic", "partition", "offset"))) is not None:
            if key == "topic":
                values[key] = self._topic()
            elif key == "partition":
                values[key] = self._integer(key, 0, _INT32_MAX)
            else:
                values[key] = self._integer(key, _HIGH_WATERMARK, _INT64_MAX)
        for key in ("topic", "partition", "offset"):
            if key not in values:
                self._refuse(start, f'the key "{key}" is missing')
        partition = TopicPartition(str(values["topic"]), int(values["partition"]))
        if partition in self._offsets:
            self._refuse(start, f"partition {partition.partition} of topic {partition.topic} is repeated")
        self._offsets[partition] = int(values["offset"])

    def _topic(self) -> str:
        place = self._next()
        if self._text[place : place + 1] != '"':
            self._refuse(place, f'"topic" is {self._found()}: it must be a string')
        topic = self._string("topic")
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            self._refuse(
                place,
                f'"topic" is {_short(json.dumps(topic))}: it must have 1 to 249 letters, digits, dots, underscores '
                "and minus signs",
            )
        return topic

    def _key(self, seen: set[str], allowed: tuple[str, ...]) -> str | None:
        """Reads the next key of an object and its colon; returns None at its end."""
        if self._take("}"):
            return None
        if seen:
            self._comma("}")
        place = self._next()
        if self._text[place : place + 1] != '"':
            self._refuse(place, f"a key is expected, not {self._found()}")
        key = self._string("a key")
        if key not in allowed:
            self._refuse(place, f"the key {_short(json.dumps(key))} is unknown: the keys are {', '.join(allowed)}")
        if key in seen:
            self._refuse(place, f'the key "{key}" is repeated')
        seen.add(key)
        if not self._take(":"):
            self._refuse(self._at, f'":" is expected after "{key}", not {self._found()}')
        return key

    def _comma(self, end: str) -> None:
        if not self._take(","):
            self._refuse(self._at, f'"," or "{end}" is expected, not {self._found()}')

    def _string(self, what: str) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            self._refuse(self._at, f"the string of {what} has no end, or contains a line break")
        if "\\" not in match[1]:
            self._at = match.end()
            return match[1]
        try:
            text = str(json.loads(match[0]))
        except ValueError:
            self._refuse(self._at, f"the string of {what} has an invalid escape")
        self._at = match.end()
        return text

    def _integer(self, key: str, low: int, high: int) -> int:
        place = self._next()
        match = _SCALAR.match(self._text, place)
        word = "" if match is None else match[0]
        whole = _INTEGER.fullmatch(word) is not None and len(word) <= len(str(_INT64_MAX)) + 1
        if match is None or not whole or not low <= int(word) <= high:
            self._refuse(
                place,
                f'"{key}" is {_short(word) if word else self._found()}: it must be a whole number from {low} to {high}',
            )
        self._at = match.end()
        return int(word)

    def _next(self) -> int:
        """Skips white space; returns the next position."""
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._at

    def _take(self, character: str) -> bool:
        """Skips a character if it is next; returns whether it was."""
        found = self._text[self._next() : self._at + 1] == character
        self._at += found
        return found

    def _found(self) -> str:
        """Describes what is at the present position."""
        character = self._text[self._at : self._at + 1]
        if character in _KINDS:
            return _KINDS[character]
        match = _SCALAR.match(self._text, self._at)
        return _short(match[0]) if match is not None else f'"{character}"'

    def _refuse(self, place: int, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, place) + 1
        where = f", partition {self._number} of the list" if self._number else ""
        raise OffsetFileError(f"{self._name} line {line}{where}: {reason}.")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
