"""`delete_records(erase=True)` names the brokers that have erased and those that have not.

And deletes nothing where one can't.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from lowtide.admin import (
    DeleteRecordsError,
    ErasedRecords,
    EraseUnsupportedError,
    TopicPartition,
    UnsupportedVersionError,
)
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import ErasedPartition, ErasedTopic, EraseRecordsResponse

from .scripted import HANG_UP, NO_ANSWER, ScriptedBroker, ScriptedCluster, simulated

P0 = TopicPartition("t", 0)
ALL = (1, 2, 3)


def answering(*codes: int, message: str | None = None) -> Any:
    """Answers rows with these codes, one after the other, and with the last one from then on.

    The question without rows always.
    """
    left = list(codes)

    def answer(_broker: ScriptedBroker, request: Any) -> Any:
        if not request.topics:
            return EraseRecordsResponse(error_code=0)
        code = left.pop(0) if len(left) > 1 else left[0]
        topics = [
            ErasedTopic(
                name=topic.name,
                partitions=[
                    ErasedPartition(partition_index=row.partition_index, error_code=code, error_message=message)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return EraseRecordsResponse(error_code=0, topics=topics)

    return answer


def replicated(cluster: ScriptedCluster, isr: tuple[int, ...] = ALL) -> None:
    cluster.add_topic("t", 1)
    cluster.partition("t").replicas, cluster.partition("t").isr = ALL, isr
    cluster.scripts[None, ApiKey.ERASE_RECORDS] = answering(ErrorCode.NONE)


async def erase(cluster: ScriptedCluster, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the client's
    async with cluster.client() as admin:
        return (await admin.delete_records({P0: 40}, erase=True, timeout=timeout))[P0]


def erases(cluster: ScriptedCluster) -> list[tuple[int, int]]:
    """Broker and offset of each request with rows."""
    return [
        (asked.broker_id, asked.request.topics[0].partitions[0].offset)
        for asked in cluster.asked
        if asked.key == ApiKey.ERASE_RECORDS and asked.request.topics
    ]


def test_each_replica_is_asked_once_after_the_delete() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        result = await erase(cluster)
        assert isinstance(result, ErasedRecords)
        assert (result.low_watermark, result.erased_by, result.not_erased_by) == (40, ALL, {})
        assert sorted(erases(cluster)) == [(1, 40), (2, 40), (3, 40)]
        keys = [asked.key for asked in cluster.asked if asked.key in (ApiKey.DELETE_RECORDS, ApiKey.ERASE_RECORDS)]
        assert keys == [ApiKey.ERASE_RECORDS] * 3 + [ApiKey.DELETE_RECORDS] + [ApiKey.ERASE_RECORDS] * 3
        again = pickle.loads(pickle.dumps(result))
        assert (again, again.erased_by, repr(again)) == (result, ALL, repr(result))

    simulated(test)


def test_nothing_is_deleted_where_a_broker_cannot_erase() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.scripts[2, ApiKey.ERASE_RECORDS] = lambda *_: HANG_UP
        result = await erase(cluster)
        assert isinstance(result, EraseUnsupportedError)
        assert isinstance(result, UnsupportedVersionError)
        assert isinstance(result, DeleteRecordsError)
        assert "nothing is deleted: broker 2 does not answer EraseRecords" in str(result)
        assert (result.code, cluster.deletes(), erases(cluster)) == (ErrorCode.UNSUPPORTED_VERSION, [], [])

    simulated(test)


def test_a_broker_that_is_away_is_named_at_once() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.partition("t").replicas = (1, 2, 9)
        result = await erase(cluster)
        assert (result.erased_by, result.not_erased_by) == ((1, 2), {9: "it is not live"})
        assert cluster.clock.monotonic_ms() < 2_000

    simulated(test)


def test_a_broker_that_is_not_in_sync_is_named() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster, isr=(1, 2))
        result = await erase(cluster)
        assert (result.erased_by, result.not_erased_by) == (
            (1, 2),
            {3: "it is not in sync, and may still fetch the records"},
        )

    simulated(test)


@pytest.mark.parametrize(
    "code", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER]
)
def test_what_passes_is_tried_again(code: ErrorCode) -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.scripts[3, ApiKey.ERASE_RECORDS] = answering(code, code, ErrorCode.NONE)
        assert (await erase(cluster)).erased_by == ALL
        assert sorted(erases(cluster)) == [(1, 40), (2, 40), (3, 40), (3, 40), (3, 40)]

    simulated(test)


def test_what_does_not_pass_is_named_with_the_reason() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.scripts[2, ApiKey.ERASE_RECORDS] = answering(
            ErrorCode.KAFKA_STORAGE_ERROR, message="the segment is damaged"
        )
        result = await erase(cluster)
        assert result.erased_by == (1, 3)
        assert "the segment is damaged" in result.not_erased_by[2]

    simulated(test)


def test_a_broker_that_does_not_answer_is_named_when_the_time_is_over() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        answers = answering(ErrorCode.NONE)
        cluster.scripts[2, ApiKey.ERASE_RECORDS] = lambda broker, request: (
            NO_ANSWER if request.topics else answers(broker, request)
        )
        result = await erase(cluster, timeout=5)
        assert result.erased_by == (1, 3)
        assert "not done within 5000 ms" in result.not_erased_by[2]

    simulated(test)


def test_a_connection_that_is_closed_later_is_no_missing_support() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        answers = answering(ErrorCode.NONE)
        hung_up: list[int] = []

        def once(broker: ScriptedBroker, request: Any) -> Any:
            if request.topics and not hung_up:
                hung_up.append(1)
                return HANG_UP
            return answers(broker, request)

        cluster.scripts[2, ApiKey.ERASE_RECORDS] = once
        assert (await erase(cluster)).erased_by == ALL

    simulated(test)


@pytest.mark.parametrize("rows", [False, True], ids=["asked whether it can", "erasing"])
def test_a_broker_that_dies_and_comes_back_is_asked_again(rows: bool) -> None:
    """It ends the connection, refuses others for some seconds.

    And isn't taken for one that doesn't know the request.
    """

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        answers, died = answering(ErrorCode.NONE), list[int]()

        def dies(broker: ScriptedBroker, request: Any) -> Any:
            if died or bool(request.topics) != rows:
                return answers(broker, request)
            died.append(1)
            cluster.nodes.pop(2).kill()
            return NO_ANSWER

        async def come_back() -> None:
            while not died:
                await asyncio.sleep(0.1)
            await asyncio.sleep(8)
            await cluster.start(2)

        cluster.scripts[2, ApiKey.ERASE_RECORDS] = dies
        result, _ = await asyncio.gather(erase(cluster, timeout=60), come_back())
        assert isinstance(result, ErasedRecords)
        assert (result.erased_by, result.not_erased_by, died) == (ALL, {}, [1])
        assert cluster.clock.monotonic_ms() < 20_000

    simulated(test)


def test_a_broker_that_dies_and_stays_away_is_named_with_what_happened() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        answers = answering(ErrorCode.NONE)

        def dies(broker: ScriptedBroker, request: Any) -> Any:
            if not request.topics:
                return answers(broker, request)
            cluster.nodes.pop(2).kill()
            return NO_ANSWER

        cluster.scripts[2, ApiKey.ERASE_RECORDS] = dies
        result = await erase(cluster, timeout=10)
        assert (result.erased_by, result.not_erased_by) == (
            (1, 3),
            {2: "not done within 10000 ms: it is no longer live"},
        )

    simulated(test)


def test_what_was_deleted_is_said_though_no_broker_is_left_to_erase() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        answers = answering(ErrorCode.NONE)

        def dies(broker: ScriptedBroker, request: Any) -> Any:
            if not request.topics:
                return answers(broker, request)
            for node in cluster.nodes.values():
                node.kill()
            return NO_ANSWER

        cluster.scripts[None, ApiKey.ERASE_RECORDS] = dies
        result = await erase(cluster, timeout=5)
        assert isinstance(result, ErasedRecords)
        assert (result.low_watermark, result.erased_by, sorted(result.not_erased_by)) == (40, (), [1, 2, 3])
        assert all("5000 ms" in reason for reason in result.not_erased_by.values())

    simulated(test)


def test_a_broker_that_is_silent_is_not_taken_for_an_old_one() -> None:
    """The client closed the connection itself when the time of the request was over.

    And said that the broker was not Lowtide.
    """

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.scripts[2, ApiKey.ERASE_RECORDS] = lambda *_: NO_ANSWER
        async with cluster.client(request_timeout_ms="1000") as admin:
            result = (await admin.delete_records({P0: 40}, erase=True, timeout=10))[P0]
        assert isinstance(result, ErasedRecords)
        assert result.erased_by == (1, 3)
        assert "did not answer within" in result.not_erased_by[2]

    simulated(test)


def test_the_leader_alone_cannot_erase() -> None:
    async def test(cluster: ScriptedCluster) -> None:
        async with cluster.client() as admin:
            with pytest.raises(ValueError, match="erasing concerns all replicas"):
                await admin.delete_records({P0: 1}, erase=True, leader_only=True)
        assert cluster.asked == []

    simulated(test)
