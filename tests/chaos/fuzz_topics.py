"""Topics that random requests may name, damage and delete, and the frames of real clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.metadata import MetadataRequest

from .probing import ANSWER_LIMIT_S
from .serving import ServeProcess

GOLDEN = Path(__file__).parent.parent / "wire" / "golden"
FUZZ_TOPICS = ("fuzz-a", "fuzz-b")
HONEST_TOPIC = "honest"
RETRIED = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}
"""A broker that was too busy to renew its registration is briefly not the controller."""

METADATA_VERSION, CREATE_TOPICS_VERSION, DELETE_TOPICS_VERSION = 12, 7, 6


async def make_fuzz_topics(broker: ServeProcess) -> None:
    """Creates the missing topics that random requests name.

    Other requests may create or delete them at the same time.
    """
    config = [CreatableTopicConfig(name="internal.segment.bytes", value="3000")]
    topics = [
        CreatableTopic(name=name, num_partitions=2, replication_factor=1, assignments=[], configs=config)
        for name in FUZZ_TOPICS
    ]
    client = await broker.connect()
    async with asyncio.timeout(ANSWER_LIMIT_S):
        errors = {ErrorCode.REQUEST_TIMED_OUT}
        while errors & RETRIED:
            response = await client.request(
                CreateTopicsRequest(topics=topics, timeout_ms=10_000), CREATE_TOPICS_VERSION
            )
            errors = {topic.error_code for topic in response.topics}
    client.close()
    assert errors <= {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}, response


async def topic_ids(broker: ServeProcess) -> dict[str, bytes]:
    """Returns the topics that may be damaged, with their ids."""
    client = await broker.connect()
    response = await client.request(MetadataRequest(topics=None), METADATA_VERSION)
    client.close()
    return {topic.name: topic.topic_id for topic in response.topics if topic.name in FUZZ_TOPICS}


async def remove_topics(broker: ServeProcess, *, besides: tuple[str, ...] = (HONEST_TOPIC,)) -> None:
    """Deletes all topics except the honest client's. Other requests may delete some at the same time."""
    client = await broker.connect()
    response = await client.request(MetadataRequest(topics=None), METADATA_VERSION)
    doomed = [DeleteTopicState(name=topic.name) for topic in response.topics if topic.name not in besides]
    async with asyncio.timeout(ANSWER_LIMIT_S):
        deleted = await client.request(DeleteTopicsRequest(topics=doomed, timeout_ms=10_000), DELETE_TOPICS_VERSION)
    client.close()
    assert {row.error_code for row in deleted.responses} <= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def golden_requests() -> list[bytes]:
    """Frames of real clients."""
    entries = [entry for path in sorted(GOLDEN.glob("*.json")) for entry in json.loads(path.read_text())]
    frames = [bytes.fromhex(entry["hex"]) for entry in entries if entry["message"].endswith("Request")]
    assert frames
    return frames
