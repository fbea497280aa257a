"""Messages of Protobuf become the columns that their files declare; what does not fit is a dead letter."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import json_format

from lowtide.admin.schemas.framing import message_head
from lowtide.admin.schemas.protobuf_files import compiled, message_class
from tests.examples import one_in

from .record_batches import GrowingTable, value_types

HEADER = 'syntax = "proto3"; '


class Writers:
    """Writes messages with schemas of a registry, and reads them into a table."""

    def __init__(self, registry, columns=()):
        self.registry = registry
        self.table = GrowingTable("protobuf", columns, (("url", registry.url),))

    def value(self, text, content, indexes=(0,), references=(), texts=()):
        number = self.registry.register("s", text, "PROTOBUF", references)
        message = json_format.ParseDict(content, message_class(text, dict(texts), indexes)())
        return b"\0" + number.to_bytes(4, "big") + head(indexes) + message.SerializeToString()

    def read(self, *values):
        return self.table.values(*values)

    def round_trip(self, declaration, content):
        """Returns the value of the field `a` as it is read, and the column's type."""
        imports = "".join(
            f'import "google/protobuf/{one}.proto"; '
            for one in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
        )
        rows, dead = self.read(self.value(f"{HEADER}{imports} message M {{ {declaration} }}", content))
        assert not dead
        return rows[0].get("a"), value_types(self.table.schema).get("a")


def head(indexes):
    if indexes == (0,):
        return b"\0"
    return bytes([2 * len(indexes), *(2 * one for one in indexes)])


@pytest.fixture
def writers(registry):
    return Writers(registry)


INNER = "message I { int32 x = 1; string y = 2; } "


@pytest.mark.parametrize(
    ("declaration", "content", "read", "column"),
    one_in(3, [
        *[(f"{kind} a = 1;", {"a": -7}, -7, "int32") for kind in ("int32", "sint32", "sfixed32")],
        *[(f"{kind} a = 1;", {"a": -(2**62)}, -(2**62), "int64") for kind in ("int64", "sint64", "sfixed64")],
        *[(f"{kind} a = 1;", {"a": 2**32 - 1}, 2**32 - 1, "int64") for kind in ("uint32", "fixed32")],
        *[(f"{kind} a = 1;", {"a": 2**64 - 1}, Decimal(2**64 - 1), "decimal128(20, 0)")
          for kind in ("uint64", "fixed64")],
        ("bool a = 1;", {"a": True}, True, "bool"),
        ("float a = 1;", {"a": 1.5}, 1.5, "float"),
        ("double a = 1;", {"a": 0.1}, 0.1, "double"),
        ("string a = 1;", {"a": "ä"}, "ä", "string"),
        ("bytes a = 1;", {"a": "/w=="}, b"\xff", "binary"),
        ("int32 a = 1;", {}, 0, "int32"),
        ("string a = 1;", {}, "", "string"),
        ("optional int32 a = 1;", {}, None, "int32"),
        ("optional int32 a = 1;", {"a": 0}, 0, "int32"),
        ("oneof c { int32 a = 1; string b = 2; }", {"b": "x"}, None, "int32"),
        ("oneof c { int32 a = 1; string b = 2; }", {"a": 0}, 0, "int32"),
        ("enum E { NO = 0; YES = 1; } E a = 1;", {"a": "YES"}, "YES", "string"),
        ("enum E { NO = 0; YES = 1; } E a = 1;", {"a": 9}, "9", "string"),
        ("enum E { NO = 0; YES = 1; } repeated E a = 1;", {"a": ["YES", 0]}, ["YES", "NO"], "list<element: string>"),
        ("repeated int32 a = 1;", {"a": [1, 2]}, [1, 2], "list<element: int32>"),
        ("repeated int32 a = 1;", {}, [], "list<element: int32>"),
        (INNER + "I a = 1;", {"a": {"x": 1, "y": "z"}}, {"x": 1, "y": "z"}, "struct<x: int32, y: string>"),
        (INNER + "I a = 1;", {"a": {}}, {"x": 0, "y": ""}, "struct<x: int32, y: string>"),
        (INNER + "I a = 1;", {}, None, "struct<x: int32, y: string>"),
        (INNER + "repeated I a = 1;", {"a": [{"x": 1}, {}]}, [{"x": 1, "y": ""}, {"x": 0, "y": ""}],
         "list<element: struct<x: int32, y: string>>"),
        ("map<string, int64> a = 1;", {"a": {"k": 5}}, [("k", 5)], "map<string, int64>"),
        (INNER + "map<int32, I> a = 1;", {"a": {7: {"x": 1}}}, [(7, {"x": 1, "y": ""})],
         "map<int32, struct<x: int32, y: string>>"),
        ("google.protobuf.Timestamp a = 1;", {"a": "2013-01-01T12:30:15.123456789Z"},
         datetime(2013, 1, 1, 12, 30, 15, 123456, tzinfo=UTC), "timestamp[us, tz=UTC]"),
        ("google.protobuf.Timestamp a = 1;", {}, None, "timestamp[us, tz=UTC]"),
        ("google.protobuf.Duration a = 1;", {"a": "1.5s"}, {"seconds": 1, "nanos": 500_000_000},
         "struct<seconds: int64, nanos: int32>"),
        ("google.protobuf.Int32Value a = 1;", {"a": 0}, 0, "int32"),
        ("google.protobuf.Int32Value a = 1;", {}, None, "int32"),
        ("google.protobuf.UInt64Value a = 1;", {"a": 5}, Decimal(5), "decimal128(20, 0)"),
        ("repeated google.protobuf.StringValue a = 1;", {"a": ["x", ""]}, ["x", ""], "list<element: string>"),
        ("google.protobuf.Struct a = 1;", {"a": {"k": [1, None]}}, '{"k": [1.0, null]}', "string"),
        ("google.protobuf.FieldMask a = 1;", {"a": "b,c"}, {"paths": ["b", "c"]},
         "struct<paths: list<element: string>>"),
        ("google.protobuf.Empty a = 1; int32 b = 2;", {"a": {}}, None, None),
        ("repeated google.protobuf.Empty a = 1; int32 b = 2;", {"a": [{}]}, None, None),
    ]),
)  # fmt: skip
def test_types(writers, declaration, content, read, column):
    assert writers.round_trip(declaration, content) == (read, column)


def test_absent_messages_among_others(writers):
    text = (
        HEADER
        + "message M { message I { optional int32 x = 1; J j = 2; } message J { repeated int32 y = 1; } I a = 1; }"
    )
    contents = [{}, {"a": {"x": 1}}, {"a": {"j": {"y": [1, 2]}}}, {}, {"a": {"j": {}}}]
    rows, dead = writers.read(*[writers.value(text, one) for one in contents])
    assert not dead
    assert [row["a"] for row in rows.values()] == [
        None, {"x": 1, "j": None}, {"x": None, "j": {"y": [1, 2]}}, None, {"x": None, "j": {"y": []}},
    ]  # fmt: skip


def test_presence_in_proto2(writers):
    text = 'syntax = "proto2"; message M { optional int32 a = 1 [default = 5]; required int32 b = 2; }'
    rows, _ = writers.read(writers.value(text, {"b": 0}), writers.value(text, {"a": 6, "b": 1}))
    assert rows == {0: {"a": None, "b": 0}, 1: {"a": 6, "b": 1}}


def test_a_message_is_found_by_its_indexes(writers):
    text = HEADER + "package p.q; message A { int32 a = 1; } message B { message C { string c = 1; } }"
    rows, dead = writers.read(
        writers.value(text, {"c": "x"}, (1, 0)), writers.value(text, {"a": 1}), writers.value(text, {"c": "y"}, (1, 0))
    )
    assert not dead
    assert rows == {0: {"a": None, "c": "x"}, 1: {"a": 1, "c": None}, 2: {"a": None, "c": "y"}}
    number = int.from_bytes(writers.value(text, {"a": 1})[1:5], "big")
    _, dead = writers.read(b"\0" + number.to_bytes(4, "big") + head((1, 5)))
    assert dead == {0: f"the schema {number} can't be used: it has no message of the indexes [1, 5]"}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"\0\0\0\1\2\0rest", ((258, 0), 6)),
        (b"\0\0\0\0\7\x02\x00rest", ((7, 0), 7)),
        (b"\0\0\0\0\7\x04\x02\x06rest", ((7, 1, 3), 8)),
        (b"\0\0\0\0\7\x02\x80\x02rest", ((7, 128), 8)),
        (b"\0\0\0\0\7", None),
        (b"\0\0\0\0\7\x01\x00", None),
        (b"\0\0\0\0\7\x02\x01", None),
        (b"\0\0\0\0\7\x04\x02", None),
        (b"\0\0\0\0\7\x80\x80\x80\x80\x80\x80\x80\x80\x01", None),
        (b"\0\0\0\0\7\xfe\xff\x03" + b"\0" * 100, None),
    ],
)
def test_indexes(value, found):
    if found is None:
        with pytest.raises(ValueError, match="no valid indexes"):
            message_head(value)
    else:
        assert message_head(value) == found


def test_imports(writers):
    money = HEADER + 'package m; import "code.proto"; message Money { Code code = 1; int64 n = 2; }'
    code = HEADER + "package m; enum Code { NONE = 0; EUR = 1; }"
    main = (
        HEADER + 'import "x/money.proto"; import "confluent/meta.proto"; '
        'message M { m.Money a = 1 [(confluent.field_meta).doc = "d"]; }'
    )
    writers.registry.register("code", code, "PROTOBUF")
    writers.registry.register("money", money, "PROTOBUF", [("code.proto", "code", 1)])
    rows, dead = writers.read(
        writers.value(
            main, {"a": {"code": "EUR", "n": 1}}, references=[("x/money.proto", "money", 1)],
            texts={"x/money.proto": money, "code.proto": code},
        )
    )  # fmt: skip
    assert not dead
    assert rows[0] == {"a": {"code": "EUR", "n": 1}}


def serialized(text, name, texts=()):
    found = compiled(text, dict(texts))[-1]
    found.name = name
    return base64.b64encode(found.SerializeToString()).decode()


@pytest.mark.parametrize("is_text", [(), ("code.proto",), ("code.proto", "money.proto")])
def test_files_that_were_registered_in_base64(writers, is_text):
    stamp = 'import "google/protobuf/timestamp.proto"; '
    texts = {"code.proto": HEADER + stamp + "package m; enum Code { NONE = 0; EUR = 1; }"}
    texts["money.proto"] = HEADER + 'package m; import "code.proto"; message Money { Code code = 1; }'
    main = HEADER + stamp + 'import "money.proto"; message M { m.Money a = 1; google.protobuf.Timestamp t = 2; }'
    kept = {name: one if name in is_text else serialized(one, name, texts) for name, one in texts.items()}
    writers.registry.register("code", kept["code.proto"], "PROTOBUF")
    writers.registry.register("money", kept["money.proto"], "PROTOBUF", [("code.proto", "code", 1)])
    number = writers.registry.register(
        "s", serialized(main, "main.proto", texts), "PROTOBUF", [("money.proto", "money", 1)]
    )
    rows, dead = writers.read(b"\0" + number.to_bytes(4, "big") + b"\0" + b"\x0a\x02\x08\x01")
    assert not dead
    assert rows == {0: {"a": {"code": "EUR"}, "t": None}}


def test_files_in_base64_that_import_each_other(writers):
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    texts = [
        base64.b64encode(FileDescriptorProto(name=name, dependency=[other]).SerializeToString()).decode()
        for name, other in (("main.proto", "a.proto"), ("a.proto", "b.proto"), ("b.proto", "a.proto"))
    ]
    writers.registry.register("b", texts[2], "PROTOBUF")
    writers.registry.register("a", texts[1], "PROTOBUF", [("b.proto", "b", 1)])
    number = writers.registry.register("s", texts[0], "PROTOBUF", [("a.proto", "a", 1)])
    _, dead = writers.read(b"\0" + number.to_bytes(4, "big") + b"\0")
    assert dead == {0: f"the schema {number} can't be used: the file 'a.proto' imports itself"}


def test_new_schemas_of_writers_add_columns(writers):
    first = HEADER + "message M { optional int32 a = 1; }"
    second = HEADER + "message M { optional int32 a = 1; message S { string x = 1; } S s = 2; }"
    writers.read(writers.value(first, {"a": 1}))
    rows, dead = writers.read(writers.value(second, {"s": {"x": "y"}}), None, writers.value(first, {"a": 1}))
    assert not dead
    assert rows == {0: {"a": None, "s": {"x": "y"}}, 1: {"a": None, "s": None}, 2: {"a": 1, "s": None}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message M { X x = 1; }", 'protoc refuses it: line 1:32: "X" is not defined.'),
        ("message M { int32 x = 1; M m = 2; }", "the message M contains itself"),
        ("message M { map<string, M> m = 2; }", "the message M contains itself"),
        ('import "not/there.proto"; message M { int32 x = 1; }', "protoc refuses it: not/there.proto: File not found"),
        ("enum E { A = 0; }", "it has no message of the indexes [0]"),
        ("message M { int32 _pos = 1; }", "'_pos': the name is reserved by Iceberg"),
        ("message M { string good = 1; }", "'good': the type is string, and that of the column is int"),
        (
            "message M { " + "".join(f"int32 f{one} = {one + 1};" for one in range(1_001)) + "}",
            "more than 1000 columns",
        ),
    ],
)
def test_schemas_of_which_no_columns_can_be_made(registry, text, reason):
    writers = Writers(registry, [pa.field("good", pa.int32())])
    number = registry.register("s", HEADER + text, "PROTOBUF")
    good = writers.value(HEADER + "message M { int32 good = 1; }", {"good": 1})
    rows, dead = writers.read(b"\0" + number.to_bytes(4, "big") + b"\0", good)
    assert rows == {1: {"good": 1}}
    assert f"the schema {number}" in dead[0]
    assert reason in dead[0]


@pytest.mark.parametrize("name", ["../x.proto", "/etc/x.proto", "a/../../x.proto", "a\\x.proto", "a\nb", ""])
def test_a_reference_is_written_nowhere_else(writers, name):
    writers.registry.register("x", HEADER, "PROTOBUF")
    number = writers.registry.register("s", HEADER + "message M {}", "PROTOBUF", [(name, "x", 1)])
    _, dead = writers.read(b"\0" + number.to_bytes(4, "big") + b"\0")
    assert dead == {0: f"the schema {number} can't be used: it refers to a file with the name {name!r}"}


def test_values_that_are_not_of_their_schema(writers):
    text = (
        HEADER
        + 'import "google/protobuf/timestamp.proto"; message M { string a = 1; google.protobuf.Timestamp t = 2; }'
    )
    good = writers.value(text, {"a": "x"})
    begin = good[:6]
    late = begin + b"\x12\x0a\x08" + b"\xff" * 8 + b"\x7f"
    values = [good, good[:-1], begin + b"\x0a\x01\xff", late, good[:5], begin]
    rows, dead = writers.read(*values)
    assert rows == {0: {"a": "x", "t": None}, 5: {"a": "", "t": None}}
    assert "not Protobuf of its schema" in dead[1]
    assert "not Protobuf of its schema" in dead[2]
    assert "does not fit its column" in dead[3]
    assert "no valid indexes" in dead[4]


def test_json_of_a_registry_is_no_protobuf(writers):
    number = writers.registry.register("j", json.dumps({}), kind="JSON")
    _, dead = writers.read(b"\0" + number.to_bytes(4, "big") + b"\0{}")
    assert dead == {0: f"the schema {number} is of the type JSON, and not PROTOBUF"}
