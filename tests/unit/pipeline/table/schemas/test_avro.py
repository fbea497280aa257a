"""Avro values become the columns that their writers declare; what does not fit is a dead letter."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.admin.schemas.registry import RegistryError
from lowtide.pipeline.table.schemas import SchemaSettings, decoder_of
from tests.examples import examples
from tests.unit.admin.schemas.registry_server import schema_registry

from .record_batches import OFFSET, GrowingTable, batch_of, iceberg_schema, value_types


class Writers:
    """Writes values with fastavro, with schemas of a registry, and reads them into a table."""

    def __init__(self, registry, columns=()):
        self.registry = registry
        self.table = GrowingTable("avro", columns, (("url", registry.url),))

    def schema(self, *fields, references=(), **more):
        schema = {"type": "record", "name": "R", "fields": [field(*one) for one in fields], **more}
        return self.registry.register("s", schema, references=references), schema

    def value(self, schema, value):
        number, declared = schema
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(declared))), value)
        return b"\0" + number.to_bytes(4, "big") + stream.getvalue()

    def read(self, *values):
        return self.table.values(*values)

    def round_trip(self, kind, value, **more):
        """Returns a value of one field as it is read, and the column's type."""
        schema = self.schema(("a", kind), **more)
        rows, dead = self.read(self.value(schema, {"a": value}))
        assert not dead
        return rows[0].get("a"), value_types(self.table.schema).get("a")


def field(name, kind):
    return {"name": name, "type": kind}


@pytest.fixture
def writers(registry):
    return Writers(registry)


RECORD = {"type": "record", "name": "Inner", "namespace": "x.y", "fields": [field("b", "long"), field("c", "null")]}
NOW = datetime(2013, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
NUMBER = uuid.UUID("12345678-1234-5678-1234-567812345678")


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("kind", "value", "read", "column"),
    [
        ("boolean", True, True, "bool"),
        ("int", -7, -7, "int32"),
        ("long", 2**62, 2**62, "int64"),
        ("float", 1.5, 1.5, "float"),
        ("double", 0.1, 0.1, "double"),
        ("string", "ä", "ä", "string"),
        ("bytes", b"\xff", b"\xff", "binary"),
        (RECORD, {"b": 5, "c": None}, {"b": 5}, "struct<b: int64>"),
        ({"type": "array", "items": RECORD}, [{"b": 5, "c": None}], [{"b": 5}], "list<element: struct<b: int64>>"),
        ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None], "list<element: int32>"),
        ({"type": "map", "values": "double"}, {"k": 1.5}, [("k", 1.5)], "map<string, double>"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B", "string"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab", "fixed_size_binary[2]"),
        (["null", "int"], None, None, "int32"),
        (["int", "null"], 5, 5, "int32"),
        (["int"], 5, 5, "int32"),
        (["null", "int", "string"], "x", {"int": None, "string": "x"}, "struct<int: int32, string: string>"),
        (["int", "long", RECORD], {"b": 1, "c": None}, {"int": None, "long": None, "Inner": {"b": 1}},
         "struct<int: int32, long: int64, Inner: struct<b: int64>>"),
        (["null", "int", "string"], None, None, "struct<int: int32, string: string>"),
        (logical("int", "date"), date(2013, 1, 1), date(2013, 1, 1), "date32[day]"),
        (logical("int", "time-millis"), time(1, 2, 3, 4_000), time(1, 2, 3, 4_000), "time64[us]"),
        (logical("long", "time-micros"), time(1, 2, 3, 4), time(1, 2, 3, 4), "time64[us]"),
        (logical("long", "timestamp-millis"), NOW.replace(microsecond=5_000), NOW.replace(microsecond=5_000),
         "timestamp[us, tz=UTC]"),
        (logical("long", "timestamp-micros"), NOW, NOW, "timestamp[us, tz=UTC]"),
        (logical("long", "local-timestamp-micros"), NOW.replace(tzinfo=None), NOW.replace(tzinfo=None),
         "timestamp[us]"),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("-1.25"), Decimal("-1.25"), "decimal128(9, 2)"),
        ({"name": "D", "size": 4, **logical("fixed", "decimal", precision=9, scale=2)}, Decimal("7.00"),
         Decimal("7.00"), "decimal128(9, 2)"),
        (logical("string", "uuid"), NUMBER, NUMBER, "extension<arrow.uuid>"),
        ({"name": "U", "size": 16, **logical("fixed", "uuid")}, NUMBER.bytes, NUMBER, "extension<arrow.uuid>"),
        (["null", logical("string", "uuid")], None, None, "extension<arrow.uuid>"),
        (logical("bytes", "decimal", precision=50), Decimal(7), b"\x07", "binary"),
        (logical("long", "of-our-own"), 7, 7, "int64"),
        ("null", None, None, None),
        ({"type": "record", "name": "Nothing", "fields": []}, {}, None, None),
    ],
)  # fmt: skip
def test_types(writers, kind, value, read, column):
    assert writers.round_trip(kind, value) == (read, column)


def test_named_types_are_used_again_and_found_in_their_namespace(writers):
    schema = writers.schema(
        ("a", {"type": "record", "name": "N", "fields": [field("x", "int")]}), ("b", "N"), ("c", ["null", "p.N"]),
        namespace="p",
    )  # fmt: skip
    rows, _ = writers.read(writers.value(schema, {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}))
    assert rows[0] == {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}


def test_references(writers):
    money = {"type": "record", "name": "Money", "namespace": "m", "fields": [field("c", "Code"), field("n", "long")]}
    code = {"type": "enum", "name": "Code", "namespace": "m", "symbols": ["EUR"]}
    writers.registry.register("code", code)
    writers.registry.register("money", money, references=[("m.Code", "code", 1)])
    number, _ = writers.schema(("a", "m.Money"), ("b", "m.Money"), references=[("m.Money", "money", 1)])
    money["fields"][0]["type"] = code
    declared = {"type": "record", "name": "R", "fields": [field("a", money), field("b", "m.Money")]}
    rows, dead = writers.read(writers.value((number, declared), {"a": {"c": "EUR", "n": 1}, "b": {"c": "EUR", "n": 2}}))
    assert not dead
    assert rows[0] == {"a": {"c": "EUR", "n": 1}, "b": {"c": "EUR", "n": 2}}


def test_uuids_of_several_writers(writers):
    first = writers.schema(("u", logical("string", "uuid")))
    second = writers.schema(("u", {"name": "U", "size": 16, **logical("fixed", "uuid")}), ("v", "int"))
    bad = writers.schema(("u", "string"))[1]
    rows, dead = writers.read(
        writers.value(first, {"u": NUMBER}),
        writers.value(second, {"u": NUMBER.bytes, "v": 1}),
        None,
        writers.value((first[0], bad), {"u": "no number"}),
        writers.value(first, {"u": NUMBER}),
    )
    assert [row["u"] for row in rows.values()] == [NUMBER, NUMBER, None, NUMBER]
    assert dead == {3: "a value does not fit its column: badly formed hexadecimal UUID string"}


def test_new_schemas_of_writers_add_columns(writers):
    first = writers.schema(("a", "int"), ("s", {"type": "record", "name": "S", "fields": [field("x", "int")]}))
    second = writers.schema(
        ("b", "string"), ("s", {"type": "record", "name": "S", "fields": [field("y", "int"), field("x", "int")]})
    )
    values = [
        writers.value(first, {"a": 1, "s": {"x": 1}}),
        None,
        writers.value(second, {"b": "x", "s": {"x": 2, "y": 3}}),
        writers.value(first, {"a": 4, "s": {"x": 5}}),
    ]
    rows, dead = writers.read(*values)
    assert not dead
    assert rows == {
        0: {"a": 1, "s": {"x": 1, "y": None}, "b": None},
        1: {"a": None, "s": None, "b": None},
        2: {"a": None, "s": {"x": 2, "y": 3}, "b": "x"},
        3: {"a": 4, "s": {"x": 5, "y": None}, "b": None},
    }
    assert list(rows) == [0, 1, 2, 3]
    assert writers.table.passes == 2
    assert writers.read(values[0])[0] == {0: rows[0]}
    assert writers.table.passes == 3


def test_wider_columns_take_narrower_values(registry):
    writers = Writers(
        registry,
        [pa.field("a", pa.int64()), pa.field("b", pa.float64()), pa.field("l", pa.list_(pa.int64())),
         pa.field("m", pa.map_(pa.string(), pa.float64())), pa.field("d", pa.decimal128(12, 2))],
    )  # fmt: skip
    schema = writers.schema(
        ("a", "int"), ("b", "float"), ("l", {"type": "array", "items": "int"}),
        ("m", {"type": "map", "values": "float"}), ("d", logical("bytes", "decimal", precision=9, scale=2)),
    )  # fmt: skip
    rows, dead = writers.read(
        writers.value(schema, {"a": 1, "b": 1.5, "l": [2], "m": {"k": 0.5}, "d": Decimal("1.25")})
    )
    assert not dead
    assert rows[0] == {"a": 1, "b": 1.5, "l": [2], "m": [("k", 0.5)], "d": Decimal("1.25")}


def test_a_schema_that_conflicts_is_the_reason_of_its_records(registry):
    writers = Writers(registry, [pa.field("a", pa.int32())])
    good, bad = writers.schema(("a", "int")), writers.schema(("a", "string"), ("new", "int"))
    rows, dead = writers.read(writers.value(bad, {"a": "x", "new": 1}), writers.value(good, {"a": 1}))
    assert rows == {1: {"a": 1}}
    assert dead == {0: f"the schema {bad[0]}: 'a': the type is string, and that of the column is int"}


def test_of_two_schemas_that_declare_a_new_column_the_older_decides(writers):
    older, newer = writers.schema(("a", "int")), writers.schema(("a", "string"))
    batches = [batch_of([writers.value(newer, {"a": "x"})]), batch_of([writers.value(older, {"a": 1})], 1)]
    rows, dead = writers.table.round([[batches[0]], [batches[1]]])
    assert value_types(writers.table.schema) == {"a": "int32"}
    assert [row[OFFSET] for row in rows] == [1]
    assert [one["offset"] for one in dead] == [0]


def in_array(items):
    return [field("a", {"type": "array", "items": items})]


def bomb(depth=30):
    inner = {"type": "record", "name": "B0", "fields": [field("x", "int"), field("y", "int")]}
    for index in range(1, depth):
        inner = {"type": "record", "name": f"B{index}", "fields": [field("x", inner), field("y", f"B{index - 1}")]}
    return inner


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("string", "it is not a record, so its values have no columns"),
        ({"type": "record", "name": "R", "fields": [field("a", ["null", "R"])]}, "the type R contains itself"),
        ({"type": "record", "name": "R", "fields": [field("a", "X")]}, "the type X is not declared"),
        ({"type": "record", "name": "R", "fields": in_array("null")}, "an array has elements without bytes"),
        ({"type": "record", "name": "R", "fields": in_array({"type": "record", "name": "E", "fields": []})},
         "an array has elements without bytes"),
        ({"type": "record", "name": "R", "fields": [field("a", "int"), field("a", "int")]}, "have the same name"),
        ({"type": "record", "name": "R"}, "it is no Avro schema"),
        ({"type": "record", "name": "R", "fields": [field("A_", "int"), field("a_", "int")]}, "two names apart"),
        ({"type": "record", "name": "R", "fields": [field("_pos", "int")]}, "'_pos': the name is reserved by Iceberg"),
        (bomb(), "it makes more than 1000 columns"),
    ],
)  # fmt: skip
def test_schemas_of_which_no_columns_can_be_made(registry, schema, reason):
    writers = Writers(registry, [pa.field("a_", pa.int32())])
    number = registry.register("s", json.dumps(schema))
    good = writers.schema(("a_", "int"))
    rows, dead = writers.read(b"\0" + number.to_bytes(4, "big") + b"\0" * 8, writers.value(good, {"a_": 1}))
    assert rows == {1: {"a_": 1}}
    assert reason in dead[0]
    assert f"the schema {number}" in dead[0]


def test_values_that_are_not_of_their_schema(writers):
    schema = writers.schema(("a", "string"), ("b", logical("long", "timestamp-millis")))
    good = writers.value(schema, {"a": "x", "b": NOW})
    head = good[:5]
    huge = head + b"\x02x" + b"\xfe" + b"\xff" * 8 + b"\x01"
    values = [good, good[:-1], good + b"\0", head + b"\x02\xff\x00", huge, b"", b"\0\0", b"{}abc", good, head]
    rows, dead = writers.read(*values)
    assert set(rows) == {0, 8}
    assert "bytes after its last field" in dead[2]
    assert "does not fit its column" in dead[4]
    assert all("begin with 0 and the id" in dead[one] for one in (5, 6, 7))
    assert all("not Avro of its schema" in dead[one] for one in (1, 3, 9))


def test_an_id_that_is_unknown_or_of_another_format(writers):
    number = writers.registry.register("j", "{}", kind="JSON")
    _, dead = writers.read(b"\0\0\0\0\x63x", b"\0" + number.to_bytes(4, "big") + b"{}")
    assert dead == {
        0: "the registry does not know the schema 99",
        1: f"the schema {number} is of the type JSON, and not AVRO",
    }


def test_a_registry_that_is_gone_makes_no_dead_letters():
    with schema_registry() as served:
        settings = SchemaSettings(kind="avro", registry=(("url", served.url),))
    decoder = decoder_of(settings, iceberg_schema())
    with pytest.raises(RegistryError):
        decoder.decode(batch_of([b"\0\0\0\0\1x"]))
    assert decoder.decode(batch_of([None])).dead is None


def test_without_a_registry():
    with pytest.raises(ValueError, match="the URL of the schema registry is missing"):
        decoder_of(SchemaSettings(kind="avro"), iceberg_schema())


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(-5, 5), st.none() | st.text(max_size=3), st.binary(max_size=4)))
)
def test_each_record_is_a_row_or_dead(records):
    with schema_registry() as served:
        writers = Writers(served)
        schemas = [
            writers.schema(("a", "int"), ("b", ["null", "string"])),
            writers.schema(("b", ["null", "string"]), ("c", "long"), ("a", "int")),
        ]
        values = []
        for which, number, text, noise in records:
            value = {"a": number, "b": text, "c": number}
            fields = {one["name"] for one in schemas[which][1]["fields"]}
            whole = writers.value(schemas[which], {key: one for key, one in value.items() if key in fields})
            values.append(whole[: len(whole) - len(noise)] if noise[:1] > b"\x80" else whole + noise[:1])
        rows, dead = writers.read(*values)
        assert sorted([*rows, *dead]) == list(range(len(values)))
        for place, (which, number, text, noise) in enumerate(records):
            if not noise:
                row = rows[place]
                assert (row["a"], row["b"]) == (number, text)
                assert row.get("c") == (number if which else None)
