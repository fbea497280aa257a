"""Requests of a producer while its transaction is open, the same for Lowtide and Apache Kafka."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId
from lowtide.simulation.client import WireClient

TOPIC: Final = "open"
WAIT_S: Final = 60
RETRY_S: Final = 0.1
TRANSACTION: Final = 1
"""The type of coordinator that is looked for."""

VERSIONS: Final = range(3, 14)
ADDS_PARTITIONS_SINCE: Final = 12
"""The version of Produce that adds partitions to the transaction by itself."""

TOPIC_IDS_SINCE: Final = 13

Answer = list[ErrorCode]
"""The code of each partition of a request, in their order."""

NONE, STATE, DENIED = ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

EXPECTED: Final[dict[str, Answer]] = {
    "a batch without the bit": [STATE],
    "a batch without the bit, in a request without an id": [STATE],
    "a batch with the bit, in a request without an id": [DENIED],
    "two batches, the second without the bit": [NONE, NONE],
    "two batches, the second without the bit, in a request without an id": [DENIED, DENIED],
    "a batch with the bit, in a request with another id": [NONE],
    "no transaction: a batch without the bit": [NONE],
    "no transaction: a batch without the bit, in a request without an id": [NONE],
    "no transaction: a batch with the bit, in a request without an id": [DENIED],
}
"""Measured with Apache Kafka 4.3.1. The second batch is for a partition without a transaction."""


class Asker:
    """A client that sends what is asked."""

    def __init__(self, client: WireClient, topic_id: TopicId, version: int) -> None:
        self._client = client
        self._topic_id = topic_id
        self._version = version

    async def ask(self, case: str) -> Answer:
        """Returns the error codes of one case; each has a separate transactional id."""
        transactional_id = f"{self._version} {case}"
        producer = await self._begin(transactional_id)
        is_open = not case.startswith("no transaction")
        if is_open:
            assert await self._produce(transactional_id, producer, [(0, True)]) == [NONE]
        named = None if "without an id" in case else "another" if "another id" in case else transactional_id
        if "two batches" in case:
            return await self._produce(named, producer, [(1, True), (0, False)])
        return await self._produce(named, producer, [(int(is_open), "with the bit" in case)])

    async def _begin(self, transactional_id: str) -> tuple[int, int]:
        """Returns a producer id and epoch; its transaction has both partitions, if the client must add them."""
        search = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[transactional_id])
        init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        async with asyncio.timeout(WAIT_S):
            while (await self._client.request(search, 4)).coordinators[0].error_code != NONE:
                await asyncio.sleep(RETRY_S)  # Its topic is being created.
            while (given := await self._client.request(init, 4)).error_code != NONE:
                await asyncio.sleep(RETRY_S)
        if self._version < ADDS_PARTITIONS_SINCE:
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=given.producer_id,
                v3_and_below_producer_epoch=given.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 1])],
            )
            await self._client.request(add, 3)
        return given.producer_id, given.producer_epoch

    async def _produce(
        self, transactional_id: str | None, producer: tuple[int, int], batches: list[tuple[int, bool]]
    ) -> Answer:
        """Sends one batch to each partition from 0 on: its sequence, and whether it has the transactional bit."""
        now_ms = int(time.time() * 1000)
        rows = [
            PartitionProduceData(
                index=number,
                records=build_batch(
                    [(now_ms, None, b"x", ())],
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=sequence,
                    is_transactional=is_transactional,
                ),
            )
            for number, (sequence, is_transactional) in enumerate(batches)
        ]
        has_id = self._version >= TOPIC_IDS_SINCE
        topic = TopicProduceData(
            name="" if has_id else TOPIC, topic_id=self._topic_id if has_id else ZERO_TOPIC_ID, partition_data=rows
        )
        request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[topic])
        [answered] = (await self._client.request(request, self._version)).responses
        assert all(row.base_offset == -1 for row in answered.partition_responses if row.error_code)
        return [ErrorCode(row.error_code) for row in sorted(answered.partition_responses, key=lambda row: row.index)]


async def ask_all(bootstrap: str, version: int) -> dict[str, Answer]:
    """Returns what a broker answers in each case, in one version of Produce."""
    host, _, port = bootstrap.rpartition(":")
    client = await WireClient.connect(host, int(port))
    try:
        topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1, assignments=[], configs=[])
        await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        question = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        async with asyncio.timeout(WAIT_S):
            while (known := (await client.request(question, 12)).topics[0]).error_code != NONE:
                await asyncio.sleep(RETRY_S)
        asker = Asker(client, known.topic_id, version)
        return {case: await asker.ask(case) for case in EXPECTED}
    finally:
        client.close()
