"""JSON objects become columns; what does not fit is a dead letter with its reason."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lowtide.pipeline.table.schemas import SchemaSettings, decoder_of
from lowtide.pipeline.table.schemas.decoding import PREFIX
from lowtide.pipeline.table.schemas.names import MAX_COLUMNS, MAX_DEPTH, MAX_NAME_LENGTH

from .record_batches import GrowingTable, batch_of, iceberg_schema, value_types


def error_of(value, columns=()):
    """Returns why one value is dead beside a good one."""
    good = b'{"good":1}'
    rows, dead = GrowingTable(columns=[pa.field("good", pa.int64()), *columns]).values(good, value, good)
    assert set(rows) == {0, 2}
    assert set(dead) == {1}
    return dead[1]


def row_of(value, columns=()):
    """Returns the row of one value."""
    rows, dead = GrowingTable(columns=columns).values(value)
    assert not dead
    return rows[0]


def test_columns_are_inferred():
    table = GrowingTable()
    rows, dead = table.values(
        b'{"a": 1, "b": 1.5, "c": true, "d": "x", "e": {"f": [1, 2.5, null], "g": null}, "h": null}',
        b'{"e": {"g": "2013-01-01T00:00:00Z"}}',
    )
    assert not dead
    assert value_types(table.schema) == {
        "a": "int64", "b": "double", "c": "bool", "d": "string",
        "e": "struct<f: list<element: double>, g: string>",
    }  # fmt: skip
    assert rows[0] == {"a": 1, "b": 1.5, "c": True, "d": "x", "e": {"f": [1.0, 2.5, None], "g": None}}
    assert rows[1] == {"a": None, "b": None, "c": None, "d": None, "e": {"f": None, "g": "2013-01-01T00:00:00Z"}}
    assert table.passes == 2


def test_a_row_has_the_columns_of_its_record():
    table = GrowingTable()
    rows, _ = table.round([[batch_of([b'{"a":1}'], 7)]])
    assert rows == [
        {
            f"{PREFIX}partition": 3,
            f"{PREFIX}offset": 7,
            f"{PREFIX}timestamp": rows[0][f"{PREFIX}timestamp"],
            f"{PREFIX}key": b"k7",
            f"{PREFIX}headers": [{"key": "h", "value": b"x"}],
            "a": 1,
        }
    ]


def test_a_dead_letter_has_the_record():
    _, dead = GrowingTable().round([[batch_of([b'{"a":1}', b"{", b'{"a":2}'], 7)]])
    assert [(one["partition"], one["offset"], one["key"], one["value"]) for one in dead] == [(3, 8, b"k8", b"{")]
    assert dead[0]["headers"] == [{"key": "h", "value": b"x"}]


def test_a_tombstone_is_a_row_of_nulls():
    rows, dead = GrowingTable().values(b'{"a":1}', None)
    assert not dead
    assert rows == {0: {"a": 1}, 1: {"a": None}}


def test_the_head_of_a_schema_registry_is_skipped():
    assert row_of(b'\0\0\0\0\x07{"a":1}') == {"a": 1}


def test_new_fields_become_columns_inside_structs_and_lists():
    table = GrowingTable()
    table.values(b'{"s":{"a":1},"l":[{"a":1}]}')
    rows, dead = table.values(b'{"s":{"b":{"c":"x"}},"l":[{"a":2},null,{"b":true}],"n":[]}', b'{"n":[[1]]}')
    assert not dead
    assert value_types(table.schema) == {
        "s": "struct<a: int64, b: struct<c: string>>",
        "l": "list<element: struct<a: int64, b: bool>>",
        "n": "list<element: list<element: int64>>",
    }
    assert rows[0]["l"] == [{"a": 2, "b": None}, None, {"a": None, "b": True}]
    assert rows[0]["s"] == {"a": None, "b": {"c": "x"}}
    assert rows[0]["n"] == []


def test_null_and_what_is_empty_say_nothing():
    table = GrowingTable()
    rows, dead = table.values(b'{"a":null,"b":{},"c":[],"d":[null,{}],"e":1}', b'{"b":{"x":{}},"e":2}')
    assert not dead
    assert value_types(table.schema) == {"e": "int64"}
    assert [one["e"] for one in rows.values()] == [1, 2]


def test_most_values_decide_the_type():
    table = GrowingTable()
    rows, dead = table.values(b'{"a":"N/A"}', b'{"a":1}', b'{"a":2.5}', b'{"a":{"b":1}}')
    assert value_types(table.schema) == {"a": "double"}
    assert {key: one["a"] for key, one in rows.items()} == {1: 1.0, 2: 2.5}
    assert dead == {
        0: "'a': the value is a string, and the column is double",
        3: "'a': the value is a struct, and the column is double",
    }


def test_one_bad_value_among_many_costs_only_itself():
    values = [json.dumps({"a": index, "b": {"c": "x" * (index % 7)}}).encode() for index in range(5_000)]
    values[17] = b"{"
    values[4_000] = b'{"a":1.5}'
    values[4_001] = b'{"a":"x"}'
    rows, dead = GrowingTable(columns=LONG).values(*values)
    assert set(dead) == {17, 4_000, 4_001}
    assert len(rows) == 4_997
    assert all(row["a"] == offset and row["b"]["c"] == "x" * (offset % 7) for offset, row in rows.items())


LONG = [pa.field("a", pa.int64())]
DOTTED = [pa.field("x", pa.struct([pa.field("Y", pa.int64())]))]
DOUBLE = [pa.field("a", pa.float64())]


@pytest.mark.parametrize(
    ("value", "columns", "error"),
    [
        (b'{"a":1.0}', LONG, "'a': the value is a double, and the column is long"),
        (b'{"a":1e3}', LONG, "'a': the value is a double, and the column is long"),
        (b'{"a":true}', LONG, "'a': the value is a boolean, and the column is long"),
        (b'{"a":9223372036854775808}', LONG, "'a': the integer is out of the range of long"),
        (b'{"a":9223372036854775808}', (), "'a': the integer has more than 64 bits"),
        (b'{"a":3000000000}', [pa.field("a", pa.int32())], "'a': the integer is out of the range of int"),
        (b'{"a":9007199254740993}', DOUBLE, "'a': the column is double, which can't keep all digits of the integer"),
        (b'{"a":16777217}', [pa.field("a", pa.float32())], "'a': the column is float, which can't keep all digits"),
        (b'{"a":1e39}', [pa.field("a", pa.float32())], "'a': the number is out of the range of float"),
        (b'{"a":NaN}', DOUBLE, "the value is not accepted as JSON: it has NaN"),
        (b'{"a":-Infinity}', DOUBLE, "the value is not accepted as JSON: it has -Infinity"),
        (b'{"a":-Inf}', DOUBLE, "the value is not JSON: Expecting value at character 5"),
        (b'{"a":1e999}', (), "the value is not accepted as JSON: a number is too large for a double"),
        (b'{"a":' + b"1" * 5_000 + b"}", (), "the value is not accepted as JSON: an integer has more than 310 digits"),
        (b'{"a":1,"a":1}', (), "the value is not accepted as JSON: the name 'a' stands twice in an object"),
        (b'{"b":{"a":1,"a":1}}', (), "the value is not accepted as JSON: the name 'a' stands twice in an object"),
        (b'{"a":"\xff"}', (), "the value is not UTF-8 at byte 6"),
        (b'{"a":"\\ud800"}', (), "the value has half of a surrogate pair"),
        (b'{"\\udc00":1}', (), "the value has half of a surrogate pair"),
        (b'{"a":"\n"}', (), "the value is not JSON: Invalid control character at at character 6"),
        (b'{"a":1}\0', (), "the value is not JSON: it has a byte of 0"),
        (b"", (), "the value is not JSON: it is empty"),
        (b"  ", (), "the value is not JSON: Expecting value at character 2"),
        (b"null", (), "the value is null, and not a JSON object"),
        (b"[{}]", (), "the value is a list, and not a JSON object"),
        (b'"{}"', (), "the value is a string, and not a JSON object"),
        (b"\xef\xbb\xbf{}", (), "the value is not JSON: Expecting value at character 0"),
        (b"{}{}", (), "the value is not JSON: Extra data at character 2"),
        (b'{},"v":{}', (), "the value is not JSON: Extra data at character 2"),
        (b'{}}{"v":{}', (), "the value is not JSON: Extra data at character 2"),
        (b'{"":1}', (), "'': the name is empty"),
        (b'{"a\\nb":1}', (), "'a\\nb': the name has a character that can't be printed"),
        (b'{"_File":1}', (), "'_File': the name is reserved by Iceberg"),
        (b'{"Good":1}', (), "'Good': the table has the column 'good', and readers can't tell the two names apart"),
        (b'{"x.y":1}', DOTTED, "'x.y': the table has the column 'x.Y', and readers can't tell the two names apart"),
        (b'{"a":"2013-01-01"}', [pa.field("a", pa.date32())], "'a': the value is a string, and the column is date"),
        (f'{{"{PREFIX}offset":1}}'.encode(), (), f"'{PREFIX}offset': the table has the column '{PREFIX}offset'"),
        (f'{{"{PREFIX}key":null,"a":1}}'.encode(), LONG, None),
        (b'{"' + b"n" * (MAX_NAME_LENGTH + 1) + b'":1}', (), f"the name has more than {MAX_NAME_LENGTH} characters"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), (), f"nested deeper than {MAX_DEPTH} levels"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", (), "the value is nested too deeply"),
        (b'{"a":' * 1_000_000, (), "the value is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_refused(value, columns, error):
    if error is None:
        assert row_of(value, columns) == {"a": 1}
    else:
        assert error in error_of(value, columns)


@pytest.mark.parametrize(
    ("value", "columns", "row"),
    [
        (b'{"a":1}', DOUBLE, {"a": 1.0}),
        (b'{"a":9007199254740992}', DOUBLE, {"a": 2.0**53}),
        (b'{"a":-36893488147419103232}', DOUBLE, {"a": -(2.0**65)}),
        (b'{"a":1.5e300}', DOUBLE, {"a": 1.5e300}),
        (b'{"a":12345678901234567.0}', DOUBLE, {"a": 12345678901234567.0}),
        (b'{"a":-0}', LONG, {"a": 0}),
        (b'{"a":-9223372036854775808}', (), {"a": -(2**63)}),
        (b'{\n "a" :\t1 \r\n}\n', (), {"a": 1}),
        (b'{"a b":1,"c.d":2,"\xc3\xa4":3}', (), {"a b": 1, "c.d": 2, "ä": 3}),
        (b'{"a":"\\ud83d\\ude00\\u0000"}', (), {"a": "😀\0"}),
        (b'{"v":{"v":1}}', (), {"v": {"v": 1}}),
        (b'{"element":[{"element":1}]}', (), {"element": [{"element": 1}]}),
        (b"{}", (), {}),
    ],
)
def test_what_is_accepted(value, columns, row):
    assert row_of(value, columns) == row


def test_records_cannot_shift_each_other():
    rows, dead = GrowingTable().values(b'{"a":1}}{"v":{"a":2}', b"", b'{"a":3}', b'{"a":4}}\n{"v":{"a":5}', b'{"a"')
    assert rows == {2: {"a": 3}}
    assert set(dead) == {0, 1, 3, 4}


def test_of_two_names_that_differ_in_case_only_the_more_frequent_is_a_column():
    table = GrowingTable()
    rows, dead = table.values(b'{"userid":1}', b'{"userId":2}', b'{"userId":3}')
    assert rows == {1: {"userId": 2}, 2: {"userId": 3}}
    assert dead == {0: "'userid': the table has the column 'userId', and readers can't tell the two names apart"}


def test_a_name_with_a_dot_yields_to_the_path_that_it_looks_like():
    table = GrowingTable()
    rows, dead = table.values(b'{"a.b":1}', b'{"a.b":2}', b'{"a":{"b":3}}')
    assert rows == {2: {"a": {"b": 3}}}
    assert set(dead) == {0, 1}


def test_a_table_has_a_bounded_number_of_columns():
    table = GrowingTable()
    values = [json.dumps({f"f{index}": 1}).encode() for index in range(MAX_COLUMNS + 100)]
    rows, dead = table.values(*values, b'{"f0":1}', b'{"s":{"t":1}}')
    own = 6
    assert len(value_types(table.schema)) == MAX_COLUMNS - own
    assert len(rows) == MAX_COLUMNS - own + 1
    assert len(rows) + len(dead) == len(values) + 2
    assert dead[len(values) + 1] == "'s.t': the table has 1000 columns, and gets no more"


def test_names_that_differ_in_case_only_do_not_keep_a_round_from_ending():
    names = ["".join(one) for one in zip(*[[c.upper() if index >> bit & 1 else c for index in range(4_096)]
                                            for bit, c in enumerate("abcdefghijkl")], strict=True)]  # fmt: skip
    table = GrowingTable()
    rows, dead = table.values(*[json.dumps({name: 1}).encode() for name in names], b'{"z":1}')
    assert len(rows) + len(dead) == 4_097
    assert rows[4_096]["z"] == 1
    assert len(rows) == 2


def test_a_required_column_is_refused():
    with pytest.raises(ValueError, match="the column s.a is required, but values may lack it: make it optional"):
        decoder_of(
            SchemaSettings(kind="json"),
            iceberg_schema([pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False)]))]),
        )


def test_an_unknown_schema_is_refused():
    with pytest.raises(ValueError, match="the schema xml is unknown"):
        decoder_of(SchemaSettings(kind="xml"), iceberg_schema())


def test_an_empty_batch():
    assert GrowingTable().values() == ({}, {})
