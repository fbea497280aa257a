"""Protects the metrics of deletes and lag: by reason, in seconds, and for partitions that other brokers lead."""

from __future__ import annotations

import asyncio

import pytest

from bench import request_path
from bench.request_path import RECORDS, TOPIC, World, commit, delete, produce
from lowtide.broker.metrics.remote_ends import INTERVAL_MS
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS
from lowtide.simulation.client import WireClient

from .scraping import scrape, simulate

LAG = {"consumergroup": "g", "topic": TOPIC, "partition": 0}


async def coordinator_of_g(world: World, client: WireClient) -> WireClient:
    """A client of the group's coordinator, which has groups already."""
    while (found := await client.request(FindCoordinatorRequest(key="g", key_type=0), 3)).error_code:
        await asyncio.sleep(0.1)
    machine = next(each for each in world.machines if each.broker_id == found.node_id)
    coordinator = await WireClient.connect(*machine.address)
    while (await coordinator.request(commit(1), 8)).topics[0].partitions[0].error_code:
        await asyncio.sleep(0.1)
    return coordinator


def test_a_delete_is_counted_by_its_reason_and_its_time() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        await client.request(delete(12), 2)
        after = await scrape(world.machines[0])
        assert after.since(before, "lowtide_deleted_records_total", topic=TOPIC, reason="request") == 12
        assert after.since(before, "lowtide_deleted_records_total", reason="request") == 12
        for reason in ("time", "size", "consumed", "compaction"):
            assert after.since(before, "lowtide_deleted_records_total", reason=reason) == 0
        for name in ("lowtide_delete_durable_seconds_count", "lowtide_delete_replicated_seconds_count"):
            assert after.since(before, name) == 1
        assert after.of("lowtide_deletes_waiting", stage="followers") == 0

    simulate(run)


def test_an_erasure_is_counted_with_what_it_wrote() -> None:
    async def run(world: World, client: WireClient) -> None:
        replicas = world.machines[0].broker.replicas
        log = replicas.partitions[TopicPartition(TOPIC, 0)].log
        directory = log.parent_directory
        before = await scrape(world.machines[0])
        request, offset = produce(1), log.log_end_offset + 1
        request.topic_data[0].partition_data[0].records = build_batch([(1, None, b"x", ()), (1, None, b"y", ())])
        await client.request(request, 9)
        await client.request(delete(offset), 2)
        topics = [EraseRecordsTopic(name=TOPIC, partitions=[EraseRecordsPartition(partition_index=0, offset=offset)])]
        answer = await client.request(EraseRecordsRequest(topics=topics, timeout_ms=10_000), 0)
        assert answer.topics[0].partitions[0].error_code == 0
        after = await scrape(world.machines[0])
        assert after.since(before, "lowtide_erased_segments_total", directory=directory) == 1
        assert (
            after.since(before, "lowtide_erased_written_bytes_total", directory=directory) == log.segments[0].size > 0
        )

    simulate(run)


def test_a_move_between_directories_is_counted_with_what_it_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_path, "SETTINGS", request_path.SETTINGS | {"log.dirs": "/a,/b"})

    async def run(world: World, client: WireClient) -> None:
        await client.request(produce(1), 9)
        replicas = world.machines[0].broker.replicas
        log = replicas.partitions[TopicPartition(TOPIC, 0)].log
        source, target = log.parent_directory, "/b" if log.parent_directory == "/a" else "/a"
        size, before = sum(segment.size for segment in log.segments), await scrape(world.machines[0])
        assert before.of("kafka_server_replicaalterlogdirsmanager_maxlag", clientId="ReplicaAlterLogDirs") == 0
        asked = AlterReplicaLogDir(path=target, topics=[AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])])
        replicas.log_manager.moves.limit(lambda: 0.0)
        answer = await client.request(AlterReplicaLogDirsRequest(dirs=[asked]), 2)
        assert answer.results[0].partitions[0].error_code == 0
        during = await scrape(world.machines[0])
        assert (
            during.of("lowtide_log_directory_moves", directory=target),
            during.of("lowtide_log_directory_moves", directory=source),
        ) == (1, 0)
        assert during.of("kafka_server_replicaalterlogdirsmanager_maxlag", clientId="ReplicaAlterLogDirs") > 0
        replicas.log_manager.moves.limit(lambda: float("inf"))
        while replicas.log_manager.moves.under_way():
            await asyncio.sleep(0.1)
        after = await scrape(world.machines[0])
        assert after.of("lowtide_log_directory_moves", directory=target) == 0
        for name, risen in (("done_total", 1), ("failed_total", 0), ("copied_bytes_total", size)):
            assert after.since(before, f"lowtide_log_directory_moves_{name}", directory=target) == risen
            assert after.since(before, f"lowtide_log_directory_moves_{name}", directory=source) == 0

    simulate(run)


def test_a_delete_that_waits_names_the_follower() -> None:
    async def run(world: World, client: WireClient) -> None:
        world.machines[2].pause()
        answer = client.send(delete(12), 2)
        await asyncio.sleep(1)
        page = await scrape(world.machines[0])
        assert page.of("lowtide_deletes_waiting", stage="followers") == 1
        assert page.of("lowtide_deletes_waiting_for_follower", broker=3) == 1
        assert page.of("lowtide_deletes_waiting_for_follower", broker=2) == 0
        assert page.of("lowtide_deletes_waiting_oldest_seconds") >= 1
        assert page.of("lowtide_replica_log_start_lag", topic=TOPIC, partition=0, broker=3) == 12
        assert page.of("lowtide_replica_log_start_lag_max", broker=3) == 12
        world.machines[2].resume()
        await answer
        page = await scrape(world.machines[0])
        assert page.of("lowtide_deletes_waiting_oldest_seconds") == 0
        assert page.of("lowtide_replica_log_start_lag_max", broker=3) == 0

    simulate(run, 3)


def test_the_lag_in_seconds_is_the_age_of_the_first_record_to_be_consumed() -> None:
    async def run(world: World, client: WireClient) -> None:
        await coordinator_of_g(world, client)
        page = await scrape(world.machines[0])
        end = page.of("kafka_topic_partition_current_offset", topic=TOPIC, partition=0)
        await client.request(commit(int(end)), 8)
        request = produce(1)
        now_ms = SIMULATION_WALL_START_MS + round(world.loop.time() * 1000)
        request.topic_data[0].partition_data[0].records = build_batch(
            [(now_ms, None, b"x", ()), (now_ms + 1, None, b"y", ())]
        )
        await client.request(request, 9)
        for slept_s in (99, 100):
            await asyncio.sleep(slept_s)
            page = await scrape(world.machines[0])
            assert page.of("kafka_consumergroup_lag", **LAG) == 2
            age_s = (SIMULATION_WALL_START_MS - now_ms) / 1000 + world.loop.time()
            assert page.of("lowtide_consumergroup_lag_seconds", **LAG) == pytest.approx(age_s, abs=0.1)
        end = page.of("kafka_topic_partition_current_offset", topic=TOPIC, partition=0)
        await client.request(commit(int(end)), 8)
        page = await scrape(world.machines[0])
        assert page.of("lowtide_consumergroup_lag_seconds", **LAG) == 0

    simulate(run)


def test_the_lag_in_partitions_that_other_brokers_lead_is_found_out() -> None:
    """Each is on a single broker, and the coordinator is one of three: it asks the leaders of the two others."""

    async def run(world: World, client: WireClient) -> None:
        names = {f"on-{machine.broker_id}": machine.broker_id for machine in world.machines}
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[broker_id])],
                configs=[],
            )
            for name, broker_id in names.items()
        ]
        await client.request(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
        for machine, name in zip(world.machines, names, strict=True):
            leader = await WireClient.connect(*machine.address)
            row = PartitionProduceData(index=0, records=RECORDS)
            for _ in range(7):
                await leader.request(
                    ProduceRequest(
                        acks=1, timeout_ms=1, topic_data=[TopicProduceData(name=name, partition_data=[row])]
                    ),
                    9,
                )
        coordinator = await coordinator_of_g(world, client)
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
        request = OffsetCommitRequest(
            group_id="g",
            member_id="",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=name, partitions=[row]) for name in names],
        )
        await coordinator.request(request, 8)
        for machine in world.machines:
            await scrape(machine)
        await asyncio.sleep(INTERVAL_MS / 1000)
        pages = [await scrape(machine) for machine in world.machines]
        for name in names:
            labels = {"consumergroup": "g", "topic": name}
            found = [
                page.of("kafka_consumergroup_lag", partition=0, **labels)
                for page in pages
                if page.has("kafka_consumergroup_lag", partition=0, **labels)
            ]
            assert found == [4], name

    simulate(run, 3)


def test_errors_are_counted_by_partition() -> None:
    async def run(world: World, client: WireClient) -> None:
        row = PartitionProduceData(index=0, records=RECORDS)
        await client.request(
            ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="no", partition_data=[row])]), 9
        )
        await client.request(produce(1), 9)
        page = await scrape(world.machines[0])
        assert (
            page.of("kafka_network_requestmetrics_errorspersec", request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION")
            == 1
        )

    simulate(run)
