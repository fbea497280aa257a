"""Three broker processes with real files: soon after a delete is acknowledged no file of any replica has a byte of what was deleted.

Also not in the segment that is written. Every record that is kept is still there, also after all brokers were killed while they punched.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.testing.etcd import missing

from .cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "gone"
MARKER = b"-this-was-deleted-"
KEPT = b"-this-is-kept-"
ROUNDS = 3
BATCHES = 30


def found(cluster: ClusterProcesses, words: bytes) -> list[str]:
    """The files of all brokers that have these bytes."""
    files = (path for directory in cluster.directories.values() for path in sorted(directory.rglob("*")) if path.is_file())
    return [str(path.relative_to(cluster.directory)) for path in files if words in path.read_bytes()]


async def leader_of(cluster: ClusterProcesses) -> int:
    return int((await cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)).leader_id)


async def test_no_file_of_any_replica_has_what_was_deleted(tmp_path: Path) -> None:
    async with ClusterProcesses(tmp_path) as cluster:
        await cluster.create_topic(TOPIC, [cluster.ids])
        start, end = 0, 0
        for number in range(ROUNDS):
            leader = await leader_of(cluster)
            for values in ([MARKER * 50] * 5,) * BATCHES:
                row = await cluster.produce(leader, TOPIC, values)
                assert row.error_code == ErrorCode.NONE
                end = row.base_offset + 5
            start = end
            for _ in range(BATCHES):
                end = (await cluster.produce(leader, TOPIC, [KEPT * 50])).base_offset + 1
            assert len(found(cluster, MARKER)) == 3
            row = await cluster.delete(leader, TOPIC, start)
            assert (row.error_code, row.low_watermark) == (ErrorCode.NONE, start)
            if number:
                await cluster.kill(*cluster.ids)
                await cluster.restart(*cluster.ids)
                await cluster.until_in_sync(TOPIC)

            async def is_gone() -> bool:
                return found(cluster, MARKER) == []

            await cluster.until("no file has a deleted record", is_gone)
            leader = await leader_of(cluster)
            assert await cluster.bounds(leader, TOPIC) == (start, end)
            records: dict[int, bytes] = {}
            while start + len(records) < end:
                _, more = await cluster.fetch(leader, TOPIC, start + len(records))
                records |= more
            assert records == dict.fromkeys(range(start, end), KEPT * 50)
        cluster.check_no_faults()
