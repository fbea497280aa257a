"""Jobs that write a table in this process, without Spark, and what is in the table then."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.batch_reader import shared_cluster
from lowtide.pipeline.cluster import BlockingCluster
from lowtide.pipeline.table.job import TableJob
from lowtide.pipeline.table.options import TableOptions
from lowtide.pipeline.table.schemas.decoding import (
    DEAD_SCHEMA,
    DECODED_SCHEMA,
    PREFIX,
    RECORD_NAMES,
    Decoded,
    SchemaSettings,
    arrow_schema_of,
)
from lowtide.pipeline.table.writing import run_tasks

TABLE = "db.numbers"


class LocalJobs:
    """Jobs of one topic and one table. Each begins as a new process would: with nothing but the catalog."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        self.bootstrap, self.topic, self.folder = bootstrap, topic, folder
        self.catalog = load_catalog(
            "default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
        )
        self.cluster = BlockingCluster(ClientSettings.of({"bootstrap.servers": bootstrap}))

    def close(self) -> None:
        self.cluster.close()
        shared_cluster(self.cluster.settings).close()
        self.catalog.close()

    def job(self, kind: str = "raw", *, meanwhile: Callable[[], object] | None = None, **options) -> TableJob:
        """`meanwhile` is called once, after the tasks of the first round and before its commit."""
        calls = [] if meanwhile is None else [meanwhile]

        def run_all(tasks):
            results = list(run_tasks(pickle.loads(pickle.dumps(list(tasks)))))
            if calls:
                calls.pop()()
            return pickle.loads(pickle.dumps(results))

        chosen = TableOptions(
            client=self.cluster.settings, topic=self.topic, table=TABLE, schema=SchemaSettings(kind=kind), **options
        )
        return TableJob(chosen, self.catalog, self.cluster, run_all, 2)

    def table(self, name: str = TABLE):
        return self.catalog.load_table(name)

    def offsets(self, name: str = TABLE, prefix: str = "") -> list[tuple[int, int]]:
        names = (f"{prefix}partition", f"{prefix}offset")
        rows = self.table(name).scan(selected_fields=names).to_arrow()
        return sorted(zip(*(rows.column(name).to_pylist() for name in names), strict=True))

    def data_files(self) -> set[str]:
        """The Parquet files on the disk."""
        return {str(path) for path in self.folder.glob("warehouse/**/*.parquet")}

    def known_files(self) -> set[str]:
        """Those in the newest snapshots."""
        tables = [self.catalog.load_table(name) for name in self.catalog.list_tables("db")]
        files = [one.file.file_path for table in tables for one in table.scan().plan_files()]
        return {path.removeprefix("file://") for path in files}


class SmallJsonDecoder:
    """Knows whole numbers and texts of one level. Stands for the decoders of schemas that have dead letters."""

    def __init__(self, schema: pa.Schema) -> None:
        self.kinds = {one.name: one.type for one in schema if one.name not in DECODED_SCHEMA.names}

    def decode(self, records: pa.RecordBatch) -> Decoded:
        rows, dead, new = [], [], {}
        for record in records.to_pylist():
            base = {name: record[name] for name in RECORD_NAMES}
            try:
                value = json.loads(record["value"])
                kinds = {name: pa.int64() if isinstance(one, int) else pa.string() for name, one in value.items()}
                new.update({name: kind for name, kind in kinds.items() if name not in self.kinds and name not in new})
                error = next((name for name, kind in kinds.items() if (self.kinds | new)[name] != kind), None)
            except ValueError as reason:
                error = str(reason)
            if error is None:
                rows.append({PREFIX + name: one for name, one in base.items()} | value)
            else:
                dead.append(base | {"value": record["value"], "error": error})
        if new:
            return Decoded(rows=None, new_columns=pa.schema(list(new.items())))
        schema = pa.schema([*DECODED_SCHEMA, *self.kinds.items()])
        return Decoded(
            rows=pa.Table.from_pylist(rows, schema), dead=pa.Table.from_pylist(dead, DEAD_SCHEMA) if dead else None
        )


def small_json_decoder(_settings, table_schema) -> SmallJsonDecoder:
    return SmallJsonDecoder(arrow_schema_of(table_schema))
