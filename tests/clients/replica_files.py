"""Looks for bytes in the files of all brokers of a cluster, as they lie there and decompressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.testing.cluster import LowtideCluster

BATCH_BYTES_MAX = 1 << 24


def files_with(cluster: LowtideCluster, marker: bytes, folders: str = "*") -> list[str]:
    """Returns the files below folders of some names that have these bytes, as they lie there or in a record.

    If a file is renamed or removed meanwhile, all are read again.
    """
    while True:
        try:
            return _files_with(cluster, marker, folders)
        except FileNotFoundError:
            continue


def _files_with(cluster: LowtideCluster, marker: bytes, folders: str) -> list[str]:
    found = []
    for path in sorted(Path(cluster.data_directory).rglob(f"{folders}/*")):
        content = path.read_bytes() if path.is_file() else b""
        if marker in content or (".log" in path.name and any(marker in each for each in _contents(content))):
            found.append(str(path.relative_to(cluster.data_directory)))
    return found


def _contents(content: bytes) -> Iterator[bytes]:
    for record in _records(content):
        yield record.key or b""
        yield record.value or b""
        yield from (value or b"" for _, value in record.headers)


def _records(content: bytes) -> Iterator[Any]:
    for position, header in iterate_batches(content):
        if not header.is_control and header.record_count:
            yield from iterate_records(content[position : position + header.size_bytes], max_bytes=BATCH_BYTES_MAX)
