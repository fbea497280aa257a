"""Rows are split as Iceberg's transforms say, also before 1970 and without a value."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.types import LongType, NestedField, StringType, StructType, TimestamptzType

from lowtide.pipeline.table.partitioning import split_rows

SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "deep", StructType(NestedField(4, "n", LongType()))),
)
HOUR = 3_600_000_000
ROWS = pa.table(
    {
        "at": pa.array([0, -1, 5 * HOUR, 24 * HOUR, None], pa.timestamp("us", tz="UTC")),
        "name": ["a", "b", "abc", None, "a"],
        "deep": [{"n": 1}, {"n": 2}, None, {"n": 1}, {"n": 2}],
    }
)


def spec_of(*fields) -> PartitionSpec:
    return PartitionSpec(
        *(PartitionField(source, 1000 + at, kind, f"f{at}") for at, (source, kind) in enumerate(fields))
    )


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ((1, HourTransform()), [(0, [0]), (-1, [1]), (5, [2]), (24, [3]), (None, [4])]),
        ((1, DayTransform()), [(0, [0, 2]), (-1, [1]), (1, [3]), (None, [4])]),
        ((1, MonthTransform()), [(0, [0, 2, 3]), (-1, [1]), (None, [4])]),
        ((2, IdentityTransform()), [("a", [0, 4]), ("b", [1]), ("abc", [2]), (None, [3])]),
        ((2, TruncateTransform(1)), [("a", [0, 2, 4]), ("b", [1]), (None, [3])]),
        ((4, IdentityTransform()), [(1, [0, 3]), (2, [1, 4]), (None, [2])]),
    ],
)
def test_each_transform(field, expected):
    rows = ROWS.append_column("row", pa.array(range(5)))
    parts = split_rows(rows, spec_of(field), SCHEMA)
    assert [(key.partition[0], part.column("row").to_pylist()) for key, part in parts] == expected


def test_buckets_are_those_of_icebergs_hash():
    (first, *_) = split_rows(ROWS.slice(0, 1), spec_of((2, BucketTransform(16))), SCHEMA)
    assert first[0].partition[0] == BucketTransform(16).transform(StringType())("a")


def test_several_fields():
    rows = ROWS.append_column("row", pa.array(range(5)))
    parts = split_rows(rows, spec_of((1, DayTransform()), (2, IdentityTransform())), SCHEMA)
    found = {(key.partition[0], key.partition[1]): part.column("row").to_pylist() for key, part in parts}
    assert found == {(0, "a"): [0], (-1, "b"): [1], (0, "abc"): [2], (1, None): [3], (None, "a"): [4]}


def test_no_rows():
    assert split_rows(ROWS.slice(0, 0), spec_of((2, IdentityTransform())), SCHEMA) == []
