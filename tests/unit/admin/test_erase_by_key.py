"""`erase_records` asks the leaders to erase what they find, and then each broker with a replica.

And erases nothing where one broker can't.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from lowtide.admin import BrokerAnsweredError, EraseUnsupportedError, PartitionErasure, TopicPartition
from lowtide.admin.standing import StandingTerms
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import ErasedPartition, ErasedTopic, EraseRecordsResponse
from lowtide.protocol.messages.find_records import FindRecordsResponse, FoundPartition, FoundTopic

from .scripted import HANG_UP, ScriptedBroker, ScriptedCluster, simulated

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = (1, 2, 3)
ID = UUID(int=7)
LOG_START, SEARCHED_TO, ERASURES_END = 4, 90, 93


def finding(*codes: int, count: int = 2, erasures_end: int = ERASURES_END, message: str | None = None) -> Any:
    """Answers rows with these codes, one after the other, and with the last one from then on."""
    left = list(codes)

    def answer(_broker: ScriptedBroker, request: Any) -> Any:
        if not request.topics:
            return FindRecordsResponse(error_code=0)
        code = left.pop(0) if len(left) > 1 else left[0]
        topics = [
            FoundTopic(
                name=topic.name,
                partitions=[
                    FoundPartition(
                        partition_index=row.partition_index,
                        error_code=code,
                        error_message=message,
                        searched_from=3,
                        searched_to=SEARCHED_TO,
                        record_count=count,
                        erasures_end=erasures_end if request.erase else -1,
                        log_start_offset=LOG_START if request.erase and count else -1,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return FindRecordsResponse(error_code=0, topics=topics)

    return answer


def erasing(_broker: ScriptedBroker, request: Any) -> Any:
    topics = [
        ErasedTopic(
            name=topic.name,
            partitions=[ErasedPartition(partition_index=row.partition_index, error_code=0) for row in topic.partitions],
        )
        for topic in request.topics
    ]
    return EraseRecordsResponse(error_code=0, topics=topics)


def replicated(cluster: ScriptedCluster, partitions: int = 1) -> None:
    cluster.add_topic("t", *[1] * partitions)
    for number in range(partitions):
        cluster.partition("t", number).replicas = cluster.partition("t", number).isr = ALL
    cluster.scripts[None, ApiKey.FIND_RECORDS] = finding(ErrorCode.NONE)
    cluster.scripts[None, ApiKey.ERASE_RECORDS] = erasing


async def erase(cluster: ScriptedCluster, *partitions: TopicPartition, **options: Any) -> Any:
    async with cluster.client() as admin:
        results = await admin.erase_records(partitions or [P0], keys=[b"one"], erasure_id=ID, **options)
        return results if partitions else results[P0]


def erases(cluster: ScriptedCluster) -> list[tuple[int, int, int]]:
    """Broker, offset and end of erasures of each request with rows."""
    return [
        (asked.broker_id, row.offset, row.erasures_end)
        for asked in cluster.asked
        if asked.key == ApiKey.ERASE_RECORDS
        for topic in asked.request.topics
        for row in topic.partitions
    ]


def searches(cluster: ScriptedCluster) -> list[Any]:
    """The requests that ask a leader for something."""
    return [each.request for each in cluster.asked if each.key == ApiKey.FIND_RECORDS and each.request.topics]


def test_all_brokers_can_before_the_leader_erases_and_all_replicas_confirm() -> None:
    """Protects from records that are erased on some brokers and can't be on others."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        assert await erase(cluster) == PartitionErasure(
            erasure_id=ID, searched_from=3, searched_to=90, count=2, erasures_end=93, erased_by=ALL, not_erased_by={}
        )
        assert sorted(erases(cluster)) == [(broker, LOG_START, ERASURES_END) for broker in ALL]
        (asked,) = searches(cluster)
        assert (asked.erase, asked.search_id, asked.keys, asked.ranges_max) == (True, ID.bytes, [b"one"], 0)
        own = (ApiKey.FIND_RECORDS, ApiKey.ERASE_RECORDS)
        rows = [bool(each.request.topics) for each in cluster.asked if each.key in own]
        assert rows == [False] * 6 + [True] * 4

    simulated(test)


@pytest.mark.parametrize("key", [ApiKey.FIND_RECORDS, ApiKey.ERASE_RECORDS])
def test_nothing_is_erased_in_any_partition_if_a_broker_is_too_old(key: ApiKey) -> None:
    """Protects a person from an erasure of half of their records, which nobody would finish."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster, 2)
        cluster.partition("t", 1).replicas = cluster.partition("t", 1).isr = (1, 2)
        cluster.scripts[3, key] = lambda *_: HANG_UP
        results = await erase(cluster, P0, P1)
        for result in results.values():
            assert isinstance(result, EraseUnsupportedError)
            assert "nothing is erased: broker 3 does not answer" in str(result)
        assert (searches(cluster), erases(cluster)) == ([], [])

    simulated(test)


def test_a_dry_run_only_searches() -> None:
    """Protects from an erasure by mistake, and works with brokers that are too old on other replicas."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.scripts[3, ApiKey.ERASE_RECORDS] = lambda *_: HANG_UP
        result = await erase(cluster, dry_run=True)
        assert (result.count, result.erasures_end, result.erased_by, result.not_erased_by) == (2, -1, (), {})
        assert ([each.erase for each in searches(cluster)], erases(cluster)) == ([False], [])

    simulated(test)


def test_replicas_confirm_also_if_nothing_is_left_to_be_found() -> None:
    """Protects a repeated call: the leader is clean, but a broker that was away may not be."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.scripts[None, ApiKey.FIND_RECORDS] = finding(ErrorCode.NONE, count=0, erasures_end=-1)
        result = await erase(cluster)
        assert (result.count, result.erasures_end, result.erased_by) == (0, SEARCHED_TO, ALL)
        assert sorted(erases(cluster)) == [(broker, 0, SEARCHED_TO) for broker in ALL]

    simulated(test)


@pytest.mark.parametrize(
    "code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
)
def test_a_search_that_goes_on_or_whose_leader_changed_is_asked_for_with_the_same_id(code: ErrorCode) -> None:
    """Protects from a second erasure for each attempt."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.scripts[None, ApiKey.FIND_RECORDS] = finding(code, code, ErrorCode.NONE)
        assert (await erase(cluster)).erased_by == ALL
        assert [each.search_id for each in searches(cluster)] == [ID.bytes] * 3

    simulated(test)


def test_a_broker_that_is_away_or_out_of_sync_is_named() -> None:
    """Protects the operator, who must know where the records still are."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        cluster.partition("t").replicas, cluster.partition("t").isr = (1, 2, 3, 9), (1, 2)
        result = await erase(cluster)
        assert result.erased_by == (1, 2)
        assert result.not_erased_by == {
            3: "it is not in sync, and may still fetch the records",
            9: "it is not live",
        }

    simulated(test)


def test_a_partition_that_is_refused_does_not_stop_the_others() -> None:
    """Protects the other partitions; the error has the broker's sentence and not the key."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster, 2)
        cluster.partition("t", 1).leader = 2
        cluster.scripts[2, ApiKey.FIND_RECORDS] = finding(ErrorCode.POLICY_VIOLATION, message="Too many.")
        results = await erase(cluster, P0, P1)
        assert results[P0].erased_by == ALL
        assert isinstance(results[P1], BrokerAnsweredError)
        assert "Too many." in str(results[P1])
        assert "one" not in str(results[P1])
        assert len(erases(cluster)) == len(ALL)

    simulated(test)


def test_topics_that_were_created_again_are_not_searched() -> None:
    """Protects the records of a new topic under the same name."""

    async def test(cluster: ScriptedCluster) -> None:
        replicated(cluster)
        await erase(cluster, topic_ids={"t": bytes([9]) * 16})
        assert searches(cluster)[0].topics[0].topic_id == bytes([9]) * 16
        async with cluster.client() as admin:
            assert await admin.erase_records([], keys=[b"one"]) == {}
            for bad in ({}, {"keys": [b"one"], "header": ("name", b"value")}, {"offsets": {}}):
                with pytest.raises(ValueError, match="give one of|must have at least one"):
                    await admin.erase_records([P0], **bad)
            with pytest.raises(ValueError, match="zeros only"):
                await admin.erase_records([P0], keys=[b"one"], erasure_id=UUID(int=0))
            with pytest.raises(ValueError, match="stand for 0 ms"):  # The request would end a standing erasure.
                await admin.erase_records([P0], keys=[b"one"], standing=StandingTerms(lasts_ms=0, topics=["t"]))
            with pytest.raises(ValueError, match="zeros only"):
                await admin.end_standing_erasure(UUID(int=0))

    simulated(test)
