"""Batches of records as `format("lowtide")` reads them, tables that grow as those of the job, and what they hold."""

from __future__ import annotations

import pickle

import pyarrow as pa
from pyiceberg.io.pyarrow import visit_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from lowtide.pipeline.arrow_batches import ARROW_SCHEMA_WITH_HEADERS
from lowtide.pipeline.table.schemas import SchemaSettings, decoder_of
from lowtide.pipeline.table.schemas.decoding import DECODED_SCHEMA, PREFIX, arrow_schema_of
from lowtide.pipeline.table.schemas.evolution import merged_fields, union_of_columns

OFFSET = f"{PREFIX}offset"


def batch_of(values, first=0):
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f"k{first + index}".encode() for index in range(count)], pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(["topic"] * count, pa.string()),
            pa.array([3] * count, pa.int32()),
            pa.array(range(first, first + count), pa.int64()),
            pa.array([1_700_000_000_000_000 + first + index for index in range(count)], pa.timestamp("us", tz="UTC")),
            pa.array([0] * count, pa.int32()),
            pa.array([[{"key": "h", "value": b"x"}]] * count, ARROW_SCHEMA_WITH_HEADERS.field("headers").type),
        ],
        schema=ARROW_SCHEMA_WITH_HEADERS,
    )


def iceberg_schema(columns=(), *, own=DECODED_SCHEMA):
    """Returns the Iceberg schema of a table with Arrow fields beside those of the record."""
    return with_ids(pa.schema([*own, *columns]))


def with_ids(schema: pa.Schema) -> Schema:
    from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs

    return assign_fresh_schema_ids(visit_pyarrow(schema, _ConvertToIcebergWithoutIDs(format_version=2)))


def value_columns(schema: Schema):
    names = set(DECODED_SCHEMA.names)
    return [one for one in arrow_schema_of(schema) if one.name not in names]


def value_types(schema: Schema):
    """Returns the types of the columns of values, as text, by name."""
    return {one.name: str(one.type).replace("not null", "").strip() for one in value_columns(schema)}


class GrowingTable:
    """Decodes batches as the job does: one round, again with more columns while columns are missing."""

    def __init__(self, kind="json", columns=(), registry=()):
        self.settings = SchemaSettings(kind=kind, registry=registry)
        self.schema = iceberg_schema(columns)
        self.passes = 0

    def round(self, tasks):
        """Decodes tasks of batches. Returns the rows and the dead letters, as lists of dicts."""
        while True:
            self.passes += 1
            assert self.passes < 50
            decoders = [decoder_of(pickle.loads(pickle.dumps(self.settings)), self.schema) for _ in tasks]
            decoded = [
                decoder.decode(batch) for decoder, batches in zip(decoders, tasks, strict=True) for batch in batches
            ]
            decoded = pickle.loads(pickle.dumps(decoded))
            missing = [one.new_columns for one in decoded if len(one.new_columns)]
            if not missing:
                break
            added = union_of_columns(self.schema, missing)
            assert len(added), "the round would not end"
            self.schema = with_ids(pa.schema(merged_fields(list(arrow_schema_of(self.schema)), list(added))))
        schema = arrow_schema_of(self.schema)
        for one in decoded:
            one.rows.validate(full=True)
            for field in one.rows.schema:
                assert field.type.equals(schema.field(field.name).type), field
            if one.dead is not None:
                one.dead.validate(full=True)
        rows = [row for one in decoded for row in one.rows.to_pylist()]
        dead = [row for one in decoded if one.dead is not None for row in one.dead.to_pylist()]
        return rows, dead

    def values(self, *values):
        """Decodes values as one batch. Returns the values' columns of the rows by offset, and the errors by offset."""
        rows, dead = self.round([[batch_of(list(values))]])
        names = value_types(self.schema)
        return (
            {row[OFFSET]: {name: row.get(name) for name in names} for row in rows},
            {row["offset"]: row["error"] for row in dead},
        )
