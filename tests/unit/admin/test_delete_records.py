"""`delete_records` never deletes more than requested, and reports the true result.

Against a scripted cluster, in virtual time.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lowtide.admin import (
    TO_HIGH_WATERMARK,
    Committed,
    DeletedRecords,
    DeleteStage,
    LeaderOnlyUnsupportedError,
    TopicPartition,
    UnsupportedVersionError,
)
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

from .scripted import HANG_UP, NO_ANSWER, ScriptedBroker, ScriptedCluster, failure, simulated

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)
OTHER_ID = b"\2" * 16


def test_one_request_for_each_leader():
    """Ten thousand partitions on three brokers are three requests, for any order of the partitions."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", *(1 + index % 3 for index in range(10_000)))
        async with cluster.client() as admin:
            results = await admin.delete_records({TopicPartition("t", index): index % 100 for index in range(10_000)})
        assert results == {
            TopicPartition("t", index): DeletedRecords(index % 100, index % 100) for index in range(10_000)
        }
        assert sorted(broker for broker, _ in cluster.deletes()) == [1, 2, 3]

    simulated(test)


def test_leaders_that_move_are_followed_with_the_same_offset():
    """The metadata of the first attempt is old: the delete is refused, and is sent unchanged to the new leader."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 2)

        def moves(broker: ScriptedBroker, request: Any) -> Any:
            cluster.partition("t").leader = 3
            return cluster.delete_records(broker.broker_id, request)

        cluster.scripts[1, ApiKey.DELETE_RECORDS] = moves
        async with cluster.client() as admin:
            results = await admin.delete_records({P0: 40, P1: 50})
        assert results == {P0: DeletedRecords(40, 40), P1: DeletedRecords(50, 50)}
        assert [found for found in cluster.deletes() if P0 in found[1]] == [(1, {P0: 40}), (3, {P0: 40})]
        assert cluster.count(ApiKey.DELETE_RECORDS, 2) == 1

    simulated(test)


def test_another_topic_of_the_name_is_left_alone():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: 5}, topic_ids={"t": OTHER_ID}))[P0])
            assert error.stage is DeleteStage.FINDING_LEADER
            assert "created again" in str(error)
            assert await admin.delete_records({P0: 5}, topic_ids={"t": b"\1" * 16}) == {P0: DeletedRecords(5, 5)}
        assert cluster.deletes() == [(1, {P0: 5})]

    simulated(test)


def test_a_refusal_by_policy_says_where_to_look():
    """The answer has no text, so the user would not learn of a hold."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        refused = DeleteRecordsPartitionResult(
            partition_index=0, low_watermark=-1, error_code=ErrorCode.POLICY_VIOLATION
        )
        rows = [DeleteRecordsTopicResult(name="t", partitions=[refused])]
        cluster.scripts[1, ApiKey.DELETE_RECORDS] = lambda *_: DeleteRecordsResponse(topics=rows)
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: 5}))[P0])
        assert error.reason == "POLICY_VIOLATION: the topic may be held; `lowtide topics explain t` shows it"

    simulated(test)


@pytest.mark.parametrize("target", [50, -1])
def test_a_topic_re_created_between_two_attempts_is_left_alone(target: int):
    """The first attempt was lost; meanwhile the topic was deleted and re-created."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)

        def anew(broker: ScriptedBroker, request: Any) -> Any:
            cluster.add_topic("t", 1, topic_id=OTHER_ID)
            return HANG_UP

        cluster.scripts[1, ApiKey.DELETE_RECORDS] = anew
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: target}))[P0])
        assert "created again" in str(error)
        assert len(cluster.deletes()) == 1
        assert cluster.partition("t").log_start == 0

    simulated(test)


def test_a_topic_re_created_while_the_offset_was_looked_up_is_left_alone():
    """The metadata from the start of the call is old: the leader itself is asked."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)

        def anew(broker: ScriptedBroker, request: Any) -> Any:
            answer = cluster.list_offsets(broker.broker_id, request)
            cluster.add_topic("t", 2, topic_id=OTHER_ID)
            return answer

        cluster.scripts[2, ApiKey.LIST_OFFSETS] = anew
        async with cluster.client() as admin:
            assert "created again" in str(failure((await admin.delete_records({P0: -1}))[P0]))
        assert cluster.deletes() == []

    simulated(test)


def test_a_broker_without_version_3_gets_no_leader_only_delete():
    """The client never sends an ordinary delete instead. An ordinary delete is possible, and returns no log start."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.versions[ApiKey.DELETE_RECORDS] = 2
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: 5}, leader_only=True))[P0])
            assert isinstance(error, LeaderOnlyUnsupportedError)
            assert isinstance(error, UnsupportedVersionError)
            assert error.code == ErrorCode.UNSUPPORTED_VERSION
            assert cluster.deletes() == []
            assert await admin.delete_records({P0: 5}) == {P0: DeletedRecords(5, -1)}

    simulated(test)


def test_a_leader_only_delete_does_not_wait_for_followers():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.partition("t").followers_start = 3
        async with cluster.client() as admin:
            assert await admin.delete_records({P0: 40}, leader_only=True) == {P0: DeletedRecords(3, 40)}

    simulated(test)


@pytest.mark.parametrize("version", [2, 3])
def test_a_delete_whose_followers_are_slow_reports_that_the_leader_has_deleted(version: int):
    """Without version 3 the client asks the leader for its log start."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.versions[ApiKey.DELETE_RECORDS] = version
        cluster.partition("t").followers_start = 3
        async with cluster.client() as admin:
            begun = cluster.clock.monotonic_ms()
            error = failure((await admin.delete_records({P0: 40}, timeout=10))[P0])
            assert cluster.clock.monotonic_ms() - begun <= 10_000
        assert (error.stage, error.code, error.leader_done) == (DeleteStage.WAITING, ErrorCode.REQUEST_TIMED_OUT, True)
        assert error.facts[3:] == (3, 40)
        assert "the leader has deleted" in str(error)
        assert cluster.count(ApiKey.LIST_OFFSETS) == (1 if version == 2 else 0)
        assert {offset for _, found in cluster.deletes() for offset in found.values()} == {40}

    simulated(test)


@pytest.mark.parametrize("has_done", [True, False])
def test_a_leader_that_never_answers(has_done: bool):
    """Its log start is the only evidence.

    Below the offset the result is unknown, because the request may still be executed.
    """

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)

        def silent(broker: ScriptedBroker, request: Any) -> Any:
            if has_done:
                cluster.delete_records(broker.broker_id, request)
            return NO_ANSWER

        cluster.scripts[1, ApiKey.DELETE_RECORDS] = silent
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: 40}, timeout=8))[P0])
        assert error.stage is DeleteStage.WAITING
        assert error.leader_done is (True if has_done else None)

    simulated(test)


def test_a_leader_that_cannot_be_reached_has_done_nothing():
    """Nothing was sent, so nothing can be under way."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2, 9)
        cluster.nodes[2].kill()
        async with cluster.client() as admin:
            results = await admin.delete_records({P0: 40, P1: 40}, timeout=5)
        dead, unknown = failure(results[P0]), failure(results[P1])
        assert (dead.stage, dead.leader_done) == (DeleteStage.SENDING, False)
        assert "connection refused" in str(dead)
        assert (unknown.stage, unknown.leader_done) == (DeleteStage.FINDING_LEADER, False)
        assert cluster.deletes() == []

    simulated(test)


def test_an_unknown_topic_is_not_waited_for_until_the_deadline():
    """It could be new, so the client asks a few times, but not for a minute."""

    async def test(cluster: ScriptedCluster) -> None:
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: 40}))[P0])
        assert error.stage is DeleteStage.FINDING_LEADER
        assert cluster.clock.monotonic_ms() < 5000

    simulated(test)


def test_what_the_leader_refuses_is_reported_with_its_code():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: 101}))[P0])
        assert (error.stage, error.code, error.leader_done) == (
            DeleteStage.ANSWERED,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            False,
        )
        assert str(error) == "t-0: can't delete up to 101: answered by the leader: OFFSET_OUT_OF_RANGE"
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.stage, again.facts) == (str(error), error.stage, error.facts)

    simulated(test)


def test_an_answer_without_the_partition_is_tried_again():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 1)

        def lacks_one(broker: ScriptedBroker, request: Any) -> Any:
            del cluster.scripts[1, ApiKey.DELETE_RECORDS]
            row = DeleteRecordsPartitionResult(
                partition_index=0, low_watermark=4, leader_log_start_offset=4, error_code=0
            )
            return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=[row])])

        cluster.scripts[1, ApiKey.DELETE_RECORDS] = lacks_one
        async with cluster.client() as admin:
            assert await admin.delete_records({P0: 4, P1: 6}) == {P0: DeletedRecords(4, 4), P1: DeletedRecords(6, 6)}
        assert cluster.deletes()[1] == (1, {P1: 6})

    simulated(test)


def test_brokers_do_not_wait_for_each_other():
    """One leader is silent.

    The partition of the other, refused at first, is done long before the first one times out.
    """

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 2)
        cluster.scripts[1, ApiKey.DELETE_RECORDS] = lambda *_: NO_ANSWER

        def refuses_once(broker: ScriptedBroker, request: Any) -> Any:
            del cluster.scripts[2, ApiKey.DELETE_RECORDS]
            cluster.partition("t", 1).leader = 3
            return cluster.delete_records(broker.broker_id, request)

        cluster.scripts[2, ApiKey.DELETE_RECORDS] = refuses_once
        async with cluster.client() as admin:
            results = await admin.delete_records({P0: 5, P1: 6}, timeout=20)
        assert results[P1] == DeletedRecords(6, 6)
        failure(results[P0])
        done = next(
            asked.at_ms for asked in cluster.asked if asked.broker_id == 3 and asked.key == ApiKey.DELETE_RECORDS
        )
        assert done < 2000

    simulated(test)


def test_a_frozen_leader_is_left_for_its_successor():
    """The client waits for its answer no longer than the request timeout."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)

        def freezes(broker: ScriptedBroker, request: Any) -> Any:
            cluster.nodes[2].pause()
            cluster.partition("t").leader = 3
            return NO_ANSWER

        cluster.scripts[2, ApiKey.DELETE_RECORDS] = freezes
        async with cluster.client(request_timeout_ms=3000) as admin:
            assert await admin.delete_records({P0: 40}) == {P0: DeletedRecords(40, 40)}
        assert cluster.deletes() == [(2, {P0: 40}), (3, {P0: 40})]

    simulated(test)


@pytest.mark.parametrize("target", [-2, True, "5", 2**63, 1.5])
def test_impossible_targets_are_refused_before_anything_is_sent(target: Any):
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 1)
        async with cluster.client() as admin:
            with pytest.raises(ValueError, match=r"t-1: .* is not a target"):
                await admin.delete_records({P0: 5, P1: target})
        assert cluster.asked == []

    simulated(test)


def test_integers_of_other_libraries_are_accepted():
    """Those of pandas and numpy, as an offset and as the number of a partition."""

    class Number:
        def __init__(self, value: int) -> None:
            self._value = value

        def __index__(self) -> int:
            return self._value

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 1)
        async with cluster.client() as admin:
            targets: Any = {("t", Number(0)): Number(5), P1: 7}
            results = await admin.delete_records(targets)
        assert [result[0] for result in results.values() if isinstance(result, DeletedRecords)] == [5, 7]

    simulated(test)


@pytest.mark.parametrize(
    ("targets", "topic_ids", "words"),
    [
        ([P0], None, "a list is not a mapping"),
        ({"t-0": 5}, None, "'t-0' is not a partition"),
        ({P0: 5}, {"t": "Ci0MG1tESxCXdq0Iqigjuw"}, "t: 'Ci0MG1tESxCXdq0Iqigjuw' is not a topic id"),
    ],
)
def test_partitions_and_ids_that_are_impossible_are_refused(targets: Any, topic_ids: Any, words: str):
    """They once ended in an internal Python error."""

    async def test(cluster: ScriptedCluster) -> None:
        with pytest.raises(ValueError, match=words):
            await cluster.client().delete_records(targets, topic_ids=topic_ids)

    simulated(test)


@pytest.mark.parametrize("target", [5, TO_HIGH_WATERMARK])
def test_an_unknown_topic_has_its_code(target: int):
    """Programs need the code; it is the same wherever the error is detected."""

    async def test(cluster: ScriptedCluster) -> None:
        async with cluster.client() as admin:
            assert failure((await admin.delete_records({P0: target}))[P0]).code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    simulated(test)


@pytest.mark.parametrize("groups", [[], "", ["a", ""]])
def test_groups_have_names(groups: Any):
    with pytest.raises(ValueError, match="at least one group"):
        Committed(groups)


def test_nothing_to_delete_sends_nothing():
    async def test(cluster: ScriptedCluster) -> None:
        async with cluster.client() as admin:
            assert await admin.delete_records({}) == {}
        assert cluster.asked == []

    simulated(test)
