"""A share group with a dead-letter topic, on three simulated brokers, and a reader of that topic."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.records import Record, iterate_batches, iterate_records
from lowtide.simulation.client import ConnectionLostError

from .share_cluster import ShareCluster
from .test_share_settings import set_on_group

TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPIES = "errors.deadletterqueue.copy.record.enable"
ENABLES = "errors.deadletterqueue.group.enable"
LETTERS = "dlq.t"
REJECTED, SPENT = b"Offset rejected by client.", b"Offset delivery count exceeded the threshold."


class _NotReadableError(Exception):
    """The partition can't be read here now."""


async def make_letters_topic(cluster: ShareCluster, partitions: int = 2, **configs: str) -> None:
    """Creates the dead-letter topic, and sets it on the group."""
    values = {ENABLES: "true"} | {name.replace("_", "."): value for name, value in configs.items()}
    rows = [CreatableTopicConfig(name=name, value=value) for name, value in values.items()]
    topic = CreatableTopic(name=LETTERS, num_partitions=partitions, replication_factor=3, assignments=[], configs=rows)
    answer = await cluster.clients[1].request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer
    await set_on_group(cluster, TOPIC_NAME, LETTERS)


async def leaders_of_letters(cluster: ShareCluster) -> dict[int, int]:
    """Returns the leaders of the topic's partitions; empty if no broker lives."""
    for client in cluster.clients.values():
        if not client.lost:
            answer = await client.request(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
            return {
                row.partition_index: row.leader_id
                for topic in answer.topics
                if topic.name == LETTERS
                for row in topic.partitions
            }
    return {}


async def _read(cluster: ShareCluster, partition: int, leader: int) -> list[Record]:
    found: list[Record] = []
    while True:
        offset = found[-1].offset + 1 if found else 0
        row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=LETTERS, partitions=[row])],
            forgotten_topics_data=[],
            rack_id="",
        )
        answer = (await cluster.clients[leader].request(request, 12)).responses[0].partitions[0]
        if answer.error_code != ErrorCode.NONE:
            raise _NotReadableError
        content = bytes(answer.records or b"")
        if not content:
            return found
        for position, header in iterate_batches(content):
            found += iterate_records(content[position : position + header.size_bytes], max_bytes=1 << 20)


async def letters(cluster: ShareCluster) -> dict[int, list[Record]]:
    """Returns the dead letters of each partition of the topic, once all of them can be read."""
    while True:
        try:
            leaders = await leaders_of_letters(cluster)
            if leaders and all(leader in cluster.clients for leader in leaders.values()):
                return {number: await _read(cluster, number, leader) for number, leader in leaders.items()}
        except (ConnectionLostError, _NotReadableError):
            pass
        await asyncio.sleep(0.2)


def headers(letter: Record) -> dict[str, Any]:
    """Returns the headers of a dead letter by the last parts of their names."""
    return {name.decode().removeprefix("__dlq.errors."): content for name, content in letter.headers}


async def until_letters(cluster: ShareCluster, count: int) -> list[Record]:
    """Returns the dead letters of all partitions, when there are so many."""
    while True:
        found = [letter for each in (await letters(cluster)).values() for letter in each]
        if len(found) >= count:
            return found
        await asyncio.sleep(0.2)
