r"""Keys, values and headers of records as people and programs want them.

As text, what isn't UTF-8 or isn't printable is an escape, so that nothing in a record acts upon a terminal:

    >>> shown(b"caf\xc3\xa9 \x1b[31m\xff", Form.TEXT)
    'café \\x1b[31m\\xff'
    >>> shown(b"\x00\x01", Form.HEX), shown(None, Form.TEXT)
    ('0001', None)
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from lowtide.cli.printing import printable
from lowtide.protocol.records import Record


class Form(StrEnum):
    """How bytes are written."""

    TEXT = "text"
    HEX = "hex"
    JSON = "json"
    """What is JSON stands as such in JSON output; what isn't is a text."""


def shown(content: bytes | None, form: Form) -> str | None:
    """Bytes as a text for people; None stays None."""
    if content is None:
        return None
    if form is Form.HEX:
        return content.hex()
    return printable(content.decode("utf-8", "backslashreplace"))


def as_value(content: bytes | None, form: Form) -> Any:
    """Bytes as a value for programs: a text that isn't escaped but for bytes that are no UTF-8, or hex digits, or JSON."""
    if content is None:
        return None
    if form is Form.HEX:
        return content.hex()
    if form is Form.JSON:
        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError:
            pass
    return content.decode("utf-8", "backslashreplace")


def record_value(record: Record, form: Form) -> dict[str, Any]:
    """A record for programs."""
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
    """Key, value and headers of a record for people, in one line."""
    parts = [f"key {_quoted(record.key, form)}", f"value {_quoted(record.value, form)}"]
    parts += [
        f"header {printable(name.decode('utf-8', 'backslashreplace'))}={_quoted(value, form)}"
        for name, value in record.headers
    ]
    return "  ".join(parts)


def _quoted(content: bytes | None, form: Form) -> str:
    text = shown(content, form)
    return "null" if text is None else text if form is Form.HEX and text else f"'{text}'"
