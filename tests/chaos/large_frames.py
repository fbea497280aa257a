"""Requests with very many rows, built from the declarations of the messages, for any API and version."""

from __future__ import annotations

import itertools
from typing import Any

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.constructs import AnyConstruct, Blob, CountedArray, Entity, Text, fixed_format
from lowtide.protocol.headers import request_header
from lowtide.protocol.schema import wire_form

CORRELATION_ID = 7


class LargeFrames:
    """Builds requests with about `rows` rows.

    `deep` puts the rows into the innermost arrays; otherwise each outer row has one inner row.
    `names`: the values of strings, used in turn.
    """

    def __init__(self, rows: int, *, deep: bool, names: list[str]) -> None:
        self._rows = rows
        self._deep = deep
        self._names = itertools.cycle(names)
        self._numbers = itertools.count()

    def frame(self, key: ApiKey, version: int) -> bytes | None:
        """Returns a whole frame, its size before it; None if the request has no array."""
        entity = wire_form(API[key].request, version)
        if not any(isinstance(content, CountedArray) for _, content in entity.fields):
            return None
        message = self._struct(entity, self._rows)
        body = codec_for(API[key].request, version).encode(message)
        return framed(key, version, body)

    def _struct(self, entity: Entity, rows: int) -> Any:
        arrays = [name for name, content in entity.fields if isinstance(content, CountedArray)]
        values = {
            name: self._value(name, content, rows if name == arrays[:1][0] else 1)
            if isinstance(content, CountedArray)
            else self._value(name, content, 0)
            for name, content in entity.fields
        }
        return entity.make(**values)

    def _value(self, name: str, content: AnyConstruct, rows: int) -> Any:
        if isinstance(content, CountedArray):
            return self._array(name, content, rows)
        if isinstance(content, Text):
            return next(self._names)
        if isinstance(content, Blob):
            return b""
        if isinstance(content, Entity):
            return self._struct(content, 1)
        form = fixed_format(content)
        assert form is not None
        if form.endswith("s"):
            return bytes(int(form[:-1]))
        if form == "?":
            return False
        if name in _NUMBERED:
            return next(self._numbers)
        return _NUMBERS.get(name, 1)

    def _array(self, name: str, array: CountedArray, rows: int) -> list[Any]:
        element = array.element
        nested = isinstance(element, Entity) and any(isinstance(content, CountedArray) for _, content in element.fields)
        if nested:
            assert isinstance(element, Entity)
            return (
                [self._struct(element, rows)]
                if self._deep
                else [self._struct(element, 1) for _ in range(max(1, rows // 2))]
            )
        if isinstance(element, Entity):
            return [self._struct(element, 1) for _ in range(rows)]
        if not isinstance(element, Text | Blob) and fixed_format(element) != "b":
            return [next(self._numbers) for _ in range(rows)]
        return [self._value(name, element, 0) for _ in range(rows)]


_NUMBERED = frozenset({"partition_index", "index", "partition"})
_NUMBERS = {
    "resource_type": 2,
    "session_epoch": 0,
    "session_id": 0,
    "max_wait_ms": 0,
    "min_bytes": 0,
    "replica_id": -1,
    "timeout_ms": 5000,
    "current_leader_epoch": -1,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "member_epoch": -1,
}


def framed(key: ApiKey, version: int, body: bytes) -> bytes:
    """Returns a request with its header and size."""
    request = request_header(key, version, CORRELATION_ID, "large") + body
    return len(request).to_bytes(4, "big") + request
