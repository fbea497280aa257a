"""Jobs that write a table in this process, without Spark, and what is in the table then."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

from pyiceberg.catalog import load_catalog

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.batch_reader import shared_cluster
from lowtide.pipeline.cluster import BlockingCluster
from lowtide.pipeline.table.job import TableJob
from lowtide.pipeline.table.options import TableOptions
from lowtide.pipeline.table.schemas.decoding import (
    SchemaSettings,
)
from lowtide.pipeline.table.writing import run_tasks

TABLE = "db.numbers"


class LocalJobs:
    """Jobs of one topic and one table. Each begins as a new process would: with nothing but the catalog."""

    def __init__(
        self, client: str | dict[str, object], topic: str, folder: Path, catalog: Mapping[str, str] | None = None
    ) -> None:
        """`client` is an address, or the settings of a client. The catalog is by default a SQLite file."""
        self.topic, self.folder = topic, folder
        self.bootstrap = client if isinstance(client, str) else str(client["bootstrap.servers"])
        local = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        self.catalog = load_catalog("default", **(local if catalog is None else catalog))
        self.cluster = BlockingCluster(
            ClientSettings.of({"bootstrap.servers": client} if isinstance(client, str) else client)
        )

    def close(self) -> None:
        self.cluster.close()
        shared_cluster(self.cluster.settings).close()
        self.catalog.close()

    def job(self, kind: str = "raw", *, meanwhile: Callable[[], object] | None = None, run=run_tasks, **options):
        """`meanwhile` is called once, after the tasks of the first round and before its commit. `run` runs tasks."""
        calls = [] if meanwhile is None else [meanwhile]

        def run_all(tasks):
            results = list(run(pickle.loads(pickle.dumps(list(tasks)))))
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
