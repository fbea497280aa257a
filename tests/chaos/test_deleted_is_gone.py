"""Three broker processes with real files: soon after a delete is acknowledged no file of any replica has a byte of what
was deleted.

Also not in the segment that is written. Every record that is kept is still there, also after all brokers were killed
while they punched.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from tests.etcd import missing

from .cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "gone"
MARKER = b"-this-was-deleted-"
KEPT = b"-this-is-kept-"
ROUNDS = 2
BATCHES = 30


def found(cluster: ClusterProcesses, words: bytes) -> list[str]:
    """Returns the files of all brokers that have these bytes.

    A file that a broker renames or removes meanwhile raises OSError.
    """
    files = (
        path for directory in cluster.directories.values() for path in sorted(directory.rglob("*")) if path.is_file()
    )
    return [str(path.relative_to(cluster.directory)) for path in files if words in path.read_bytes()]


async def test_no_file_of_any_replica_has_what_was_deleted(tmp_path: Path) -> None:
    async with ClusterProcesses(tmp_path) as cluster:
        await cluster.create_topic(TOPIC, [cluster.ids])
        start, end = 0, 0
        for number in range(ROUNDS):
            for _ in range(BATCHES):
                end = await cluster.append(TOPIC, [MARKER * 50] * 5) + 5
            start = end
            for _ in range(BATCHES):
                end = await cluster.append(TOPIC, [KEPT * 50]) + 1

            async def is_on_all() -> bool:
                return len(found(cluster, MARKER)) == len(cluster.ids)

            await cluster.until("each replica has the records", is_on_all)
            await cluster.acknowledged(TOPIC, lambda leader, start=start: cluster.delete(leader, TOPIC, start))  # type: ignore[misc]
            if number:
                await cluster.kill(*cluster.ids)
                await cluster.restart(*cluster.ids)
                await cluster.until_in_sync(TOPIC)

            async def is_gone() -> bool:
                return found(cluster, MARKER) == []

            await cluster.until("no file has a deleted record", is_gone)

            async def are_kept(start: int = start, end: int = end) -> bool:
                leader = (await cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)).leader_id
                bounds = await cluster.bounds(leader, TOPIC)
                if bounds == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    return False
                assert bounds == (start, end)
                records: dict[int, bytes] = {}
                while start + len(records) < end:
                    row, more = await cluster.fetch(leader, TOPIC, start + len(records))
                    if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                        return False
                    assert more, row
                    records |= more
                assert records == dict.fromkeys(range(start, end), KEPT * 50)
                return True

            await cluster.until("the leader has all that is kept", are_kept)
        cluster.check_no_faults()
