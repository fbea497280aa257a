"""Tables in a SQLite catalog, and files for them, without Spark."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files

from lowtide.pipeline.table.progress import progress_properties
from lowtide.pipeline.table.schemas.decoding import RAW_SCHEMA
from lowtide.protocol.types import TopicPartition

TOPIC_ID = bytes(range(16))
AT = 1_700_000_000_000_000


@contextmanager
def sqlite_catalog(folder: Path):
    catalog = load_catalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    try:
        yield catalog
    finally:
        catalog.close()


def new_table(catalog, name: str = "db.numbers", **properties: str):
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    return catalog.create_table(name, RAW_SCHEMA, properties=properties)


def rows_of(partition: int, start: int, until: int) -> pa.Table:
    numbers = range(start, until)
    columns = [
        [partition] * len(numbers),
        list(numbers),
        [AT + number for number in numbers],
        [f"k{number}".encode() for number in numbers],
        [None for _ in numbers],
        [f"v{number}".encode() for number in numbers],
    ]
    return pa.table(dict(zip(RAW_SCHEMA.names, columns, strict=True)), schema=RAW_SCHEMA)


def files_of(table, rows: pa.Table) -> list:
    return list(_dataframe_to_data_files(table.metadata, rows, table.io, uuid.uuid4()))


def progress(positions: dict[int, int], round_id: str = "r", topic: str = "numbers") -> dict[str, str]:
    return progress_properties(TOPIC_ID, {TopicPartition(topic, one): to for one, to in positions.items()}, round_id)


def offsets_in(table) -> list[tuple[int, int]]:
    found = table.refresh().scan(selected_fields=("partition", "offset")).to_arrow().to_pylist()
    return sorted((row["partition"], row["offset"]) for row in found)
