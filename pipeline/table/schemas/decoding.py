"""The interface between the job and the schemas: a decoder turns records into rows of the table.

Decoders know Arrow only. The job knows the table: field ids, files and commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

RECORD_NAMES: Final = ("partition", "offset", "timestamp", "key", "headers")
"""What each table has of a record. In tables of decoded values these names begin with `PREFIX`."""

PREFIX: Final = "kafka_"
"""`_partition` is a metadata column of Iceberg: Spark refuses to read a table with a column of that name."""

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_RECORD_TYPES: Final = (
    pa.int32(),
    pa.int64(),
    pa.timestamp("us", tz="UTC"),
    pa.binary(),
    pa.list_(pa.field("element", _HEADER)),
)


def record_fields(prefix: str = "") -> list[pa.Field]:
    """Returns the columns of the record itself: partition, offset, timestamp, key and headers."""
    return [
        pa.field(prefix + name, kind, nullable=name in ("key", "headers"))
        for name, kind in zip(RECORD_NAMES, _RECORD_TYPES, strict=True)
    ]


RAW_SCHEMA: Final = pa.schema([*record_fields(), pa.field("value", pa.binary())])
"""A new table of the schema `raw`."""

DECODED_SCHEMA: Final = pa.schema(record_fields(PREFIX))
"""A new table of each other schema. Columns of the values are added as they are found."""

DEAD_SCHEMA: Final = pa.schema([*RAW_SCHEMA, pa.field("error", pa.string(), nullable=False)])
"""The table of dead letters, and `Decoded.dead`."""

NO_COLUMNS: Final = pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSettings:
    """Says how values are decoded. Can be pickled."""

    kind: str = "raw"
    """`raw`, `json`, `avro` or `protobuf`."""
    registry: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the schema registry: its URL and logins, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The rows of some records. Each record is in `rows` or in `dead`, unless columns are missing."""

    rows: pa.Table | None
    """The columns that the decoder knows, named and typed as in `arrow_schema_of(table_schema)`, in the order of the
    records. Columns of the table that it leaves out are null. None if `new_columns` has any."""

    new_columns: pa.Schema = NO_COLUMNS
    """What the table lacks. A struct column that lacks fields is here with these fields. All fields are nullable."""

    dead: pa.Table | None = None
    """The records that can't be decoded, with the columns of `DEAD_SCHEMA`; None if there are none."""


class Decoder(Protocol):
    """Decodes the records of one task. It is made in the task, for the schema that the table has then."""

    def decode(self, records: pa.RecordBatch) -> Decoded:
        """Decodes a batch with the columns of `format("lowtide")` with headers (`ARROW_SCHEMA_WITH_HEADERS`).

        Errors: those of a registry that can't be reached; the round is then repeated.
        """


class RawDecoder:
    """The schema `raw`: each record is a row as it is, with its value as bytes. No record is dead."""

    def decode(self, records: pa.RecordBatch) -> Decoded:
        return Decoded(rows=pa.Table.from_batches([records.select(RAW_SCHEMA.names)]))


def arrow_schema_of(table_schema: Schema) -> pa.Schema:
    """Returns the Arrow types of a table, with its field ids, and with 32-bit offsets as record batches have them."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - an extra

    return pa.schema([_small_field(one) for one in schema_to_pyarrow(table_schema)])


def _small_field(one: pa.Field) -> pa.Field:
    return one.with_type(_small(one.type))


def _small(kind: pa.DataType) -> pa.DataType:
    """Returns a type with 32-bit offsets instead of 64-bit ones."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    return kind
