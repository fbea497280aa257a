"""Limits of creation, over the wire: each refusal has Kafka's code and names the key; normal use stays below."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.simulation.client import WireClient
from lowtide.testing.cluster import LowtideCluster


def against(config: dict[str, str], scenario: Callable[[WireClient], Awaitable[None]]) -> None:
    """Runs a scenario against a broker."""

    async def run(host: str, port: int) -> None:
        client = await WireClient.connect(host, port)
        try:
            async with asyncio.timeout(120):
                await scenario(client)
        finally:
            client.close()
            await asyncio.sleep(0)  # The transport closes its socket in the next pass of the loop.

    with LowtideCluster(config=config) as cluster:
        asyncio.run(run(cluster.host, cluster.port))


def creation(*topics: tuple[str, int]) -> CreateTopicsRequest:
    rows = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
        for name, count in topics
    ]
    return CreateTopicsRequest(topics=rows, timeout_ms=30_000, validate_only=False)


def growth(name: str, count: int) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)], timeout_ms=30_000, validate_only=False
    )


def test_partitions_above_the_limit_are_refused() -> None:
    async def scenario(client: WireClient) -> None:
        made = await client.request(creation(("a", 15)), 7)
        assert made.topics[0].error_code == ErrorCode.NONE
        (row,) = (await client.request(creation(("b", 6)), 7)).topics
        assert row.error_code == ErrorCode.POLICY_VIOLATION
        assert "lowtide.partitions.max" in row.error_message
        (grown,) = (await client.request(growth("a", 21), 3)).results
        assert grown.error_code == ErrorCode.POLICY_VIOLATION
        (grown,) = (await client.request(growth("a", 20), 3)).results
        assert grown.error_code == ErrorCode.NONE

    against({"lowtide.partitions.max": "20"}, scenario)


def test_a_rate_above_the_limit_is_throttled() -> None:
    async def scenario(client: WireClient) -> None:
        made = await client.request(creation(("a", 30), ("b", 1)), 7)
        assert [row.error_code for row in made.topics] == [ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert made.throttle_time_ms > 0
        (grown,) = (await client.request(growth("a", 31), 3)).results
        assert grown.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED

    against({"lowtide.partitions.created.per.second": "1"}, scenario)


@pytest.mark.slow
def test_what_is_refused_is_not_counted() -> None:
    """One request for two thousand million partitions would have kept all clients from creating any for days."""

    async def scenario(client: WireClient) -> None:
        assert (await client.request(creation(("a", 1)), 7)).topics[0].error_code == ErrorCode.NONE
        (grown,) = (await client.request(growth("a", 2**31 - 1), 3)).results
        assert grown.error_code == ErrorCode.POLICY_VIOLATION
        for name, count in (("b", 9_999), ("b", 0), ("a", 9_999)):
            (row,) = (await client.request(creation((name, count)), 7)).topics
            assert row.error_code not in {ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        assert (await client.request(creation(("b", 1)), 7)).topics[0].error_code == ErrorCode.NONE

    against({"lowtide.partitions.created.per.second": "1", "lowtide.partitions.max": "500"}, scenario)


def test_transactional_ids_above_the_limit_are_refused_and_existing_ones_continue() -> None:
    async def begin(client: WireClient, transactional_id: str) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        while True:
            error = ErrorCode((await client.request(request, 4)).error_code)
            if error not in {
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            }:
                return error
            await client.request(FindCoordinatorRequest(key=transactional_id, key_type=1), 1)
            await asyncio.sleep(0.05)

    async def scenario(client: WireClient) -> None:
        codes = [await begin(client, name) for name in ("a", "b", "c", "a")]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]

    against({"lowtide.transactional.ids.max": "2"}, scenario)


@pytest.mark.slow
def test_a_thousand_topics_in_one_request_are_created() -> None:
    async def scenario(client: WireClient) -> None:
        made = await client.request(creation(*[(f"t{number}", 1) for number in range(1_000)]), 7)
        assert Counter(row.error_code for row in made.topics) == {ErrorCode.NONE: 1_000}

    against({}, scenario)


@pytest.mark.slow
def test_one_metadata_request_creates_a_limited_number_of_topics() -> None:
    """The rows are those of topics that do not exist yet: a client may repeat the request at any time."""

    async def scenario(client: WireClient) -> None:
        names = [MetadataRequestTopic(name=f"auto-{number}") for number in range(5_000)]
        clock = asyncio.get_running_loop().time
        begun = clock()
        answer = await client.request(MetadataRequest(topics=names, allow_auto_topic_creation=True), 4)
        assert Counter(row.error_code for row in answer.topics) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 5_000}
        everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        while len((found := await client.request(everything, 4)).topics) < 20:
            await asyncio.sleep(0.01)
        assert len(found.topics) <= 21 + clock() - begun, "the bucket's twenty, and one for each second that has passed"

    against({"lowtide.auto.created.topics.per.second": "1"}, scenario)
