"""One of several log directories fails: what clients see, what continues, and when the broker stops.

Whole brokers on the simulated loop and disk; the same with real processes is in tests/chaos.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.broker.config.broker_config import BrokerConfig, load_config
from lowtide.broker.lifecycle.adoption import ADOPTION_WISH
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from lowtide.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.broker_simulation import DIRECTORY, HOST, PORT, TOPIC, Simulation
from lowtide.simulation.client import WireClient
from lowtide.simulation.load import PartitionLoad
from lowtide.simulation.memory_store import MemoryDisk
from lowtide.storage.checkpoint import CLEAN_SHUTDOWN_MARKER
from lowtide.storage.errors import StorageError
from tests.unit.storage.directory.test_kafka_metadata import batch, config, topic

SEED = 5
DISKS = (DIRECTORY, "/disk-two", "/disk-three")
PARTITIONS = 6


class SeveralDisks(Simulation):
    """A simulated broker with three log directories."""

    def config(self) -> BrokerConfig:
        settings = {
            "log.dirs": ",".join(DISKS),
            "listeners": f"PLAINTEXT://{HOST}:{PORT}",
            "auto.create.topics.enable": "false",
        }
        return load_config(settings=settings)

    async def begin(self) -> WireClient:
        """Start the broker, with a topic whose partitions are spread over the directories."""
        await self.start()
        client = await self.connect()
        assert await self.create(client, TOPIC, PARTITIONS) == ErrorCode.NONE
        for partition in range(PARTITIONS):
            assert await self.produce(client, TOPIC, partition) == ErrorCode.NONE
        return client

    async def stop(self) -> None:
        assert self.broker is not None
        assert self.node is not None
        await self.node.spawn(self.broker.stop(), name="stop")
        self.node.kill()
        self.filesystem.crash_process()

    async def create(self, client: WireClient, name: str, partitions: int) -> int:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        return int(
            (await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)).topics[0].error_code
        )

    async def produce(self, client: WireClient, topic: str, partition: int, *, producer_id: int = -1) -> int:
        batch = build_batch(
            [(1, None, b"value", ())],
            producer_id=producer_id,
            producer_epoch=min(producer_id, 0),
            base_sequence=min(producer_id, 0),
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        response = await client.request(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)
        return int(response.responses[0].partition_responses[0].error_code)

    async def directories(
        self, client: WireClient, topics: list[DescribableLogDirTopic] | None = None
    ) -> dict[str, dict[str, list[int]]]:
        """By directory, the partitions of each topic; a directory that is offline is left out."""
        response = await client.request(DescribeLogDirsRequest(topics=topics), 5)
        assert [row.log_dir for row in response.results] == list(DISKS)
        assert {row.error_code for row in response.results} <= {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
        return {
            row.log_dir: {
                topic.name: [partition.partition_index for partition in topic.partitions] for topic in row.topics
            }
            for row in response.results
            if row.error_code == ErrorCode.NONE
        }

    async def leaderless(self, client: WireClient, topic: str) -> list[int]:
        """The partitions that Metadata returns without a leader, and this broker as their offline replica."""
        [row] = [row for row in (await client.request(MetadataRequest(topics=None), 12)).topics if row.name == topic]
        for partition in row.partitions:
            is_offline = partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
            assert partition.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
            assert partition.leader_id == (-1 if is_offline else 0)
            assert (partition.offline_replicas, partition.isr_nodes) == (([0], []) if is_offline else ([], [0]))
        return [partition.partition_index for partition in row.partitions if partition.error_code != ErrorCode.NONE]


def simulated(main: Callable[[SeveralDisks], Coroutine[Any, Any, None]]) -> None:
    async def run(loop: SimulatedLoop) -> None:
        await main(SeveralDisks(loop, SEED, flush_each_append=False))

    run_simulation(run, SEED)


# A directory that fails while the broker runs


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_directory_that_fails_fails_its_partitions_and_no_others(operation: Any) -> None:
    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        before = await simulation.directories(client)
        assert [len(before[path][TOPIC]) for path in DISKS] == [2, 2, 2]
        lost = before[DISKS[1]][TOPIC]
        assert await simulation.leaderless(client, TOPIC) == []
        simulation.filesystem.fail_next(operation, errno.EIO, path_contains=DISKS[1])
        if operation == "sync":
            assert simulation.broker is not None
            simulation.broker.log_manager.flush(simulation.broker.log_manager.logs[TOPIC, lost[0]])
            while not simulation.broker.log_manager.directories.offline:
                await simulation.produce(client, TOPIC, before[DISKS[0]][TOPIC][0])
        for partition in range(PARTITIONS):
            expected = ErrorCode.KAFKA_STORAGE_ERROR if partition in lost else ErrorCode.NONE
            if partition == lost[1] or operation == "sync" or partition not in lost:
                continue
            assert await simulation.produce(client, TOPIC, partition) == expected
        for partition in range(PARTITIONS):
            expected = ErrorCode.KAFKA_STORAGE_ERROR if partition in lost else ErrorCode.NONE
            assert await simulation.produce(client, TOPIC, partition) == expected
        assert await simulation.leaderless(client, TOPIC) == lost
        del before[DISKS[1]]
        assert await simulation.directories(client) == before
        wanted = DescribeProducersRequest(
            topics=[DescribeProducersTopicRequest(name=TOPIC, partition_indexes=[*range(PARTITIONS)])]
        )
        rows = (await client.request(wanted, 0)).topics[0].partitions
        assert [row.partition_index for row in rows if row.error_code == ErrorCode.KAFKA_STORAGE_ERROR] == lost
        assert simulation.broker is not None
        assert not simulation.broker.failed
        await simulation.stop()
        await simulation.start()
        client = await simulation.connect()
        assert await simulation.leaderless(client, TOPIC) == []
        for partition in range(PARTITIONS):
            assert await simulation.produce(client, TOPIC, partition) == ErrorCode.NONE

    simulated(main)


def test_topics_are_created_and_deleted_while_a_directory_is_offline() -> None:
    """New partitions go to the others. The name of a log that cannot be removed is free, and the log never returns."""

    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        lost = (await simulation.directories(client))[DISKS[1]][TOPIC]
        simulation.filesystem.fail_next("write", errno.EIO, path_contains=DISKS[1])
        assert await simulation.produce(client, TOPIC, lost[0]) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await simulation.create(client, "other", 4) == ErrorCode.NONE
        assert await simulation.leaderless(client, "other") == []
        deleted = await client.request(DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=10_000), 5)
        assert deleted.responses[0].error_code == ErrorCode.NONE
        assert await simulation.create(client, TOPIC, PARTITIONS) == ErrorCode.NONE
        for partition in range(PARTITIONS):
            assert await simulation.produce(client, TOPIC, partition) == ErrorCode.NONE
        placed = await simulation.directories(client)
        assert sorted(placed) == sorted([DISKS[0], DISKS[2]])
        await simulation.stop()
        await simulation.start()
        client = await simulation.connect()
        placed[DISKS[1]] = {}
        again = await simulation.directories(client)
        assert {path: {name: sorted(rows) for name, rows in topics.items()} for path, topics in again.items()} == {
            path: {name: sorted(rows) for name, rows in topics.items()} for path, topics in placed.items()
        }
        assert await simulation.leaderless(client, TOPIC) == []

    simulated(main)


def test_the_broker_stops_when_the_directory_of_its_metadata_fails() -> None:
    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        [partition, *_] = (await simulation.directories(client))[DISKS[0]][TOPIC]
        simulation.filesystem.fail_next("write", errno.EIO, path_contains=DISKS[0])
        assert await simulation.produce(client, TOPIC, partition) == ErrorCode.KAFKA_STORAGE_ERROR
        assert simulation.broker is not None
        assert simulation.broker.failed
        await simulation.stop()
        assert [simulation.filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_MARKER}") for path in DISKS] == [
            False,
            True,
            True,
        ]

    simulated(main)


def test_the_broker_stops_when_its_metadata_store_fails() -> None:
    """The contents of its disk are unknown, so they are no basis for decisions."""

    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        simulation.disk.fail_next(applied=None)
        assert await simulation.create(client, "other", 1) == ErrorCode.REQUEST_TIMED_OUT
        await asyncio.sleep(2)
        assert simulation.broker is not None
        assert simulation.broker.failed
        await simulation.stop()
        assert all(simulation.filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_MARKER}") for path in DISKS)
        await simulation.start()
        client = await simulation.connect()
        assert await simulation.create(client, "other", 1) == ErrorCode.NONE

    simulated(main)


def test_a_new_log_refuses_appends_without_room_and_takes_them_when_there_is_some() -> None:
    """A full disk is no disk failure."""

    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        simulation.filesystem.fail_next("create", errno.ENOSPC, 9, path_contains="/wide-")
        assert await simulation.create(client, "wide", 4) == ErrorCode.NONE
        assert await simulation.leaderless(client, "wide") == []
        assert await simulation.produce(client, "wide", 0) == ErrorCode.KAFKA_STORAGE_ERROR
        simulation.filesystem.clear_faults()
        for partition in range(4):
            assert await simulation.produce(client, "wide", partition) == ErrorCode.NONE
        assert simulation.broker is not None
        assert not simulation.broker.log_manager.directories.offline

    simulated(main)


# A start with a directory that fails or is missing


def test_a_broker_starts_without_one_of_its_directories_and_re_creates_nothing() -> None:
    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        lost = (await simulation.directories(client))[DISKS[1]][TOPIC]
        await simulation.stop()
        simulation.filesystem.rename(DISKS[1], "/away")
        simulation.filesystem.make_directories(DISKS[1])
        for _ in range(2):
            await simulation.start()
            client = await simulation.connect()
            assert await simulation.leaderless(client, TOPIC) == lost
            assert DISKS[1] not in await simulation.directories(client)
            assert await simulation.produce(client, TOPIC, lost[0]) == ErrorCode.KAFKA_STORAGE_ERROR
            await simulation.stop()
        simulation.filesystem.remove_tree(DISKS[1])
        simulation.filesystem.rename("/away", DISKS[1])
        await simulation.start()
        client = await simulation.connect()
        assert await simulation.leaderless(client, TOPIC) == []
        assert (await simulation.directories(client))[DISKS[1]][TOPIC] == lost

    simulated(main)


def test_without_the_directory_of_the_metadata_nothing_starts() -> None:
    async def main(simulation: SeveralDisks) -> None:
        await simulation.begin()
        await simulation.stop()
        simulation.filesystem.fail_next("create", errno.EROFS, path_contains=f"{DISKS[0]}/.lowtide-write-check")
        with pytest.raises(StorageError, match=rf"^{DISKS[0]}: the log directory can't be written"):
            await simulation.start()
        assert simulation.node is not None
        simulation.node.kill()
        assert all(simulation.filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_MARKER}") for path in DISKS)
        await simulation.start()

    simulated(main)


# Metadata that were lost


def test_lost_metadata_refuse_the_start_unless_the_operator_says_otherwise() -> None:
    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        assert await simulation.produce(client, TOPIC, 0, producer_id=7) == ErrorCode.NONE
        await simulation.stop()
        simulation.disk = MemoryDisk()
        for _ in range(2):
            with pytest.raises(StorageError) as refused:
                await simulation.start()
            assert simulation.node is not None
            simulation.node.kill()
            sentence = str(refused.value)
            assert sentence.startswith(f"{DIRECTORY}/lowtide-metadata.sqlite: the metadata are missing or empty")
            assert f"create an empty file {DIRECTORY}/{ADOPTION_WISH}" in sentence
            assert all(simulation.filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_MARKER}") for path in DISKS)
        simulation.filesystem.write_bytes(f"{DIRECTORY}/{ADOPTION_WISH}", b"")
        await simulation.start()
        assert not simulation.filesystem.exists(f"{DIRECTORY}/{ADOPTION_WISH}"), "it counts once"
        client = await simulation.connect()
        assert await simulation.leaderless(client, TOPIC) == []
        for partition in range(PARTITIONS):
            assert await simulation.produce(client, TOPIC, partition) == ErrorCode.NONE

    simulated(main)


@pytest.mark.parametrize("operations", range(0, 60, 4))
def test_an_adoption_that_is_cut_off_goes_on_at_the_next_start(operations: int) -> None:
    """For any part of it that is in the metadata already."""

    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        for name in ("b", "c"):
            assert await simulation.create(client, name, 2) == ErrorCode.NONE
        await simulation.stop()
        simulation.disk = MemoryDisk()
        simulation.filesystem.write_bytes(f"{DIRECTORY}/{ADOPTION_WISH}", b"")
        kill = simulation.loop.call_later(operations / 1000, lambda: simulation.node and simulation.node.kill())
        try:
            await simulation.start()
            kill.cancel()
        except TimeoutError:
            simulation.end_life(power=False)
            await simulation.start()
        client = await simulation.connect()
        response = await client.request(MetadataRequest(topics=None), 12)
        assert sorted(row.name for row in response.topics) == ["b", "c", TOPIC]
        assert not simulation.filesystem.exists(f"{DIRECTORY}/{ADOPTION_WISH}")

    simulated(main)


# Directories that Kafka wrote


def test_a_compacted_topic_of_a_killed_kafka_keeps_its_policy_and_its_records() -> None:
    """Gaps that compaction leaves between segments are no damage, for any policy at loading."""

    async def main(simulation: SeveralDisks) -> None:
        filesystem = simulation.filesystem
        client = await simulation.begin()
        load = PartitionLoad("compacted", 0, simulation.connect, random.Random(SEED))
        await load.create_topic(client, {"internal.segment.bytes": "1000"})
        for _ in range(30):
            await load.produce(client, 2)
        assert simulation.broker is not None
        log = simulation.broker.log_manager.logs["compacted", 0]
        topic_id, end = log.topic_id, log.log_end_offset
        assert len(log.segments) > 5
        gone = [f"{log.directory}/{log.segments[number].base_offset:020}" for number in (2, 4)]
        await simulation.stop()
        for path in gone:
            for suffix in (".log", ".index", ".timeindex"):
                filesystem.unlink(path + suffix)
        for path in DISKS:
            ours = [
                name
                for name in filesystem.listdir(path)
                if name.startswith(("lowtide-", ".kafka", "log-begin", "recovery-point"))
            ]
            for name in ours:
                filesystem.unlink(f"{path}/{name}")
        filesystem.make_directories(f"{DISKS[2]}/__cluster_metadata-0")
        records = [
            topic("compacted", topic_id),
            config("compacted", "cleanup.policy", "compact"),
            config("compacted", "no.such.key", "1"),
        ]
        filesystem.write_bytes(f"{DISKS[2]}/__cluster_metadata-0/{0:020}.log", batch(0, records))
        simulation.disk = MemoryDisk()
        for _ in range(2):
            await simulation.start()
            log = simulation.broker.log_manager.logs["compacted", 0]
            assert (log.topic_id, log.log_end_offset) == (topic_id, end)
            assert log.config.cleanup_policy == {"compact"}
            image = simulation.broker.replicas.image
            assert image is not None
            assert image.topics["compacted"].configs == {"cleanup.policy": "compact"}
            assert sorted(image.topics) == ["compacted", TOPIC]
            simulation.end_life(power=False)

    simulated(main)


# DescribeLogDirs and DescribeProducers


def test_log_directories_are_described_as_asked() -> None:
    async def main(simulation: SeveralDisks) -> None:
        simulation.filesystem.capacity_bytes = None
        client = await simulation.begin()
        everything = await simulation.directories(client)
        assert await simulation.directories(client, []) == {key: {} for key in DISKS}
        wanted = [
            DescribableLogDirTopic(topic=TOPIC, partitions=[0, 0, 99]),
            DescribableLogDirTopic(topic=TOPIC, partitions=[0]),
            DescribableLogDirTopic(topic="unknown", partitions=[0]),
        ]
        found = await simulation.directories(client, wanted)
        assert found == {path: {TOPIC: [0]} if 0 in everything[path][TOPIC] else {} for path in DISKS}
        response = await client.request(DescribeLogDirsRequest(topics=None), 5)
        rows = [row for result in response.results for topic in result.topics for row in topic.partitions]
        assert {(row.offset_lag, row.is_future_key) for row in rows} == {(0, False)}
        assert len({row.partition_size for row in rows}) == 1
        assert rows[0].partition_size == len(build_batch([(1, None, b"value", ())]))
        assert {(result.total_bytes, result.is_cordoned) for result in response.results} == {(1 << 40, False)}
        for version in range(1, 5):
            older = await client.request(DescribeLogDirsRequest(topics=None), version)
            assert [result.topics for result in older.results] == [result.topics for result in response.results]
            assert {result.total_bytes for result in older.results} == ({1 << 40} if version >= 4 else {-1})

    simulated(main)


def test_producers_are_described_as_asked() -> None:
    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        assert await simulation.produce(client, TOPIC, 0, producer_id=7) == ErrorCode.NONE
        topics = [
            DescribeProducersTopicRequest(name=name, partition_indexes=partitions)
            for name, partitions in ((TOPIC, [0, 0, 1]), ("unknown", [0]), ("a b", [3]), (TOPIC, [1, 99]))
        ]
        response = await client.request(DescribeProducersRequest(topics=topics), 0)
        found = {
            (topic.name, row.partition_index): (
                row.error_code,
                row.error_message is not None,
                len(row.active_producers),
            )
            for topic in response.topics
            for row in topic.partitions
        }
        assert sum(len(topic.partitions) for topic in response.topics) == len(found) == 5, "each is returned once"
        assert found == {
            (TOPIC, 0): (ErrorCode.NONE, False, 1),
            (TOPIC, 1): (ErrorCode.NONE, False, 0),
            (TOPIC, 99): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False, 0),
            ("unknown", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True, 0),
            ("a b", 3): (ErrorCode.INVALID_TOPIC_EXCEPTION, True, 0),
        }
        [producer] = response.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence, producer.last_timestamp) == (
            7,
            0,
            0,
            1,
        )
        assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)

    simulated(main)


@pytest.mark.parametrize("path", ["lowtide-registration", "lowtide-log-dirs"])
def test_a_directory_that_fails_while_the_broker_starts_has_its_partitions_reported_as_offline(path: str) -> None:
    """The directory was loaded already, but its logs were not hosted yet."""

    async def main(simulation: SeveralDisks) -> None:
        client = await simulation.begin()
        lost = (await simulation.directories(client))[DISKS[1]][TOPIC]
        await simulation.stop()
        if path == "lowtide-log-dirs":
            simulation.filesystem.unlink(f"{DISKS[1]}/{path}")
        simulation.filesystem.fail_next("write", errno.EIO, path_contains=f"{DISKS[1]}/{path}")
        await simulation.start()
        client = await simulation.connect()
        assert await simulation.produce(client, TOPIC, lost[0]) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await simulation.leaderless(client, TOPIC) == lost

    simulated(main)


@pytest.mark.parametrize("path", ["lowtide-registration", "lowtide-log-dirs"])
def test_a_broker_whose_directories_fail_while_it_starts_serves_no_client(path: str) -> None:
    """The first one has the metadata, so it may not fail either."""

    async def main(simulation: SeveralDisks) -> None:
        await simulation.begin()
        await simulation.stop()
        if path == "lowtide-log-dirs":
            simulation.filesystem.unlink(f"{DISKS[0]}/{path}")
        simulation.filesystem.fail_next("write", errno.EIO, path_contains=f"{DISKS[0]}/{path}")
        with pytest.raises(StorageError, match="failed while the broker started"):
            await simulation.start()
        simulation.end_life(power=False)
        await simulation.start()
        assert await simulation.produce(await simulation.connect(), TOPIC, 0) == ErrorCode.NONE

    simulated(main)
