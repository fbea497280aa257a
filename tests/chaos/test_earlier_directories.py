"""Log directories that an earlier version, or Kafka, wrote, stopped and killed: all that was acknowledged is there.

`earlier/<commit>-<how it ended>.tar.gz` and `earlier/lowtide-<version>-<how it ended>.tar.gz` have the two log
directories of a broker with node id 7; `earlier/kafka-<version>-<how it ended>.tar.gz` the one of a KRaft node. Each
release adds its own, written by its wheel with `tests/interop/write_earlier.py`: two directories,
`offsets.topic.num.partitions` and `transaction.state.log.num.partitions` 1, then

* topics `plain` (two partitions), `compacted` (cleanup.policy=compact), and `gone`, which is deleted at the end
* with each of the codecs none, gzip, lz4, zstd, snappy: twenty records `<codec> <number>` to each partition of `plain`,
  and to `compacted`
  with the keys `k<number % 4>`, by an idempotent producer
* a transaction of three records to plain-1 that is committed, and one that is aborted
* the group `readers` with the offsets 42 and 60, and a delete of plain-0 up to 35
* by a Lowtide that can erase: the topic `letters`, from which the records of the key `ann` are erased

The other way: `EARLIER_PYTHON=environment/bin/python` names an environment with an earlier wheel. It opens a directory
that this version wrote.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from lowtide.simulation.client import WireClient
from tests.interop.write_earlier import ERASED_KEY, LETTERS, write_with_lowtide

from .asking import (
    DELETE_RECORDS_VERSION,
    EARLIEST,
    FETCH_VERSION,
    LATEST,
    LIST_OFFSETS_VERSION,
    PRODUCE_VERSION,
    delete_request,
    fetch_request,
    offsets_request,
    only_row,
    produce_request,
    records_from,
)
from .cluster_processes import LIMIT_S, LOOK_AGAIN_S, METADATA_VERSION
from .serving import ServeProcess

ARCHIVES = sorted((Path(__file__).parent / "earlier").glob("*.tar.gz"))
SETTINGS = ("node.id=7", "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")
OFFSET_FETCH_VERSION = 9
CODECS = ("none", "gzip", "lz4", "zstd", "snappy")
WRITTEN = [b"%s %d" % (codec.encode(), number) for codec in CODECS for number in range(20)]
MARKER = bytes(6)
TRANSACTIONS = [
    value for which in (0, 1) for value in (*(b"transaction %d %d" % (which, number) for number in range(3)), MARKER)
]

LOG_START, READERS = 35, {0: 42, 1: 60}


async def bounds(client: WireClient, topic: str, partition: int) -> tuple[int, int]:
    rows = [
        only_row(await client.request(offsets_request(topic, partition, each), LIST_OFFSETS_VERSION))
        for each in (EARLIEST, LATEST)
    ]
    assert {row.error_code for row in rows} == {ErrorCode.NONE}
    return rows[0].offset, rows[1].offset


async def records(client: WireClient, topic: str, partition: int, offset: int) -> tuple[Any, dict[int, bytes]]:
    """Returns all from `offset` on, and the last row: a response has records of one segment."""
    found: dict[int, bytes] = {}
    while True:
        row = only_row(await client.request(fetch_request(topic, partition, offset), FETCH_VERSION))
        assert row.error_code == ErrorCode.NONE
        more = records_from(row.records, offset)
        if not more:
            return row, found
        found |= more
        offset = max(more) + 1


async def committed(client: WireClient) -> dict[int, int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="readers", topics=None)])
    async with asyncio.timeout(LIMIT_S):
        while (
            row := (await client.request(request, OFFSET_FETCH_VERSION)).groups[0]
        ).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(LOOK_AGAIN_S)
    assert row.error_code == ErrorCode.NONE
    return {each.partition_index: each.committed_offset for topic in row.topics for each in topic.partitions}


async def check(client: WireClient, log_start: int, more: list[bytes]) -> None:
    """The records that the earlier version acknowledged, and later ones."""
    known = await client.request(MetadataRequest(topics=None), METADATA_VERSION)
    topics = {topic.name for topic in known.topics if not topic.is_internal}
    assert topics - {"letters"} == {"plain", "compacted"}
    if "letters" in topics:
        assert await bounds(client, "letters", 0) == (0, len(LETTERS) + 1)  # The erasure is the last record.
        found = (await records(client, "letters", 0, 0))[1]
        found.pop(len(LETTERS))
        assert found == {offset: value.encode() for offset, (key, value) in enumerate(LETTERS) if key != ERASED_KEY}
    expected = [*WRITTEN, *more]
    assert await bounds(client, "plain", 0) == (log_start, len(expected))
    assert (await records(client, "plain", 0, log_start))[1] == dict(enumerate(expected[log_start:], log_start))
    row, found = await records(client, "plain", 1, 0)
    assert found == dict(enumerate([*WRITTEN, *TRANSACTIONS]))
    assert row.last_stable_offset == len(found)
    latest = {number % 4: value for number, value in (await records(client, "compacted", 0, 0))[1].items()}
    assert latest == {number: WRITTEN[96 + number] for number in range(4)}
    assert await committed(client) == READERS


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(
            path,
            marks=()
            if path.name.startswith(("32c261f-killed", "kafka-4.4.0-killed", "lowtide-0.1.0-killed"))
            else pytest.mark.slow,
            id=path.name.removesuffix(".tar.gz"),
        )
        for path in ARCHIVES
    ],
)
async def test_a_directory_of_an_earlier_version_is_opened(archive: Path, tmp_path: Path) -> None:
    """Records are then written and deleted, and the directory is opened again after a kill."""
    subprocess.run(["tar", "-xzf", archive], cwd=tmp_path, check=True)
    directories = Path(",".join(str(path) for path in sorted(tmp_path.iterdir())))
    await go_on(directories, sys.executable)


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.slow
async def test_an_earlier_version_opens_a_directory_of_this_one(tmp_path: Path, how: str) -> None:
    """The way back. The earlier version then writes and deletes, and this one opens its directory again."""
    earlier = os.environ.get("EARLIER_PYTHON")
    if earlier is None:
        pytest.skip("EARLIER_PYTHON names no environment with an earlier wheel")
    directories = Path(f"{tmp_path / '1'},{tmp_path / '2'}")
    await write_with_lowtide(sys.executable, directories, how)
    await go_on(directories, earlier)
    async with ServeProcess(directories, *SETTINGS) as broker:
        client = await broker.connect()
        await check(client, 50, [b"today"])
        client.close()


async def go_on(directories: Path, python: str) -> None:
    """Checks a directory with a broker of that environment, writes, deletes, and checks again after a kill."""
    async with ServeProcess(directories, *SETTINGS, python=python) as broker:
        client = await broker.connect()
        await check(client, LOG_START, [])
        assert (
            only_row(await client.request(produce_request("plain", 0, [b"today"]), PRODUCE_VERSION)).error_code
            == ErrorCode.NONE
        )
        deleted = only_row(await client.request(delete_request("plain", 0, 50), DELETE_RECORDS_VERSION))
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 50)
        client.close()
        await broker.kill()
        assert broker.faults == []
    async with ServeProcess(directories, *SETTINGS, python=python) as broker:
        client = await broker.connect()
        await check(client, 50, [b"today"])
        client.close()
        assert await broker.terminate() == 0
        assert broker.faults == []


def test_there_are_directories_of_earlier_versions() -> None:
    written = {
        f"{version}-{how}.tar.gz"
        for version in ("32c261f", "lowtide-0.1.0", "kafka-3.9.1", "kafka-4.0.0", "kafka-4.3.1", "kafka-4.4.0")
        for how in ("killed", "stopped")
    }
    assert {path.name for path in ARCHIVES} >= written
