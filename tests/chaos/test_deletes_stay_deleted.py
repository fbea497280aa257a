"""Known ways in which other brokers undo an acknowledged delete, or answer it wrongly, with real processes.

Ten records, a delete to 5, and then: crashes right after the answer, replicas that return with an older log start and
are elected, and clients that read from them meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.etcd import missing

from .asking import DELETE_RECORDS_VERSION
from .cluster_processes import LIMIT_S, SESSION_TIMEOUT_S, ClusterProcesses

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "trimmed"
VALUES = [b"value %d" % number for number in range(10)]
X = 5
"""Records below it are deleted, the others are kept."""

SLOW_S = 120.0
"""The additional time for a busy machine."""

SHORT_SEGMENTS = {"internal.segment.bytes": "200", "index.interval.bytes": "100", "file.delete.delay.ms": "0"}


async def fill(cluster: ClusterProcesses, leader: int, *, at_once: int = 1) -> None:
    """Produces all values, in batches."""
    for start in range(0, len(VALUES), at_once):
        row = await cluster.produce(leader, TOPIC, VALUES[start : start + at_once])
        assert (row.error_code, row.base_offset) == (ErrorCode.NONE, start)


async def delete(cluster: ClusterProcesses, leader: int) -> None:
    row = await cluster.delete(leader, TOPIC, X)
    assert row.error_code == ErrorCode.NONE, ErrorCode(row.error_code)
    assert (row.low_watermark, row.leader_log_start_offset) == (X, X)


async def assert_deleted_on(cluster: ClusterProcesses, broker_id: int, *, end: int = len(VALUES)) -> None:
    """Checks that the broker shows no record below X and all others. Waits while it does not serve."""

    async def serves() -> bool:
        below, nothing = await cluster.fetch(broker_id, TOPIC, 0)
        assert not nothing, f"broker {broker_id} serves {nothing}, which was deleted"
        assert below.error_code != ErrorCode.NONE
        found: dict[int, bytes] = {}
        while max(found, default=X - 1) + 1 < end:  # a response may end with a segment
            row, records = await cluster.fetch(broker_id, TOPIC, max(found, default=X - 1) + 1)
            if row.error_code != ErrorCode.NONE or not records:
                return False
            assert row.log_start_offset == X
            found |= records
        assert found == {offset: VALUES[offset] for offset in range(X, end)}
        return below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    await cluster.until(f"broker {broker_id} serves {X} to {end}", serves)


async def assert_deleted_everywhere(cluster: ClusterProcesses) -> None:
    """Checks all brokers under each leader: each replica leads once, if killing the other leaders makes it leader."""
    row = await cluster.until_in_sync(TOPIC)
    for broker_id in row.replica_nodes:
        await assert_deleted_on(cluster, broker_id)
    bounds = await cluster.bounds(row.leader_id, TOPIC)
    assert bounds == (X, len(VALUES))
    cluster.check_no_faults()


async def lead_by_dying(cluster: ClusterProcesses, *others: int) -> int:
    """Kills brokers so that another leads; returns the new leader."""
    await cluster.kill(*others)
    row = await cluster.until_partition(TOPIC, lambda row: row.leader_id not in (*others, -1))
    return int(row.leader_id)


class Spy:
    """Requests the first record from one broker repeatedly, and records its answers."""

    def __init__(self, cluster: ClusterProcesses, broker_id: int) -> None:
        self._cluster, self._broker_id = cluster, broker_id
        self.served: list[dict[int, bytes]] = []
        self.answers = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._ask())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert self.served == [], f"broker {self._broker_id} served what was deleted"

    async def _ask(self) -> None:
        while True:
            try:
                _, records = await self._cluster.fetch(self._broker_id, TOPIC, 0)
                self.answers += 1
                self.served += [records] if records else []
            except OSError:
                pass
            await asyncio.sleep(0.002)


# ---------------------------------------------------------------------- crashes right after the acknowledgement


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    async with ClusterProcesses(tmp_path) as made:
        yield made


async def test_crash_of_all_replicas_right_after_the_acknowledgement(cluster: ClusterProcesses) -> None:
    """The straddling segment is still there on every disk, and its deleted records stay deleted."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    await fill(cluster, 1, at_once=10)
    await delete(cluster, 1)
    await cluster.kill(1, 2, 3)
    await cluster.start(1, 2, 3)
    await assert_deleted_everywhere(cluster)


@pytest.mark.slow
async def test_crash_of_all_replicas_with_whole_segments_gone(cluster: ClusterProcesses) -> None:
    """Segments below the delete are removed, the straddling one stays: the log starts at the delete."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]], configs=SHORT_SEGMENTS)
    await fill(cluster, 1, at_once=2)
    await delete(cluster, 1)

    async def removed() -> bool:
        logs = [sorted(directory.glob(f"{TOPIC}-0/*.log")) for directory in cluster.directories.values()]
        return all(int(files[0].stem) > 0 for files in logs)

    await cluster.until("the first segment is removed everywhere", removed)
    await cluster.kill(1, 2, 3)
    await cluster.start(1, 2, 3)
    await assert_deleted_everywhere(cluster)


@pytest.mark.slow
async def test_crash_of_the_leader_alone_right_after_the_acknowledgement(cluster: ClusterProcesses) -> None:
    """The next leader has the delete; the old one, back with its log, gets the same log start from it."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    await fill(cluster, 1)
    await delete(cluster, 1)
    leader = await lead_by_dying(cluster, 1)
    await assert_deleted_on(cluster, leader)
    await cluster.start(1)
    await cluster.until_in_sync(TOPIC)
    (third,) = {1, 2, 3} - {1, leader}
    assert await lead_by_dying(cluster, leader) in (1, third)
    await cluster.start(leader)
    await assert_deleted_everywhere(cluster)


# ---------------------------------------------------------------------- a follower that missed the delete


@pytest.fixture
async def linked(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    """Brokers whose links can be held and cut."""
    async with ClusterProcesses(tmp_path, links=True) as made:
        yield made
        assert made.links is not None
        assert made.links.strangers == 0


async def missed_by_3(cluster: ClusterProcesses) -> None:
    """Broker 3 was stopped cleanly, the delete was acknowledged without it."""
    await cluster.create_topic(TOPIC, [[1, 3, 2]])
    await fill(cluster, 1)
    assert await cluster.terminate(3) == 0
    await cluster.until_in_sync(TOPIC, members={1, 2})
    await delete(cluster, 1)


async def elected_when_it_joins(cluster: ClusterProcesses) -> None:
    """The leader is killed when the follower enters the ISR; the follower, the next replica, leads."""
    await cluster.until_partition(TOPIC, lambda row: 3 in row.isr_nodes)
    await cluster.kill(1)
    row = await cluster.until_partition(TOPIC, lambda row: row.leader_id not in (1, -1))
    assert row.leader_id == 3
    await assert_deleted_on(cluster, 3)
    await cluster.start(1)
    await assert_deleted_everywhere(cluster)


@pytest.mark.slow
async def test_restarted_follower_elected_after_its_fetches_were_held(linked: ClusterProcesses) -> None:
    """A late fetch with the old log start reaches a live broker: it does not admit the follower to the ISR."""
    assert linked.links is not None
    await missed_by_3(linked)
    link = linked.links[3, 1]
    link.hold_requests()
    before = link.requests[ApiKey.FETCH]
    await linked.start(3)
    async with asyncio.timeout(LIMIT_S), Spy(linked, 3):
        await link.until_requested(ApiKey.FETCH, before + 1)
        row = await linked.partition(TOPIC, of=1)
        assert row is not None
        assert 3 not in row.isr_nodes
        link.mend()
        await elected_when_it_joins(linked)


@pytest.mark.slow
async def test_restarted_follower_elected_after_answers_were_lost(linked: ClusterProcesses) -> None:
    """The leader received its fetch, the follower never received the leader's log start."""
    assert linked.links is not None
    await missed_by_3(linked)
    link = linked.links[3, 1]
    link.lose_answers()
    await linked.start(3)
    async with asyncio.timeout(LIMIT_S), Spy(linked, 3):
        await link.next_answer(ApiKey.FETCH)
        row = await linked.partition(TOPIC, of=1)
        assert row is not None
        assert 3 not in row.isr_nodes
        link.mend()
        link.cut()  # its timeout would be in thirty seconds
        await elected_when_it_joins(linked)


@pytest.mark.slow
async def test_restarted_follower_elected_after_its_connection_was_cut(linked: ClusterProcesses) -> None:
    """The kill comes when the response with the log start arrives, three times."""
    assert linked.links is not None
    await missed_by_3(linked)
    link = linked.links[3, 1]
    link.lose_answers()
    await linked.start(3)
    async with asyncio.timeout(LIMIT_S), Spy(linked, 3):
        for _ in range(3):
            await link.next_answer(ApiKey.FETCH)
            link.cut()
        link.mend()
        await elected_when_it_joins(linked)


@pytest.mark.slow
async def test_a_returning_follower_asked_directly(cluster: ClusterProcesses) -> None:
    """A broker that was frozen past its lease never serves records below the delete, also after a restart."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    await fill(cluster, 1)
    cluster.freeze(3)
    await cluster.until_in_sync(TOPIC, members={1, 2})
    await delete(cluster, 1)
    async with Spy(cluster, 3) as spy:
        cluster.thaw(3)
        await assert_deleted_everywhere(cluster)
        assert spy.answers > 0
        await cluster.restart(3)
        await assert_deleted_everywhere(cluster)


# ---------------------------------------------------------------------- a follower that is silent


@pytest.mark.slow
async def test_one_follower_frozen(cluster: ClusterProcesses) -> None:
    """The response of a delete meanwhile, and its response when the follower is fenced, also on an idle partition."""
    await cluster.create_topic(TOPIC, [[1, 2, 3]])
    await fill(cluster, 1)
    cluster.freeze(3)
    frozen = time.monotonic()
    for timeout_ms, offset in ((0, 1), (300, 2)):
        begun = time.monotonic()
        row = await cluster.delete(1, TOPIC, offset, timeout_ms=timeout_ms)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert timeout_ms / 1000 <= time.monotonic() - begun
        assert (row.low_watermark, row.leader_log_start_offset) == (0, offset), "both have their current values"
    row = await cluster.delete(1, TOPIC, X, timeout_ms=240_000)
    assert (row.error_code, row.low_watermark) == (ErrorCode.NONE, X)
    assert time.monotonic() - frozen < SESSION_TIMEOUT_S + SLOW_S, (
        "it ends with the follower's lease, not with its own timeout"
    )
    cluster.thaw(3)
    await assert_deleted_everywhere(cluster)


@pytest.mark.slow
async def test_a_timed_out_delete_that_is_repeated_parks_again(linked: ClusterProcesses) -> None:
    """The leader's log start has moved already; that proves nothing about a follower that is still silent."""
    assert linked.links is not None
    await linked.create_topic(TOPIC, [[1, 2, 3]])
    await fill(linked, 1)
    linked.links[3, 1].hold_requests()
    for _ in range(2):
        row = await linked.delete(1, TOPIC, X, timeout_ms=200)
        assert (row.error_code, row.leader_log_start_offset) == (ErrorCode.REQUEST_TIMED_OUT, X)
    linked.links[3, 1].mend()
    await delete(linked, 1)
    await assert_deleted_everywhere(linked)


@pytest.mark.slow
async def test_an_ordinary_delete_after_a_leader_only_delete_waits_for_the_followers(linked: ClusterProcesses) -> None:
    """LeaderOnly to x answers at once; an ordinary delete to y <= x then parks until the followers have it."""
    assert linked.links is not None
    await linked.create_topic(TOPIC, [[1, 2, 3]])
    await fill(linked, 1)
    linked.links[3, 1].hold_requests()
    row = await linked.delete(1, TOPIC, X, leader_only=True)
    assert (row.error_code, row.low_watermark, row.leader_log_start_offset) == (ErrorCode.NONE, 0, X)
    row = await linked.delete(1, TOPIC, X - 1, timeout_ms=200)
    assert (row.error_code, row.leader_log_start_offset) == (ErrorCode.REQUEST_TIMED_OUT, X)
    linked.links[3, 1].mend()
    await delete(linked, 1)
    await assert_deleted_everywhere(linked)


@pytest.mark.slow
async def test_a_silent_follower_delays_its_partition_and_no_other(linked: ClusterProcesses) -> None:
    """One of two topics has no replica on the silent broker. Its delete succeeds; the answer waits for the other."""
    assert linked.links is not None
    other = "elsewhere"
    await linked.create_topic(TOPIC, [[1, 2, 3]])
    await linked.create_topic(other, [[1, 2]])
    for topic in (TOPIC, other):
        assert (await linked.produce(1, topic, VALUES)).error_code == ErrorCode.NONE
    linked.links[3, 1].hold_requests()
    rows = [
        DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=X)])
        for topic in (TOPIC, other)
    ]
    answer = await linked.ask(1, DeleteRecordsRequest(topics=rows, timeout_ms=300), DELETE_RECORDS_VERSION)
    found = {topic.name: (topic.partitions[0].error_code, topic.partitions[0].low_watermark) for topic in answer.topics}
    assert found == {TOPIC: (ErrorCode.REQUEST_TIMED_OUT, 0), other: (ErrorCode.NONE, X)}
