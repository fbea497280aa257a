"""A disk that is full to the last block: deleting records or their topic frees space at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.simulation.client import WireClient
from tests.small_disk import Ballast, missing_mounts, small_disk

from .asking import (
    CREATE_TOPICS_VERSION,
    DELETE_RECORDS_VERSION,
    DELETE_TOPICS_VERSION,
    PRODUCE_VERSION,
    delete_request,
    only_row,
    produce_request,
    topic_request,
)
from .serving import ServeProcess

REASON = missing_mounts()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

DISK_BYTES = 24 << 20
LIMIT_S = 60.0
VALUES = [b"x" * 50_000] * 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a file system of `DISK_BYTES`."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as made:
        yield made


async def create(client: WireClient, topic: str) -> None:
    answer = await client.request(topic_request(topic, partitions=1, replicas=1), CREATE_TOPICS_VERSION)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer


async def produced(client: WireClient, topic: str) -> ErrorCode:
    return ErrorCode(only_row(await client.request(produce_request(topic, 0, VALUES), PRODUCE_VERSION)).error_code)


async def filled(client: WireClient, topic: str) -> int:
    """Returns the number of records of a log that has no room for one more batch."""
    count = 0
    while await produced(client, topic) == ErrorCode.NONE:
        count += len(VALUES)
    return count


@pytest.mark.parametrize("what", ["records", "topic"])
async def test_what_is_deleted_makes_room_for_others(tmp_path: Path, disk: Path, what: str) -> None:
    async with ServeProcess(disk / "log", "auto.create.topics.enable=false") as broker:
        client = await broker.connect()
        await create(client, "full")
        await create(client, "other")
        count = await filled(client, "full")
        assert count * len(VALUES[0]) > DISK_BYTES // 3
        ballast = Ballast(disk)
        ballast.fill_up()
        assert await produced(client, "other") == ErrorCode.KAFKA_STORAGE_ERROR
        if what == "records":
            row = only_row(await client.request(delete_request("full", 0, count - 1), DELETE_RECORDS_VERSION))
            assert (row.error_code, row.low_watermark) == (ErrorCode.NONE, count - 1)
        else:
            answer = await client.request(
                DeleteTopicsRequest(topic_names=["full"], timeout_ms=10_000), DELETE_TOPICS_VERSION
            )
            assert answer.responses[0].error_code == ErrorCode.NONE
        until_s = time.monotonic() + LIMIT_S
        again = 0
        while again < count // 2:
            assert time.monotonic() < until_s, again
            if await produced(client, "other") == ErrorCode.NONE:
                again += len(VALUES)
            else:
                await asyncio.sleep(0.05)
        assert not broker.faults
        client.close()
