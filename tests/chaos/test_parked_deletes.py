"""A delete that waits for a silent follower, and what ends it: leadership moved or flipped back, the replica or topic
removed, a stop.

Each is answered at once, because it cannot be completed; an answer is a success only under the leadership that accepted
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.simulation.client import ConnectionLostError
from tests.etcd import missing

from .asking import (
    DELETE_RECORDS_VERSION,
    DELETE_TOPICS_VERSION,
    PRODUCE_VERSION,
    delete_request,
    only_row,
    produce_request,
)
from .cluster_processes import ClusterProcesses
from .moving import elect_preferred, reassign

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOPIC = "parked"
VALUES = [b"value %d" % number for number in range(10)]
X = 5
TIMEOUT_MS = 120_000
AT_ONCE_S = 20.0
"""Far below the timeout and the time in which a follower leaves the ISR; a quiet machine takes milliseconds."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    """Followers that do not fetch stay in the ISR for long, so deletes stay parked; sessions outlast load."""
    async with ClusterProcesses(
        tmp_path, "replica.lag.time.max.ms=60000", "broker.session.timeout.ms=6000", links=True
    ) as made:
        yield made
        made.check_no_faults()


class ParkedDelete:
    """A delete that was sent to `leader` and waits there."""

    def __init__(self, answer: asyncio.Future[Any]) -> None:
        self._answer = answer

    @classmethod
    async def at(cls, cluster: ClusterProcesses, leader: int) -> ParkedDelete:
        client = await cluster.connect(leader)
        answer = client.send(delete_request(TOPIC, 0, X, timeout_ms=TIMEOUT_MS), DELETE_RECORDS_VERSION)

        async def accepted() -> bool:
            bounds = await cluster.bounds(leader, TOPIC)
            return bounds == (X, len(VALUES))

        await cluster.until("the leader's own log start is moved", accepted)
        assert not answer.done()
        return cls(answer)

    def is_answered(self) -> bool:
        return self._answer.done()

    async def row(self) -> Any:
        """Returns the answer, which must arrive at once. Errors: TimeoutError, ConnectionLostError."""
        async with asyncio.timeout(AT_ONCE_S):
            return only_row(await self._answer)


async def led_by_1(cluster: ClusterProcesses, replicas: list[int]) -> None:
    """A topic led by broker 1, with records, and a follower 3 whose fetches do not arrive."""
    assert cluster.links is not None
    await cluster.create_topic(TOPIC, [replicas])
    if replicas[0] != 1:
        await cluster.kill(replicas[0])
        await cluster.until_partition(TOPIC, lambda row: row.leader_id == 1)
        await cluster.start(replicas[0])
        await cluster.until_in_sync(TOPIC)
    row = only_row(await cluster.ask(1, produce_request(TOPIC, 0, VALUES), PRODUCE_VERSION))
    assert row.error_code == ErrorCode.NONE
    cluster.links[3, 1].hold_requests()


@pytest.mark.slow
async def test_leadership_moved_under_a_parked_delete(cluster: ClusterProcesses) -> None:
    """The client learns at once that another broker leads.

    It repeats the delete there, which succeeds, as the follower fetches there.
    """
    await led_by_1(cluster, [2, 1, 3])
    parked = await ParkedDelete.at(cluster, 1)
    await elect_preferred(cluster, TOPIC)
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 2, of=1)
    row = await parked.row()
    assert (row.error_code, row.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    async def repeated() -> bool:
        row = await cluster.delete(2, TOPIC, X)
        return (row.error_code, row.low_watermark) == (ErrorCode.NONE, X)

    await cluster.until("the delete is repeated", repeated)


@pytest.mark.slow
async def test_leadership_flipped_back_under_a_parked_delete(cluster: ClusterProcesses) -> None:
    """A delete accepted in one leadership is not completed in another one of the same broker."""
    assert cluster.links is not None
    await led_by_1(cluster, [2, 1, 3])
    parked = await ParkedDelete.at(cluster, 1)
    await elect_preferred(cluster, TOPIC)
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 2)
    await reassign(cluster, TOPIC, [1, 2, 3])
    await elect_preferred(cluster, TOPIC)
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 1, of=1)
    cluster.links[3, 1].mend()
    row = await parked.row()
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.until_in_sync(TOPIC)
    assert (await cluster.delete(1, TOPIC, X)).error_code == ErrorCode.NONE


@pytest.mark.slow
async def test_the_leaders_replica_removed_under_a_parked_delete(cluster: ClusterProcesses) -> None:
    """After a reassignment the broker is no longer leader, and has no log to answer from."""
    await led_by_1(cluster, [1, 2, 3])
    parked = await ParkedDelete.at(cluster, 1)
    await reassign(cluster, TOPIC, [2, 3])
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 2, of=1)
    row = await parked.row()
    assert row.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.slow
async def test_topic_deleted_under_a_parked_delete(cluster: ClusterProcesses) -> None:
    """A re-created topic of the same name does not complete it."""
    await led_by_1(cluster, [1, 2, 3])
    parked = await ParkedDelete.at(cluster, 1)
    answer = await cluster.ask(
        2, DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=5000), DELETE_TOPICS_VERSION, limit_s=10.0
    )
    assert answer.responses[0].error_code == ErrorCode.NONE
    row = await parked.row()
    assert row.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.slow
async def test_leader_stopped_under_a_parked_delete(cluster: ClusterProcesses) -> None:
    """A clean stop: the leader hands over, answers the client, and does not wait for the follower.

    The next leader has the delete.
    """
    await led_by_1(cluster, [1, 2, 3])
    parked = await ParkedDelete.at(cluster, 1)
    begun = time.monotonic()
    stopping = asyncio.create_task(cluster.terminate(1))
    try:
        row = await parked.row()
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    except ConnectionLostError:
        pytest.fail("the connection was closed without an answer")
    assert await stopping == 0
    assert time.monotonic() - begun < TIMEOUT_MS / 1000 / 2
    await cluster.until_partition(TOPIC, lambda row: row.leader_id == 2)
    assert await cluster.bounds(2, TOPIC) in ((0, len(VALUES)), (X, len(VALUES))), "it may have happened or not"


async def test_a_parked_delete_is_answered_once_its_follower_fetches(cluster: ClusterProcesses) -> None:
    """The answer comes at once, also on an idle partition: no other event is needed."""
    assert cluster.links is not None
    await led_by_1(cluster, [1, 2, 3])
    parked = await ParkedDelete.at(cluster, 1)
    assert not parked.is_answered()
    cluster.links[3, 1].mend()
    row = await parked.row()
    assert (row.error_code, row.low_watermark) == (ErrorCode.NONE, X)
