r"""Formats keys, values and headers of records for people and for JSON.

In text, bytes that are not UTF-8 or not printable become escapes, so that a record can't control the terminal:

    >>> shown(b"caf\xc3\xa9 \x1b[31m\xff", Form.TEXT)
    'café \\x1b[31m\\xff'
    >>> shown(b"\x00\x01", Form.HEX), shown(None, Form.TEXT)
    ('0001', None)
"""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import Any

from lowtide.cli.printing import printable
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.records import Record
from lowtide.runtime.json_text import decode_json


class Form(StrEnum):
    """The format of bytes."""

    TEXT = "text"
    HEX = "hex"
    JSON = "json"
    """JSON output contains JSON values as such; other values are texts."""


def shown(content: bytes | None, form: Form) -> str | None:
    """Formats bytes for people; None stays None."""
    if content is None:
        return None
    if form is Form.HEX:
        return content.hex()
    return printable(content.decode("utf-8", "backslashreplace"))


def as_value(content: bytes | None, form: Form) -> Any:
    """Formats bytes for JSON: as text (with escapes for invalid UTF-8), as hex digits, or as JSON."""
    if content is None:
        return None
    if form is Form.HEX:
        return content.hex()
    if form is Form.JSON:
        with contextlib.suppress(ValueError):
            return decode_json(content)
    return content.decode("utf-8", "backslashreplace")


def record_value(record: Record, form: Form) -> dict[str, Any]:
    """Returns a record for JSON."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": as_value(record.key, form),
        "value": as_value(record.value, form),
        "headers": [
            {"name": name.decode("utf-8", "backslashreplace"), "value": as_value(value, form)}
            for name, value in record.headers
        ],
    }


def record_text(record: Record, form: Form) -> str:
    """Formats key, value and headers of a record in one line."""
    parts = [f"key {_quoted(record.key, form)}", f"value {_quoted(record.value, form)}"]
    parts += [
        f"header {printable(name.decode('utf-8', 'backslashreplace'))}={_quoted(value, form)}"
        for name, value in record.headers
    ]
    return "  ".join(parts)


def marker_name(marker: ControlRecord | None) -> str | None:
    """Returns how a marker ends its transaction; None for other control records."""
    return None if marker is None else "commit" if marker.type is ControlRecordType.COMMIT else "abort"


def _quoted(content: bytes | None, form: Form) -> str:
    text = shown(content, form)
    return "null" if text is None else text if form is Form.HEX and text else f"'{text}'"
