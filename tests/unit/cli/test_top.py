"""`lowtide top`: its rows for two samples, how many fit, and what it shows for brokers that are away or not Lowtide."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.admin.cluster_description import ClusterDescription
from lowtide.admin.cluster_view import Broker
from lowtide.admin.errors import ConnectionFailedError, UnsupportedVersionError
from lowtide.admin.group_lags import Lag
from lowtide.admin.log_dirs import LogDir, ReplicaSize
from lowtide.admin.settings import Address
from lowtide.cli.top import KeyState
from lowtide.cli.top_sample import Sample, Sampler, TopicSample
from lowtide.cli.top_view import TopicOrder, as_value, high_share, rows_of_each, screen, tables, view_of
from lowtide.protocol.messages.describe_deletes import AwaitedFollower, DescribeDeletesResponse, WaitingDelete
from lowtide.protocol.messages.describe_health import (
    DescribeHealthResponse,
    LagBucket,
    LogDirectoryHealth,
    LoopLagHistogram,
)
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.clock import SystemClock

CLUSTER = ClusterDescription(
    cluster_id="c",
    controller_id=2,
    brokers=tuple(Broker(broker_id=each, address=Address("h", each)) for each in (1, 2)),
)


def histogram(*counts: int, max_ms: float = 70) -> LoopLagHistogram:
    buckets = [LagBucket(up_to_ms=bound, count=count) for bound, count in zip((1.0, 10.0, -1.0), counts, strict=True)]
    return LoopLagHistogram(count=sum(counts), sum_ms=0, max_ms=max_ms, buckets=buckets)


def health(*counts: int) -> DescribeHealthResponse:
    disk = LogDirectoryHealth(
        path="/d", error_code=0, live_bytes=200, deleted_bytes=50, total_bytes=1000, usable_bytes=600
    )
    return DescribeHealthResponse(
        error_code=0,
        up_ms=5,
        connections=3,
        waiting_deletes=1,
        lag=histogram(*counts),
        held=histogram(*counts),
        log_dirs=[disk],
    )


def sample(at_ms: int, end: int, **fields: Any) -> Sample:
    topics = {
        "a": TopicSample(partitions=1, end=end, without_leader=0, under_replicated=1),
        "b": TopicSample(partitions=1, end=None, without_leader=1, under_replicated=0),
    }
    disk = LogDir(
        path="/d",
        error=None,
        replicas={TopicPartition("b", 0): ReplicaSize(size_bytes=200, offset_lag=0, is_future=False)},
        total_bytes=1000,
        usable_bytes=600,
    )
    return Sample(at_ms=at_ms, cluster=CLUSTER, topics=topics, log_dirs={1: {"/d": disk}}, **fields)


def test_rates_are_of_the_time_between_two_samples() -> None:
    view = view_of(sample(3000, 50), sample(1000, 10), TopicOrder.RATE)
    assert [(row.topic, row.records_a_second, row.bytes, row.remark) for row in view.topics] == [
        ("a", 20.0, None, "1 under-replicated"),
        ("b", None, 200, "1 without leader"),
    ]
    assert [row.topic for row in view_of(sample(1, 1), None, TopicOrder.BYTES).topics] == ["b", "a"]


def test_a_topic_that_begins_again_has_no_negative_rate() -> None:
    assert view_of(sample(3000, 5), sample(1000, 10), TopicOrder.RATE).topics[0].records_a_second == 0


def test_what_only_lowtide_tells_is_left_out_elsewhere() -> None:
    one = sample(1, 1)
    view = view_of(one, None, TopicOrder.NAME)
    found = tables(one, view, TopicOrder.NAME)
    assert [each.title for each in found] == ["Brokers (* controller)", "Disks", "Topics, by name", "Groups, by lag"]
    assert list(found[0].columns) == ["broker", "address"]
    assert found[0].rows == [["1", "h:1"], ["2 *", "h:2"]]
    assert as_value(one, view)["deletes_waiting"] is None
    assert view.disks == [(1, "/d", 200, None, 200, 600)]


def test_deletes_name_what_they_wait_for_and_disks_what_is_not_freed() -> None:
    def waiting(number: int, asked_at_ms: int, **fields: Any) -> WaitingDelete:
        row: dict[str, Any] = {"offset": 7, "log_start_offset": 7, "low_watermark": 0, "leader_only": False, **fields}
        return WaitingDelete(topic="t", partition_index=number, asked_at_ms=asked_at_ms, **row)

    follower = AwaitedFollower(broker_id=3, log_start_offset=2, is_in_sync=True, silent_ms=1)
    answer = DescribeDeletesResponse(
        error_code=0,
        described_at_ms=9000,
        waiting_count=2,
        waiting=[waiting(0, 8000, followers=[follower]), waiting(1, 5000, log_start_offset=1)],
    )
    one = sample(1, 1, health={1: health(98, 2, 0)}, deletes={1: answer})
    view = view_of(one, None, TopicOrder.NAME)
    assert [(row.partition, row.waits_ms, row.waits_for) for row in view.deletes] == [
        ("t-1", 4000, "the leader's disk"),
        ("t-0", 1000, "broker 3 (at 2)"),
    ]
    assert view.disks == [(1, "/d", 200, 50, 150, 600)]
    assert [(row.broker, row.connections) for row in view.brokers] == [(1, 3), (2, None)]


@pytest.mark.parametrize(
    ("now", "before", "bound"),
    [
        (histogram(98, 2, 0), None, 10),
        (histogram(99, 1, 0), None, 1),
        (histogram(0, 0, 1), None, 70),
        (histogram(100, 5, 0), histogram(0, 5, 0), 1),
        (histogram(5, 5, 0), histogram(5, 5, 0), 10),
        (histogram(0, 0, 0), None, None),
        (None, None, None),
    ],
)
def test_the_lateness_of_the_loop_is_that_since_the_last_sample(
    now: LoopLagHistogram | None, before: LoopLagHistogram | None, bound: float | None
) -> None:
    assert high_share(now, before) == bound


def test_groups_are_sorted_by_lag() -> None:
    def lag(end: int | None) -> Lag:
        return Lag(partition=TopicPartition("t", 0), committed=5, log_start=10, log_end=end)

    view = view_of(sample(1, 1, groups={"x": [lag(20)], "y": [lag(50)], "z": [lag(None)]}), None, TopicOrder.NAME)
    assert [(row.group, row.behind, row.worst) for row in view.groups] == [
        ("y", 40, "t-0: 40"),
        ("x", 10, "t-0: 10"),
        ("z", None, ""),
    ]


def test_tables_share_the_height() -> None:
    assert rows_of_each([1, 2, 100], 30) == [1, 2, 18]
    assert rows_of_each([100, 100], 5) == [3, 3]
    assert rows_of_each([2, 0], 50) == [2, 0]


def test_names_cannot_write_to_the_terminal() -> None:
    from rich.console import Console

    one = sample(1, 1, silent=("broker \x1b[2J: away",), groups={"\x1b]0;x\x07": []})
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen(tables(one, view_of(one, None, TopicOrder.NAME), TopicOrder.NAME), "top", one.silent, 20))
    assert "\x1b" not in console.export_text()


def test_keys() -> None:
    keys = KeyState()
    for key in "sxp":
        keys.on_key(key)
    assert (keys.order, keys.is_paused, keys.quit) == (TopicOrder.BYTES, True, False)
    keys.on_key("q")
    assert keys.quit


class Client:
    """A cluster of two brokers: the second is away, or of another make."""

    def __init__(self, of_second: Exception) -> None:
        self.of_second = of_second
        self.asked: list[list[int]] = []

    async def describe_cluster(self, **_: Any) -> ClusterDescription:
        return CLUSTER

    async def list_topics(self, **_: Any) -> dict[str, Any]:
        return {}

    async def list_offsets(self, *_: Any, **__: Any) -> dict[Any, Any]:
        return {}

    async def describe_log_dirs(self, *_: Any, **__: Any) -> dict[int, Any]:
        return {1: {}, 2: {}}

    async def list_groups(self, **_: Any) -> Any:
        return SimpleNamespace(groups={})

    async def describe_health(self, brokers: list[int], **_: Any) -> dict[int, Any]:
        self.asked.append(list(brokers))
        return {each: health(1, 0, 0) if each == 1 else self.of_second for each in brokers}

    async def describe_deletes(self, brokers: list[int], **_: Any) -> dict[int, Any]:
        return {each: DescribeDeletesResponse(error_code=0) if each == 1 else self.of_second for each in brokers}


def test_a_broker_that_is_away_is_named_and_the_others_are_shown() -> None:
    sampler = Sampler(Client(ConnectionFailedError("no route")), SystemClock(), 1.0)
    found = asyncio.run(sampler.take())
    assert (list(found.health), found.silent) == ([1], ("broker 2: no route",))


def test_a_broker_of_another_make_is_not_asked_again_soon() -> None:
    client = Client(UnsupportedVersionError("no"))
    sampler = Sampler(client, SystemClock(), 1.0)

    async def twice() -> Sample:
        await sampler.take()
        return await sampler.take()

    found = asyncio.run(twice())
    assert (client.asked, found.silent, list(found.health)) == ([[1, 2], [1]], (), [1])


def test_a_question_without_an_answer_ends() -> None:
    client = Client(UnsupportedVersionError("no"))

    async def never(**_: Any) -> Any:
        await asyncio.Event().wait()

    client.list_topics = never
    found = asyncio.run(Sampler(client, SystemClock(), 0.1).take())
    assert found.silent == ("topics: no answer in time",)
    assert list(found.health) == [1]
