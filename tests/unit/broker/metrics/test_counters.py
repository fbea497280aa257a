"""Protects the values of metrics: each changes by the exact amount at its event, and at no other."""

from __future__ import annotations

import asyncio

from bench.request_path import RECORDS, TOPIC, World, commit, delete, fetch, produce
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.fetch import FetchRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import TopicPartition
from lowtide.simulation.client import WireClient

from .scraping import scrape, simulate

TRAFFIC = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_"
KEY = {"topic": TOPIC, "partition": 0}
LAG = {"consumergroup": "g", **KEY}


def test_produced_records_are_counted_for_their_topic_and_for_all() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        for _ in range(3):
            await client.request(produce(1), 9)
        after = await scrape(world.machines[0])
        for labels in ({"topic": TOPIC}, {}):
            assert after.since(before, f"{TRAFFIC}messagesin_total", **labels) == 3
            assert after.since(before, f"{TRAFFIC}bytesin_total", **labels) == 3 * len(RECORDS)
            assert after.since(before, f"{TRAFFIC}totalproducerequests_total", **labels) == 3
            assert after.since(before, f"{TRAFFIC}failedproducerequests_total", **labels) == 0
        assert after.since(before, "kafka_log_log_logendoffset", **KEY) == 3
        assert after.since(before, "kafka_topic_partition_current_offset", **KEY) == 3
        assert after.since(before, "kafka_log_log_size", **KEY) == 3 * len(RECORDS)

    simulate(run)


def test_sent_records_are_counted_when_they_are_sent() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        answer = await client.request(fetch(), 11)
        sent = len(answer.responses[0].partitions[0].records)
        assert sent
        after = await scrape(world.machines[0])
        for labels in ({"topic": TOPIC}, {}):
            assert after.since(before, f"{TRAFFIC}bytesout_total", **labels) == sent
            assert after.since(before, f"{TRAFFIC}totalfetchrequests_total", **labels) == 1
        assert after.since(before, f"{TRAFFIC}replicationbytesout_total") == 0

    simulate(run)


def test_a_refused_batch_is_a_failed_request_unless_its_client_is_at_fault() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        damaged = bytearray(RECORDS)
        damaged[-1] ^= 1
        assert await refused(client, bytes(damaged)) == ErrorCode.CORRUPT_MESSAGE
        after = await scrape(world.machines[0])
        assert after.since(before, f"{TRAFFIC}failedproducerequests_total", topic=TOPIC) == 0
        assert await refused(client, RECORDS + RECORDS) == ErrorCode.INVALID_RECORD
        after = await scrape(world.machines[0])
        for labels in ({"topic": TOPIC}, {}):
            assert after.since(before, f"{TRAFFIC}failedproducerequests_total", **labels) == 1
            assert after.since(before, f"{TRAFFIC}totalproducerequests_total", **labels) == 2
            assert after.since(before, f"{TRAFFIC}messagesin_total", **labels) == 0

    simulate(run)


async def refused(client: WireClient, records: bytes) -> int:
    rows = [PartitionProduceData(index=0, records=records)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=TOPIC, partition_data=rows)])
    answer = await client.request(request, 9)
    return answer.responses[0].partition_responses[0].error_code


def test_a_topic_that_does_not_exist_gets_no_series() -> None:
    async def run(world: World, client: WireClient) -> None:
        rows = [PartitionProduceData(index=0, records=RECORDS)]
        await client.request(
            ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="no", partition_data=rows)]), 9
        )
        request: FetchRequest = fetch()
        request.topics[0].topic = "no"
        await client.request(request, 11)
        page = await scrape(world.machines[0])
        assert not [labels for _, labels in page if ("topic", "no") in labels]

    simulate(run)


def test_the_lag_is_that_of_records_that_can_be_read() -> None:
    """A delete above the committed offset reduces the lag; without a commit the lag is not 0."""

    async def run(world: World, client: WireClient) -> None:
        while (await client.request(FindCoordinatorRequest(key="g", key_type=0), 3)).error_code:
            pass
        while (await client.request(commit(5), 8)).topics[0].partitions[0].error_code:
            pass
        page = await scrape(world.machines[0])
        end = page.of("kafka_topic_partition_current_offset", **KEY)
        assert page.of("kafka_consumergroup_current_offset", **LAG) == 5
        assert page.of("kafka_consumergroup_lag", **LAG) == end - 5
        assert page.of("kafka_consumergroup_lag_sum", consumergroup="g", topic=TOPIC) == end - 5
        await client.request(delete(12), 2)
        page = await scrape(world.machines[0])
        assert page.of("kafka_topic_partition_oldest_offset", **KEY) == 12
        assert page.of("kafka_consumergroup_lag", **LAG) == end - 12
        await client.request(commit(int(end)), 8)
        page = await scrape(world.machines[0])
        assert page.of("kafka_consumergroup_lag", **LAG) == 0

    simulate(run)


def test_of_three_brokers_each_partition_is_shown_once() -> None:
    """A sum over all brokers counts nothing twice."""

    async def run(world: World, client: WireClient) -> None:
        before = [await scrape(machine) for machine in world.machines]
        await client.request(produce(-1), 9)
        pages = [await scrape(machine) for machine in world.machines]
        for name in (
            "kafka_topic_partition_current_offset",
            "kafka_topic_partition_in_sync_replica",
            "kafka_topic_partition_under_replicated_partition",
            "kafka_cluster_partition_replicascount",
        ):
            assert sum(page.has(name, **KEY) for page in pages) == 1, name
        assert sum(page.has("kafka_log_log_size", **KEY) for page in pages) == 3
        for name in ("kafka_brokers",):
            assert [page.of(name) for page in pages if page.has(name)] == [3]
        assert sum(page.of("kafka_controller_kafkacontroller_activecontrollercount") for page in pages) == 1
        assert sum(page.of("kafka_controller_kafkacontroller_offlinepartitionscount") for page in pages) == 0
        rises = [after.since(at, f"{TRAFFIC}replicationbytesin_total") for at, after in zip(before, pages, strict=True)]
        assert rises == [0, len(RECORDS), len(RECORDS)]
        assert pages[0].since(before[0], f"{TRAFFIC}replicationbytesout_total") == 2 * len(RECORDS)
        assert pages[0].since(before[0], f"{TRAFFIC}bytesout_total") == 0

    simulate(run, 3)


def test_records_are_counted_by_who_led_when_they_were_appended() -> None:
    """Records are counted by offsets: those of earlier leaderships stay counted, replicated ones are not counted."""

    async def run(world: World, client: WireClient) -> None:
        before = [await scrape(machine) for machine in world.machines]
        for _ in range(3):
            await client.request(produce(-1), 9)
        world.machines[0].kill()
        while led_by(world, 1) < 0:
            await asyncio.sleep(0.1)
        leader = world.machines[led_by(world, 1)]
        other = await WireClient.connect(*leader.address)
        while (await other.request(produce(1), 9)).responses[0].partition_responses[0].error_code:
            await asyncio.sleep(0.1)
        after = await scrape(leader)
        since = after.since(before[world.machines.index(leader)], f"{TRAFFIC}messagesin_total", topic=TOPIC)
        assert since == 1

    simulate(run, 3)


def led_by(world: World, first: int) -> int:
    """Which of the brokers from `first` on leads the topic; -1 for none."""
    for number, machine in enumerate(world.machines[first:], first):
        assert machine.broker is not None
        partition = (
            machine.broker.replicas.partitions.get(TopicPartition(TOPIC, 0))
            if machine.broker.replicas is not None
            else None
        )
        if partition is not None and partition.is_leader:
            return number
    return -1


def test_a_deleted_topic_stays_counted() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        await client.request(produce(1), 9)
        deleted = await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=10_000), 6)
        assert not deleted.responses[0].error_code
        after = await scrape(world.machines[0])
        assert after.since(before, f"{TRAFFIC}messagesin_total") == 1
        assert not after.has(f"{TRAFFIC}messagesin_total", topic=TOPIC)

    simulate(run)


def test_errors_of_every_api_are_counted() -> None:
    async def run(world: World, client: WireClient) -> None:
        before = await scrape(world.machines[0])
        unknown = [DeleteRecordsPartition(partition_index=number, offset=0) for number in (7, 8)]
        await client.request(
            DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="no", partitions=unknown)], timeout_ms=10), 2
        )
        await client.request(HeartbeatRequest(group_id="g", generation_id=1, member_id="no"), 3)
        request = fetch()
        request.session_id, request.session_epoch = 77, 5
        await client.request(request, 11)
        await client.request(produce(1), 9)
        after = await scrape(world.machines[0])
        counted = {
            (dict(labels)["request"], dict(labels)["error"]): value - before.get((name, labels), 0)
            for (name, labels), value in after.items()
            if name == f"{REQUESTS}errorspersec" and value > before.get((name, labels), 0)
        }
        assert counted == {
            ("DeleteRecords", "UNKNOWN_TOPIC_OR_PARTITION"): 2,
            ("Heartbeat", "NOT_COORDINATOR"): 1,
            ("Fetch", "FETCH_SESSION_ID_NOT_FOUND"): 1,
        }

    simulate(run)


def test_who_has_a_quota_has_series_of_its_use() -> None:
    async def run(world: World, client: WireClient) -> None:
        assert not any(name.startswith("kafka_server_produce_") for name in (await scrape(world.machines[0])).names())
        entry = AlterClientQuotasEntry(entity=[AlteredQuotaEntity(entity_type="user", entity_name=None)], ops=[])
        entry.ops.append(AlterClientQuotasOperation(key="producer_byte_rate", value=1.0, remove=False))
        answer = await client.request(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)
        assert [row.error_code for row in answer.entries] == [ErrorCode.NONE]
        other = await WireClient.connect(*world.machines[0].address)
        throttle_ms = (await other.request(produce(1), 9)).throttle_time_ms
        assert throttle_ms
        page = await scrape(world.machines[0])
        assert page.of("kafka_server_produce_throttle_time", user="ANONYMOUS", client_id="") == throttle_ms
        assert 0 < page.of("kafka_server_produce_byte_rate", user="ANONYMOUS", client_id="") <= len(RECORDS)
        assert not page.has("kafka_server_fetch_byte_rate", user="ANONYMOUS", client_id="")

    simulate(run)
