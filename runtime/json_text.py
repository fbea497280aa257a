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
    """Returns the value of a JSON text. Errors: ValueError if it is not JSON, or not of type `kind`.

    msgspec alone also raises UnicodeDecodeError, which doesn't name the place, and RecursionError.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
