"""A broker whose machine loses its power at any moment loses nothing that was promised to be on the disk.

Real file systems. The process ends, the page cache is gone, and of what the disk hadn't flushed any part is left
(`volatile_disk`). Then the file system recovers, the broker starts, and everything is read back: acknowledged records
of topics with `flush.messages=1`, and every acknowledged delete, also of topics that lose records. Run by `make
power-cuts`, as root: CUTS=500 SEED=7.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.simulation.history import HistoryError
from lowtide.simulation.load import LATEST, LIST_OFFSETS_VERSION
from tests.campaign.struck import strike
from tests.chaos.loaded_broker import LIFE_S, LoadedBroker

from .powered_disk import PoweredDisk, missing

pytestmark = pytest.mark.power
CUTS = int(os.environ.get("CUTS", "20"))
SEED = int(os.environ.get("SEED", "7"))
KINDS = ("ext4", "xfs")
FLUSHED = {"flush.messages": "1"}
TOPICS = {
    "removed-at-once": {"internal.segment.bytes": "4000", "index.interval.bytes": "500", "file.delete.delay.ms": "0"}
    | FLUSHED,
    "removed-later": {"internal.segment.bytes": "9000"} | FLUSHED,
    "punched": FLUSHED,
    "unflushed": {"internal.segment.bytes": "9000"},
}
_WRITE = 2


class CutBroker(LoadedBroker):
    """A broker on a disk that loses its power."""

    def __init__(self, disk: PoweredDisk, seed: int) -> None:
        super().__init__(disk.path / "log", seed, rounds=CUTS, topics=TOPICS)
        self.disk = disk

    def cut(self) -> None:
        """The power goes, and comes back.

        Some of what is in the page cache has reached the disk's cache before, as it does in time.
        """
        share = self.random.choice((0.0, 0.3, 1.0))
        for path in sorted(self.disk.path.rglob("*")):
            if path.is_file() and self.random.random() < share:
                write_back(path)
        self.disk.cut()
        strike("power cut of a disk")
        self.disk.switch_on()

    async def allow_losses(self) -> None:
        """The records left in the log of a topic without flushes are the expected ones from now on."""
        client = await self.process.connect()
        for load in self.loads:
            if load.topic == "unflushed":
                row = ListOffsetsPartition(partition_index=load.partition, timestamp=LATEST)
                topic = ListOffsetsTopic(name=load.topic, partitions=[row])
                answer = await client.request(
                    ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), LIST_OFFSETS_VERSION
                )
                load.history.on_records_may_be_lost(answer.topics[0].partitions[0].offset)
        client.close()


def write_back(path: Path) -> None:
    """Writes the file's dirty pages to the device, without a flush."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)
    finally:
        os.close(descriptor)


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> PoweredDisk:
    kind = request.param
    reason = missing(kind)
    assert reason is None, reason
    return PoweredDisk(tmp_path, kind, SEED)


async def test_nothing_promised_is_lost_over_many_power_cuts(disk: PoweredDisk) -> None:
    """D1, D7, D10, D12, R1 to R4 and S1; topics keep their ids; a start after a power cut reports no error."""
    with disk:
        broker = CutBroker(disk, SEED)
        await broker.start()
        try:
            await broker.create_topics()
            topic_ids = await broker.topic_ids()
            for number in range(CUTS):
                await broker.work_until_killed(broker.random.uniform(*LIFE_S), is_last=number == CUTS - 1)
                assert not broker.process.faults, f"in life {number}"
                broker.cut()
                if broker.random.random() < 0.25:
                    await broker.kill_while_starting()
                    broker.cut()
                await broker.start()
                assert await broker.topic_ids() == topic_ids, f"in life {number + 1}"
                await broker.allow_losses()
                await broker.read_back()
            assert broker.has_worked(), broker.counts()
            assert disk.lost > 0, "no power cut found anything that wasn't flushed"
        finally:
            await broker.process.kill()
    print(f"{disk.lost:,} units weren't flushed, {disk.kept:,} of them survived; {broker.counts()}")


async def test_the_checker_detects_a_disk_that_lies(disk: PoweredDisk) -> None:
    """The other test can fail: on a disk that answers a flush and does nothing, acknowledged records are gone."""
    with disk:
        broker = CutBroker(disk, SEED)
        await broker.start()
        try:
            await broker.create_topics()
            os.sync()
            disk.lie()
            client = await broker.process.connect()
            await broker.loads[0].produce(client, 3)
            assert broker.loads[0].counts["produced"] == 3
            client.close()
            await broker.process.kill()
            broker.cut()
            await broker.start()
            with pytest.raises(HistoryError, match="ends at 0, 3 was reached"):
                await broker.read_back()
        finally:
            await broker.process.kill()
