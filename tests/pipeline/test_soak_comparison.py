"""The comparison of a soak notices a record that a table lacks or has twice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.soak.tabling import TABLE, compare_once


def write(folder: Path, *places: tuple[int, int]) -> None:
    """Writes a table with these partitions and offsets."""
    catalog = load_catalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace(TABLE.partition(".")[0])
    names = {"kafka_partition": pa.int32(), "kafka_offset": pa.int64()}
    columns = [pa.array(column, kind) for column, kind in zip(zip(*places, strict=True), names.values(), strict=True)]
    rows = pa.table(columns, names=list(names))
    catalog.create_table(TABLE, schema=rows.schema).append(rows)
    catalog.close()


def test_all_below_the_log_starts_is_there_once(tmp_path: Path):
    write(tmp_path, (0, 0), (0, 1), (0, 2), (1, 0))
    assert compare_once(tmp_path, {"0": 3, "1": 1}) == 4
    assert compare_once(tmp_path, {"0": 2, "1": 0}) == 4, "the table may have more than was trimmed"


def test_a_missing_record_is_noticed(tmp_path: Path):
    write(tmp_path, (0, 0), (0, 2), (1, 0))
    with pytest.raises(AssertionError, match="begins at 3, but the table has 2 records below"):
        compare_once(tmp_path, {"0": 3, "1": 1})


def test_a_record_that_is_there_twice_is_noticed(tmp_path: Path):
    write(tmp_path, (0, 0), (0, 0), (1, 0))
    with pytest.raises(AssertionError, match="partition 0 has records twice"):
        compare_once(tmp_path, {"0": 1, "1": 1})
