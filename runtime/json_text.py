"""Reads JSON that others wrote."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

Value = TypeVar("Value")


@overload
def decode_json(content: bytes | str) -> Any: ...
@overload
def decode_json(content: bytes | str, kind: type[Value]) -> Value: ...
def decode_json(content: bytes | str, kind: Any = Any) -> Any:
    """Returns a JSON text's value, of type `kind`. Errors: ValueError if it is anything else.

    msgspec also raises UnicodeDecodeError, without the place, and RecursionError.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
