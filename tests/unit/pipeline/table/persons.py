"""Tables whose rows belong to persons. Nothing in their files is compressed: a search for bytes finds a person."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
from pyiceberg.typedef import Record

from lowtide.admin.finding import RecordQuery
from lowtide.pipeline.table.committing import TableChange, commit_change
from lowtide.pipeline.table.erasing import erase_rows
from lowtide.pipeline.table.files import data_file_name
from lowtide.pipeline.table.progress import head_id
from lowtide.pipeline.table.rewriting import FilePlace, FileReader, FileWriter
from lowtide.pipeline.table.schemas.decoding import RAW_SCHEMA
from lowtide.pipeline.table.selecting import RowSelector

from .tables import AT, new_table, progress

PERSONS = range(5)


def key_of(person: int) -> bytes:
    return f"person-{person}-key".encode()


def persons_table(catalog, name: str = "db.persons", **properties: str):
    return new_table(
        catalog,
        name,
        **{
            "write.parquet.compression-codec": "uncompressed",
            "write.avro.compression-codec": "null",
            **properties,
        },
    )


def person_rows(persons, first: int, partition: int = 0) -> pa.Table:
    offsets = range(first, first + len(persons))
    headers = [[{"key": "owner", "value": f"owner-{person}".encode()}] for person in persons]
    columns = [
        [partition] * len(persons),
        list(offsets),
        [AT + offset * 3_600_000_000 for offset in offsets],
        [key_of(person) for person in persons],
        headers,
        [f"secret-{person}-{offset}".encode() for person, offset in zip(persons, offsets, strict=True)],
    ]
    return pa.table(dict(zip(RAW_SCHEMA.names, columns, strict=True)), schema=RAW_SCHEMA)


def round_files(table, rows: pa.Table, round_id: UUID | None = None) -> list:
    """Writes files as a round of the sink does that is based on the newest snapshot."""
    place = FilePlace(
        base_snapshot_id=head_id(table.metadata),
        round_id=round_id or uuid4(),
        spec_id=table.spec().spec_id,
        partition=Record(),
    )
    writer = FileWriter(table, place, 0)
    for batch in rows.cast(FileReader(table.io, table.metadata).arrow).to_batches():
        writer.write(batch)
    return writer.close()


def append_round(table, persons, first: int) -> None:
    rows = person_rows(persons, first)
    files = round_files(table.refresh(), rows)
    commit_change(table, TableChange(added=files, properties=progress({0: first + len(persons)})))


def by_key(*persons: int) -> RowSelector:
    return RowSelector(RecordQuery(keys=frozenset(map(key_of, persons))))


def erase(table, *persons: int, erasure_id: UUID | None = None, **options):
    return erase_rows(table, by_key(*persons), erasure_id or uuid4(), **options)


def root_of(table) -> Path:
    return Path(table.location().removeprefix("file://"))


def files_with(table, person: int) -> list[str]:
    """Returns the files below the table's location in which a person's key or a value of the person is."""
    marks = (key_of(person), f"secret-{person}-".encode(), f"owner-{person}".encode())
    return [
        str(path.relative_to(root_of(table)))
        for path in sorted(root_of(table).rglob("*"))
        if path.is_file() and any(mark in path.read_bytes() for mark in marks)
    ]


def values_in(table) -> list[bytes]:
    """Returns the values of all rows, sorted."""
    found = table.refresh().scan(selected_fields=("value",)).to_arrow().column("value").to_pylist()
    return sorted(bytes(each) for each in found)


def name_of_round(base: int, number: int = 0) -> str:
    return data_file_name(base, uuid4(), number)
