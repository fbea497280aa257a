"""Values that begin with the id of a schema are read by it; what can't be read has a reason."""

from __future__ import annotations

import io
import json
import os
from importlib.util import find_spec
from typing import Any

import pytest

from lowtide.admin.schemas.framing import NotPreparedError
from lowtide.admin.schemas.values import FAULT_MS, UNKNOWN_MAX, SchemaValues

from .registry_server import SchemaRegistry

_HAS_ALL = all(find_spec(name) is not None for name in ("fastavro", "grpc_tools")) or bool(os.environ.get("CI"))
needs_packages = pytest.mark.skipif(not _HAS_ALL, reason="the packages of the extra `table` are missing")

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes"},
    ],
}
PROTO = 'syntax = "proto3"; message First { int32 a = 1; } message Flight { string carrier = 1; int32 delay = 2; }'
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "children", "type": {"type": "array", "items": "Tree"}}]}
ENDLESS = {"type": "record", "name": "E", "fields": [{"name": "nothing", "type": {"type": "array", "items": "null"}}]}


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


def values_of(registry: SchemaRegistry, clock: Clock | None = None) -> SchemaValues:
    clock = clock or Clock()
    values = SchemaValues((("url", registry.url),), clock)
    values._registry._wait = lambda _: None
    return values


def framed(schema_id: int, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + content


def avro(schema: Any, value: Any) -> bytes:
    import fastavro

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def read(values: SchemaValues, value: bytes) -> Any:
    with pytest.raises(NotPreparedError):
        values.decoded(value)
    values.prepare(value)
    found = values.decoded(value)
    assert found is not None
    return found


def reason(values: SchemaValues, value: bytes) -> str:
    try:
        values.decoded(value)
    except NotPreparedError:
        values.prepare(value)
    except ValueError as error:
        return str(error)
    with pytest.raises(ValueError, match=".+") as caught:
        values.decoded(value)
    return str(caught.value)


@needs_packages
def test_avro_is_read(registry: SchemaRegistry):
    number = registry.register("s", FLIGHT)
    row = {"carrier": "UA", "delay": None, "at": 1000, "raw": b"\xff"}
    found = read(values_of(registry), framed(number, avro(FLIGHT, row)))
    assert (found.schema_id, found.kind) == (number, "Avro")
    assert found.value == {"carrier": "UA", "delay": None, "at": "1970-01-01T00:00:01+00:00", "raw": "/w=="}


@needs_packages
def test_avro_with_a_reference_is_read(registry: SchemaRegistry):
    registry.register("flight", FLIGHT)
    pair = {"type": "record", "name": "Trip", "fields": [{"name": "out", "type": "Flight"}]}
    number = registry.register("trip", pair, references=[("Flight", "flight", 1)])
    whole = {"type": "record", "name": "Trip", "fields": [{"name": "out", "type": FLIGHT}]}
    row = {"out": {"carrier": "UA", "delay": 3, "at": 0, "raw": b""}}
    assert read(values_of(registry), framed(number, avro(whole, row))).value["out"]["delay"] == 3


@needs_packages
def test_protobuf_is_read_by_its_indexes(registry: SchemaRegistry):
    number = registry.register("s", PROTO, "PROTOBUF")
    values = values_of(registry)
    found = read(values, framed(number, b"\x02\x02" + b"\x0a\x02UA\x10\x07"))
    assert (found.kind, found.value) == ("Protobuf", {"carrier": "UA", "delay": 7})
    assert read(values, framed(number, b"\0" + b"\x08\x05")).value == {"a": 5}
    assert "has no message of the indexes [7]" in reason(values, framed(number, b"\x02\x0e"))
    assert "is not Protobuf" in reason(values, framed(number, b"\0\xff"))


def test_json_is_read(registry: SchemaRegistry):
    number = registry.register("s", '{"type": "object"}', "JSON")
    values = values_of(registry)
    found = read(values, framed(number, b'{"a": 1}'))
    assert (found.kind, found.value) == ("JSON Schema", {"a": 1})
    assert "is not JSON Schema of its schema" in reason(values, framed(number, b"{"))


def test_other_values_are_no_values_of_a_schema(registry: SchemaRegistry):
    values = values_of(registry)
    assert [values.decoded(each) for each in (b"", b"\0\0", b'{"a": 1}', b"\x01\0\0\0\1x")] == [None] * 4
    assert registry.requests == []


@needs_packages
@pytest.mark.parametrize(
    ("schema", "content", "said"),
    [
        (FLIGHT, b"", "is not Avro of its schema"),
        (FLIGHT, b"\x04UA\0\0\0extra", "5 bytes follow the last field"),
        (ENDLESS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "an array of items without bytes, which could be endless"),
        (TREE, b"\x02" * 10_000 + b"\0" * 10_001, "its schema is recursive"),
        ({"type": "record", "name": "X", "fields": [{"name": "a", "type": "Missing"}]}, b"", "fastavro refuses it"),
    ],
)
def test_what_is_not_of_its_schema_has_a_reason(registry: SchemaRegistry, schema: Any, content: bytes, said: str):
    number = registry.register("s", schema)
    assert said in reason(values_of(registry), framed(number, content))


@needs_packages
def test_a_recursive_schema_is_read(registry: SchemaRegistry):
    number = registry.register("s", TREE)
    row = {"children": [{"children": []}, {"children": [{"children": []}]}]}
    assert read(values_of(registry), framed(number, avro(TREE, row))).value == row


def test_an_unknown_id_has_a_reason_and_many_are_not_asked_for(registry: SchemaRegistry):
    values = values_of(registry)
    assert reason(values, framed(77, b"x")) == "the schema registry does not know the schema 77"
    for number in range(1000, 1000 + UNKNOWN_MAX):
        reason(values, framed(number, b"x"))
    asked = len(registry.requests)
    assert "the values may have no schemas" in reason(values, framed(5000, b"x"))
    assert len(registry.requests) == asked


def test_a_registry_that_is_away_is_not_asked_for_each_value(registry: SchemaRegistry):
    clock = Clock()
    values = values_of(registry, clock)
    registry.answers = [None] * 50
    assert reason(values, framed(1, b"{}")).startswith("the schema registry does not answer: http://127.0.0.1:")
    asked = len(registry.requests)
    assert "does not answer" in reason(values, framed(2, b"{}"))
    assert len(registry.requests) == asked
    registry.answers = []
    number = registry.register("s", "{}", "JSON")
    clock.now_ms += FAULT_MS
    assert read(values, framed(number, json.dumps({"back": True}).encode())).value == {"back": True}
