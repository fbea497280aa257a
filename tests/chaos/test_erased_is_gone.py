"""Three broker processes are killed again and again while they erase: no live record is lost, and none that was deleted
is in any file.

The batches straddle each log start, and are read back from each replica's own files too.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Collection
from pathlib import Path

import pytest

from lowtide.admin import AdminClient, DeleteRecordsError, ErasedRecords, TopicPartition
from lowtide.admin.errors import DeadlineExceededError
from tests.etcd import missing

from .cluster_processes import ClusterProcesses

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

TOPIC = "erased"
ROUNDS = int(os.environ.get("ROUNDS", "2"))
BATCHES, PER_BATCH = 12, 7
SEED = int(os.environ.get("SEED", "1"))


def value_of(offset: int) -> bytes:
    return b"-record-%09d-" % offset + b"." * 300


def leftovers(cluster: ClusterProcesses, gone: Collection[bytes]) -> list[str]:
    """Returns the files of all brokers that have a record which stood below the log start only.

    Brokers run, and give files other names: then it is looked again.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return _leftovers(cluster, gone)


def _leftovers(cluster: ClusterProcesses, gone: Collection[bytes]) -> list[str]:
    found = []
    for directory in cluster.directories.values():
        for path in sorted(directory.rglob(f"{TOPIC}-0/*")):
            content = path.read_bytes()
            if any(value in content for value in gone):
                found.append(str(path.relative_to(cluster.directory)))
    return found


async def leader_of(cluster: ClusterProcesses) -> int:
    return int((await cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)).leader_id)


async def test_brokers_are_killed_while_they_erase(tmp_path: Path) -> None:
    choice = random.Random(SEED)
    partition = TopicPartition(TOPIC, 0)
    async with ClusterProcesses(tmp_path) as cluster:
        await cluster.create_topic(TOPIC, [cluster.ids])
        start, end, written = 0, 0, dict[int, bytes]()
        for _ in range(ROUNDS):
            for _ in range(BATCHES):
                values = [value_of(end + number) for number in range(PER_BATCH)]
                base = await cluster.append(TOPIC, values)
                # A leader that loses its lease refuses what it has appended; if that stays, it stands twice.
                assert base in range(end, end + 20 * PER_BATCH, PER_BATCH), (base, end)
                while end <= base:
                    written |= dict(enumerate(values, end))
                    end += PER_BATCH
            start = choice.randrange(start + 1, end)
            await cluster.acknowledged(TOPIC, lambda leader, start=start: cluster.delete(leader, TOPIC, start))  # type: ignore[misc]
            async with AdminClient(cluster.bootstrap) as admin:
                with contextlib.suppress(DeadlineExceededError):  # On a busy machine no broker may answer so soon.
                    erasing = await admin.delete_records(
                        {partition: start}, erase=True, timeout=choice.choice((0.05, 0.2, 0.5))
                    )
                    # An error may say that the leader has deleted; a delete without an erasure is no success here.
                    assert isinstance(erasing[partition], ErasedRecords | DeleteRecordsError), erasing
            await cluster.kill(*cluster.ids)
            await cluster.restart(*cluster.ids)
            await cluster.until_in_sync(TOPIC)
            async with AdminClient(cluster.bootstrap) as admin:
                erased = (await admin.delete_records({partition: start}, erase=True, timeout=60))[partition]
            assert isinstance(erased, ErasedRecords), erased
            assert (sorted(erased.erased_by), erased.not_erased_by) == (sorted(cluster.ids), {})
            kept = {offset: value for offset, value in written.items() if offset >= start}
            assert leftovers(cluster, set(written.values()) - set(kept.values())) == []
            leader = await leader_of(cluster)
            assert await cluster.bounds(leader, TOPIC) == (start, end)
            records: dict[int, bytes] = {}
            while start + len(records) < end:
                _, more = await cluster.fetch(leader, TOPIC, start + len(records))
                assert min(more) >= start, "a fetch carries a deleted record"
                records |= more
            assert records == kept
        cluster.check_no_faults()
