"""Position and equality deletes, as other engines commit them: PyIceberg reads the former, and writes neither."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record


class DeleteManifestWriter(ManifestWriterV2):  # type: ignore[misc]  # mypy reads nothing of PyIceberg
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddDeletes(_FastAppendFiles):  # type: ignore[misc]
    delete_file: DataFile

    def _manifests(self) -> list[ManifestFile]:
        writer = DeleteManifestWriter(self.spec(0), self.schema(), self.new_manifest_output(), self.snapshot_id, "null")
        with writer:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=self.delete_file))
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_positions(table, path: str, positions: list[int]) -> None:
    """Commits a snapshot in which rows of a data file are deleted by their position."""
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    _commit(
        table,
        pa.table({"file_path": [path] * len(positions), "pos": positions}, schema=schema),
        DataFileContent.POSITION_DELETES,
    )


def delete_equal(table, key: bytes) -> None:
    """Commits a snapshot in which the rows with a key are deleted, wherever they are."""
    identity = table.schema().find_field("key").field_id
    schema = pa.schema([pa.field("key", pa.binary(), metadata={"PARQUET:field_id": str(identity)})])
    _commit(table, pa.table({"key": [key]}, schema=schema), DataFileContent.EQUALITY_DELETES)


def _commit(table, rows: pa.Table, content: DataFileContent) -> None:
    path = f"{table.location()}/data/deletes-{uuid4()}.parquet"
    with table.io.new_output(path).create() as stream:
        pq.write_table(rows, stream)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=len(table.io.new_input(path)),
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = 0
    transaction = Transaction(table.refresh())
    producer = _AddDeletes(Operation.OVERWRITE, transaction, table.io)
    producer.delete_file = file
    producer.append_data_file(file)  # for the summary
    producer.commit()
    transaction.commit_transaction()
    table.refresh()
