"""Any documents, in any split: each record is in the rows or in the dead letters, once, and holds what was written."""

from __future__ import annotations

import json
from itertools import pairwise
from math import isclose

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.pipeline.table.schemas.decoding import PREFIX
from tests.examples import examples

from .record_batches import OFFSET, GrowingTable, batch_of, value_types

NAMES = st.sampled_from(["a", "b", "A", "a.b", "c d", "element", "", "_file", f"{PREFIX}key", "ä"])
SINGLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=3),
)
INNER = st.recursive(
    SINGLE, lambda one: st.lists(one, max_size=3) | st.dictionaries(NAMES, one, max_size=3), max_leaves=6
)
DOCUMENTS = st.dictionaries(NAMES, INNER, max_size=4).map(lambda one: json.dumps(one).encode())
TEXTS = st.one_of(
    DOCUMENTS,
    DOCUMENTS,
    DOCUMENTS,
    st.none(),
    INNER.map(lambda one: json.dumps(one).encode()),
    DOCUMENTS.map(lambda one: json.dumps(json.loads(one), indent=1, ensure_ascii=False).encode(errors="replace")),
    st.binary(max_size=8),
    st.sampled_from([b'{}}{"v":{}', b'{"a":1}{"a":2}', b'{"a":1},"v":{}', b'{"a":1}\0', b'{"a":"\xff"}']),
)
BOUNDED = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def without_nulls(value):
    """Returns a value without what may make no column: nulls, and objects and arrays that hold nothing else."""
    if isinstance(value, dict):
        inner = {name: without_nulls(one) for name, one in value.items()}
        return {name: one for name, one in inner.items() if one is not None} or None
    if isinstance(value, list):
        inner = [without_nulls(one) for one in value]
        return inner if any(one is not None for one in inner) else None
    return value


def is_same(written, read):
    if isinstance(written, dict) and isinstance(read, dict):
        return written.keys() == read.keys() and all(is_same(one, read[name]) for name, one in written.items())
    if isinstance(written, list) and isinstance(read, list):
        return len(written) == len(read) and all(is_same(*pair) for pair in zip(written, read, strict=True))
    if isinstance(written, bool) or isinstance(read, bool):
        return written is read
    if isinstance(written, int | float) and isinstance(read, int | float):
        return written == read if isinstance(written, int) else isclose(written, read, rel_tol=0)
    return written == read


@BOUNDED
@given(st.lists(TEXTS, max_size=20), st.lists(TEXTS, max_size=8))
def test_each_record_is_a_row_or_dead_with_what_was_written(first, second):
    table = GrowingTable()
    for values in (first, second):
        rows, dead = table.round([[batch_of(values, 100)]])
        offsets = [row[OFFSET] for row in rows]
        assert offsets == sorted(offsets)
        assert sorted(offsets + [one["offset"] for one in dead]) == list(range(100, 100 + len(values)))
        for one in dead:
            assert one["value"] == values[one["offset"] - 100]
            assert one["error"]
        names = set(value_types(table.schema))
        for row in rows:
            written = values[row[OFFSET] - 100]
            read = without_nulls({name: row[name] for name in names if name in row})
            assert is_same(without_nulls(json.loads(written)) if written is not None else None, read), (written, row)


def test_empty_values_of_different_kinds_are_rows():
    """They make no column, so none of them can be in another one's way."""
    values = [b'{"a": {}}', b'{"a": []}', b'{"a": [[]]}', b'{"a": null}', b'{"a": {"b": {}}}', b'{"a": {"b": []}}']
    types, rows, dead = rows_and_dead([[batch_of(values)]])
    assert (types, sorted(rows), dead) == ([], list(range(6)), {})


def rows_and_dead(tasks):
    table = GrowingTable()
    rows, dead = table.round(tasks)
    return (
        sorted(value_types(table.schema).items()),
        {row[OFFSET]: without_nulls(row) for row in rows},
        {one["offset"]: one["error"] for one in dead},
    )


@BOUNDED
@given(st.lists(TEXTS, max_size=16), st.lists(st.integers(0, 16), max_size=4), st.lists(st.booleans(), max_size=4))
def test_columns_do_not_depend_on_how_records_are_split(values, cuts, is_new_task):
    places = sorted({0, len(values), *(one for one in cuts if one < len(values))})
    batches = [batch_of(values[low:high], low) for low, high in pairwise(places)]
    tasks = [[]]
    for index, batch in enumerate(batches):
        if index < len(is_new_task) and is_new_task[index]:
            tasks.append([])
        tasks[-1].append(batch)
    assert rows_and_dead(tasks) == rows_and_dead([[batch_of(values)]])


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(DOCUMENTS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_many_records_with_few_odd_ones(odd, random):
    values = [json.dumps({"a": index, "e": [index]}).encode() for index in range(700)]
    for one in odd:
        values[random.randrange(len(values))] = one
    whole = rows_and_dead([[batch_of(values)]])
    assert whole == rows_and_dead([[batch_of(values[:350])], [batch_of(values[350:], 350)]])
    assert len(whole[1]) + len(whole[2]) == len(values)
    assert len(whole[2]) <= len(odd)
