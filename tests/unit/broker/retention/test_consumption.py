"""A round of requests to all coordinators of a cluster: it has a result only if no answer is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.groups.consumed import NOT_CONSUMED, ConsumedEnd
from lowtide.broker.network.peer_client import PeerError
from lowtide.broker.retention import consumption as module
from lowtide.broker.retention.consumption import PARTITIONS_PER_REQUEST, Consumption, ConsumptionQuery, Doubt
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_consumed_offsets import (
    ConsumedPartition,
    ConsumedTopic,
    DescribeConsumedOffsetsResponse,
    SurveyedCoordinator,
)
from lowtide.protocol.types import TopicPartition

ID = bytes(15) + b"\7"
ASKED = ConsumptionQuery(TopicPartition("t", 0), ID)


class Cluster:
    """Broker 1 sends the requests. `leaders` has the leader of each partition of the groups' topic, in epoch 5."""

    def __init__(self, *leaders: int) -> None:
        self.leaders = list(leaders)
        self.epochs = [5] * len(leaders)
        self.alive = {1, 2, 3}
        self.committed: dict[int, dict[tuple[str, int], ConsumedEnd]] = {}
        self.changed: dict[int, Callable[[DescribeConsumedOffsetsResponse], Any]] = {}
        self.asked: list[tuple[int, int]] = []
        self.broker_id = 1

    @property
    def image(self) -> Any:
        partitions = [
            SimpleNamespace(leader=leader, leader_epoch=epoch)
            for leader, epoch in zip(self.leaders, self.epochs, strict=True)
        ]
        topics = {"__consumer_offsets": SimpleNamespace(partitions=partitions)} if partitions else {}
        brokers = {each: SimpleNamespace(broker_id=each) for each in self.alive}
        return SimpleNamespace(topics=topics, brokers=brokers)

    def answer(self, broker_id: int, asked: Any) -> Any:
        known = self.committed.get(broker_id, {})
        self.asked.append((broker_id, sum(len(topic.partitions) for topic in asked)))
        response = DescribeConsumedOffsetsResponse(
            error_code=ErrorCode.NONE,
            coordinators=[
                SurveyedCoordinator(partition_index=number, leader_epoch=self.epochs[number])
                for number, leader in enumerate(self.leaders)
                if leader == broker_id
            ],
            topics=[
                ConsumedTopic(
                    name=topic.name,
                    partitions=[
                        ConsumedPartition(partition_index=number, consumed_offset=row.offset, group_id=row.group_id)
                        for number in topic.partitions
                        for row in [known.get((topic.name, number), NOT_CONSUMED)]
                    ],
                )
                for topic in asked
            ],
        )
        change = self.changed.get(broker_id)
        changed = response if change is None else change(response)
        if isinstance(changed, Exception):
            raise changed
        return changed

    def client_of(self, broker: Any, purpose: str) -> Any:
        assert purpose == "consumption"

        async def request(_key: int, _version: int, message: Any, _timeout_ms: int) -> Any:
            await asyncio.sleep(0)
            return self.answer(broker.broker_id, message.topics)

        return SimpleNamespace(request=request)

    def ask(self, monkeypatch: pytest.MonkeyPatch, *asked: ConsumptionQuery) -> Any:
        async def survey(_groups: Any, topics: Any) -> Any:
            return self.answer(1, topics)

        monkeypatch.setattr(module, "survey", survey)
        broker: Any = SimpleNamespace(metadata=self)
        return asyncio.run(Consumption(broker, SimpleNamespace(), self).ask(asked or [ASKED]))


def test_the_slowest_group_of_the_cluster_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1, 2, 3, 2)
    cluster.committed = {1: {("t", 0): ConsumedEnd(9, "a")}, 3: {("t", 0): ConsumedEnd(4, "b")}}
    assert cluster.ask(monkeypatch) == {ASKED: ConsumedEnd(4, "b")}
    assert cluster.asked == [(1, 1), (2, 1), (3, 1)], "each once"


def test_a_group_of_another_coordinator_that_waits_keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1, 2)
    cluster.committed = {1: {("t", 0): ConsumedEnd(9, "a")}, 2: {("t", 0): ConsumedEnd(-1, "b")}}
    assert cluster.ask(monkeypatch) == {ASKED: ConsumedEnd(-1, "b")}


def without_coverage(response: DescribeConsumedOffsetsResponse) -> DescribeConsumedOffsetsResponse:
    response.coordinators.pop()
    return response


def of_an_older_epoch(response: DescribeConsumedOffsetsResponse) -> DescribeConsumedOffsetsResponse:
    response.coordinators[0].leader_epoch -= 1
    return response


def without_rows(response: DescribeConsumedOffsetsResponse) -> DescribeConsumedOffsetsResponse:
    response.topics.clear()
    return response


def loading(_response: Any) -> DescribeConsumedOffsetsResponse:
    return DescribeConsumedOffsetsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def gone(_response: Any) -> PeerError:
    return PeerError("broker 2 did not answer within 10000 ms", was_sent=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_coverage, "does not answer for all"),
        (of_an_older_epoch, "does not answer for all"),
        (without_rows, "does not answer for t-0"),
        (loading, "COORDINATOR_LOAD_IN_PROGRESS"),
        (gone, "did not answer"),
    ],
)
@pytest.mark.parametrize("broker_id", [2, 3])
def test_whatever_is_missing_in_one_answer_leaves_the_round_without_a_result(
    monkeypatch: pytest.MonkeyPatch, change: Any, words: str, broker_id: int
) -> None:
    cluster = Cluster(1, 2, 3)
    cluster.committed = {1: {("t", 0): ConsumedEnd(9, "a")}}
    cluster.changed[broker_id] = change
    outcome = cluster.ask(monkeypatch)
    assert isinstance(outcome, Doubt)
    assert words in outcome.reason


def test_an_unavailable_or_missing_coordinator_is_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1, 2)
    cluster.alive.remove(2)
    assert cluster.ask(monkeypatch) == Doubt("broker 2: it is not registered")
    assert cluster.asked == [(1, 1)]
    assert cluster.__class__(1, -1).ask(monkeypatch) == Doubt("partition 1 of __consumer_offsets has no leader")
    assert cluster.__class__().ask(monkeypatch) == Doubt("no group has committed offsets")


def test_coordinators_that_change_during_the_round_are_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the same broker is elected again: its log may have been truncated in between."""
    cluster = Cluster(1, 2)
    cluster.committed = {1: {("t", 0): ConsumedEnd(9, "a")}}

    def elected_again(response: Any) -> Any:
        cluster.epochs[0] += 1
        return response

    cluster.changed[2] = elected_again
    assert cluster.ask(monkeypatch) == Doubt("coordinators changed during the round")


def test_a_coordinator_that_never_answers_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND_MS", 20)
    cluster = Cluster(2)

    def client(*_: Any) -> Any:
        async def request(*_: Any) -> Any:
            await asyncio.get_running_loop().create_future()

        return SimpleNamespace(request=request)

    cluster.client_of = client
    outcome = cluster.ask(monkeypatch)
    assert isinstance(outcome, Doubt)


def test_many_partitions_are_asked_about_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1, 2)
    count = 2 * PARTITIONS_PER_REQUEST + 5
    asked = [ConsumptionQuery(TopicPartition("t" if number % 3 else "u", number), ID) for number in range(count)]
    last = ("t" if (count - 1) % 3 else "u", count - 1)
    cluster.committed = {1: {last: ConsumedEnd(3, "a")}, 2: {last: ConsumedEnd(2, "b")}}
    outcome = cluster.ask(monkeypatch, *asked)
    assert [count for _, count in cluster.asked] == [PARTITIONS_PER_REQUEST, PARTITIONS_PER_REQUEST, 5] * 2
    assert len(outcome) == count
    assert {row for row in outcome.values() if row != NOT_CONSUMED} == {ConsumedEnd(2, "b")}
