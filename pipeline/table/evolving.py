"""Creates tables, and adds columns to them. Nothing is ever removed or changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table.options import FILE_BYTES, TableOptions
from lowtide.pipeline.table.progress import SCHEMA
from lowtide.pipeline.table.schemas.decoding import DEAD_SCHEMA, DECODED_SCHEMA, PREFIX, RAW_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

RAW: Final = "raw"

PROPERTIES: Final = {
    "write.target-file-size-bytes": str(FILE_BYTES),
    # Each commit writes all snapshots again into a new file, and nobody reads the old ones.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Of new tables."""

WITHOUT_BOUNDS: Final = ("value", "headers.element.value", f"{PREFIX}headers.element.value")
"""Columns of new tables: bounds of whole values prune no file, and would be copies of data outside of the data files.

Java's implementation of Iceberg refuses a property for a column that the table lacks.
"""

ATTEMPTS: Final = 8


def open_table(catalog: Catalog, options: TableOptions, kind: str) -> Table:
    """Loads the table of a topic, or creates it for values of the schema `kind`.

    Errors: OptionError, if it has another schema.
    """
    found = _existing(catalog, options.table)
    if found is None:
        schema = RAW_SCHEMA if kind == RAW else DECODED_SCHEMA
        found = _created(catalog, options.table, schema, {**PROPERTIES, SCHEMA: kind}, options.partition_by)
    known = found.properties.get(SCHEMA, kind)
    if known != kind:
        raise OptionError(f"table {options.table} has values of the schema {known}, not {kind}")
    wanted = RAW_SCHEMA if kind == RAW else DECODED_SCHEMA
    missing = [name for name in wanted.names if name not in found.schema().column_names]
    if missing:
        raise OptionError(f"table {options.table} lacks the column {missing[0]}, which the schema {kind} has")
    if SCHEMA not in found.properties:
        with found.transaction() as change:
            change.set_properties({SCHEMA: kind})
    return found


def open_dead_table(catalog: Catalog, options: TableOptions) -> Table:
    """Loads or creates the table of dead letters."""
    found = _existing(catalog, options.dead_table)
    return found or _created(catalog, options.dead_table, DEAD_SCHEMA, dict(PROPERTIES), "none")


def known_kind(catalog: Catalog, table: str) -> str | None:
    """Returns the schema of an existing table's values; None if it is not known."""
    found = _existing(catalog, table)
    return None if found is None else found.properties.get(SCHEMA)


def _existing(catalog: Catalog, name: str) -> Table | None:
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def _created(catalog: Catalog, name: str, schema: pa.Schema, properties: dict[str, str], partition_by: str) -> Table:
    """Creates a table. If another job has just created it, that one is returned."""
    from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415 - an extra

    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    counted = (column for column in WITHOUT_BOUNDS if column.partition(".")[0] in schema.names)
    properties |= {f"write.metadata.metrics.column.{column}": "counts" for column in counted}
    try:
        with catalog.create_table_transaction(name, schema, properties=properties) as change:
            if partition_by != "none":
                column = "timestamp" if "timestamp" in schema.names else f"{PREFIX}timestamp"
                with change.update_spec() as update:
                    update.add_field(column, partition_by)
    except TableAlreadyExistsError:
        log.info("table %s was created by another job", name)
    return catalog.load_table(name)


def add_columns(table: Table, columns: pa.Schema) -> None:
    """Adds columns, also within structs. If another job has added some of them meanwhile, only the others are added.

    Errors: CommitFailedException; ValidationError or ValueError, if another job has added them with other types.
    """
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra

    for attempt in range(ATTEMPTS):
        change = table.transaction()
        with change.update_schema() as update:
            update.union_by_name(columns)
        try:
            change.commit_transaction()
        except CommitFailedException:
            if attempt == ATTEMPTS - 1:
                raise
            table.refresh()
        else:
            return
