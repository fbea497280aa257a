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
from itertools import islice
from pathlib import PurePath
from typing import Any, Final

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.filesystem import FileSystem

FILE_BYTES_MAX: Final = 100 << 20
"""About a million and a half partitions."""

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_HIGH_WATERMARK: Final = -1
_SHOWN: Final = 40
"""Characters of a value that an error shows."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_STRING_OR_OBJECT = re.compile(r'"(?:[^"\\]|\\.)*"|\{')
_FILE_KEYS: Final = ("version", "partitions")
_ROW_KEYS: Final = ("topic", "partition", "offset")


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
    offsets: dict[TopicPartition, Offset] = {}

    def read_object(pairs: list[tuple[str, Any]]) -> Any:
        """Checks an object when its end is read. The elements of the list end one after the other."""
        is_row = any(key in _ROW_KEYS for key, _ in pairs)
        number = len(offsets) + 1 if is_row else 0
        try:
            values = _checked(pairs, _ROW_KEYS if is_row else _FILE_KEYS)
            if not is_row:
                return values
            partition, offset = _row(values)
        except ValueError as error:
            raise _refusal(text, name, number, error) from None
        if partition in offsets:
            reason = f"partition {partition.partition} of topic {partition.topic} is repeated"
            raise _refusal(text, name, number, reason)
        offsets[partition] = offset
        return partition

    try:
        text = content.decode("utf-8")
        document = json.loads(text, object_pairs_hook=read_object, parse_int=_number)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        reason = f"byte {error.start} is {content[error.start]:#x}, which is not UTF-8"
        raise OffsetFileError(f"{name} line {line}: {reason}.") from None
    except json.JSONDecodeError as error:
        raise OffsetFileError(f"{name} line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise OffsetFileError(f"{name} is nested too deeply.") from None
    if fault := _fault(document):
        raise _refusal(text, name, 0, fault)
    return offsets


def _checked(pairs: list[tuple[str, Any]], allowed: tuple[str, ...]) -> dict[str, Any]:
    """Returns the values of an object by key. Errors: ValueError for an unknown or a repeated key."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key not in allowed:
            raise ValueError(f"the key {_shown(key)} is unknown: the keys are {', '.join(allowed)}")
        if key in values:
            raise ValueError(f'the key "{key}" is repeated')
        values[key] = value
    return values


def _row(values: dict[str, Any]) -> tuple[TopicPartition, Offset]:
    """Reads an element of the list. Errors: ValueError."""
    for key in _ROW_KEYS:
        if key not in values:
            raise ValueError(f'the key "{key}" is missing')
    topic = values["topic"]
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        allowed = "it must be a string of 1 to 249 letters, digits, dots, underscores and minus signs"
        raise ValueError(f'"topic" is {_shown(topic)}: {allowed}')
    partition = _integer("partition", values["partition"], 0, _INT32_MAX)
    return TopicPartition(topic, partition), _integer("offset", values["offset"], _HIGH_WATERMARK, _INT64_MAX)


def _fault(document: Any) -> str | None:
    """Returns why a document whose objects are valid is not a file of offsets."""
    if not isinstance(document, dict) or "partitions" not in document:
        return 'it must be an object with the key "partitions"'
    version, rows = document.get("version", 1), document["partitions"]
    if type(version) is not int or version != 1:
        return f'"version" is {_shown(version)}: only 1 is supported'
    if not isinstance(rows, list):
        return f'"partitions" is {_shown(rows)}: it must be a list'
    wrong = [row for row in rows if not isinstance(row, TopicPartition)]
    return (
        f"the list contains {_shown(wrong[0])}: it must contain objects with {', '.join(_ROW_KEYS)}" if wrong else None
    )


def _number(text: str) -> int | float:
    """Reads digits. Too large numbers become floats, which no key accepts: long ones are slow to read."""
    return int(text) if len(text) <= len(str(_INT64_MAX)) + 1 else float(text)


def _integer(key: str, value: Any, low: int, high: int) -> int:
    """Returns the number. Errors: ValueError for anything but a whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f'"{key}" is {_shown(value)}: it must be a whole number from {low} to {high}')
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refusal(text: str, name: str, number: int, reason: object) -> OffsetFileError:
    """Returns the error for an element of the list, counted from 1 on, or for the whole file (0)."""
    objects = (match.start() for match in _STRING_OR_OBJECT.finditer(text) if match[0] == "{")
    line = text.count("\n", 0, next(islice(objects, number, None), 0)) + 1
    where = f", partition {number} of the list" if number else ""
    return OffsetFileError(f"{name} line {line}{where}: {reason}.")
