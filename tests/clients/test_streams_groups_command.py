"""Streams groups (KIP-1071) as the `lowtide groups` commands and the client show, reset and delete them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from lowtide import BlockingAdminClient
from lowtide.admin import StreamsTask, TopicPartition
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsTopicInfo,
)
from lowtide.simulation.client import WireClient

from .command_lines import answer, run
from .driver import Driver, OutgoingRecord

ATTEMPTS = 100
PAUSE_S = 0.1


def internal(name: str) -> StreamsTopicInfo:
    return StreamsTopicInfo(name=name, partitions=0, replication_factor=1, topic_configs=[])


def word_count(topic: str) -> HeartbeatTopology:
    """A topology that reads a topic, groups its records again, and counts them."""

    def part(
        name: str, sources: list[str], reads: list[str], writes: list[str], state: list[str]
    ) -> HeartbeatSubtopology:
        return HeartbeatSubtopology(
            subtopology_id=name,
            source_topics=sources,
            source_topic_regex=[],
            state_changelog_topics=[internal(each) for each in state],
            repartition_sink_topics=writes,
            repartition_source_topics=[internal(each) for each in reads],
            copartition_groups=[],
        )

    again, counts = f"{topic}-repartition", f"{topic}-changelog"
    return HeartbeatTopology(
        epoch=3, subtopologies=[part("0", [topic], [], [again], []), part("1", [], [again], [], [counts])]
    )


def request(group: str, epoch: int, topology: HeartbeatTopology | None = None) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id="member",
        member_epoch=epoch,
        endpoint_information_epoch=0,
        rebalance_timeout_ms=60_000,
        topology=topology,
        active_tasks=[] if topology else None,
        standby_tasks=[] if topology else None,
        warmup_tasks=[] if topology else None,
        process_id="process",
        user_endpoint=StreamsEndpoint(host="app", port=8080),
        client_tags=[],
    )


def heartbeats(bootstrap: str, *requests: StreamsGroupHeartbeatRequest, tasks: int = 0) -> None:
    """Sends heartbeats of the only member; the last one with the epoch of its answer until it has so many tasks."""

    async def send() -> None:
        host, _, port = bootstrap.partition(":")
        client = await WireClient.connect(host, int(port))
        try:
            for each in requests:
                answered = await client.request(each, 1)
                assert answered.error_code == ErrorCode.NONE, (ErrorCode(answered.error_code), answered.error_message)
            for _ in range(ATTEMPTS if tasks else 0):
                if _count(answered) == tasks:
                    return
                await asyncio.sleep(PAUSE_S)
                answered = await client.request(request(requests[-1].group_id, answered.member_epoch), 1)
                assert answered.error_code == ErrorCode.NONE, (ErrorCode(answered.error_code), answered.error_message)
            assert not tasks, answered
        finally:
            client.close()

    asyncio.run(send())


def _count(answered: StreamsGroupHeartbeatResponse) -> int:
    return sum(len(row.partitions) for row in answered.active_tasks or ())


def test_a_streams_group(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """Listed, described with its topology and tasks, set back without its internal topics, and deleted."""
    bootstrap, group = lowtide.bootstrap, f"streams-of-{topic}"
    again = f"{topic}-repartition"
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    with BlockingAdminClient(bootstrap) as admin:
        count = len(admin.describe_topics([topic])[topic].partitions)  # type: ignore[union-attr]
        heartbeats(bootstrap, request(group, 0, word_count(topic)), tasks=2 * count)
        assert admin.list_groups(kinds=["streams"]).groups[group].state == "Stable"
        described = admin.describe_groups([group])[group]
        assert not isinstance(described, Exception), described
        (member,) = described.members
        assert described.topology is not None
        assert member.streams is not None
        tasks = tuple(StreamsTask(name, number) for name in "01" for number in range(count))
        assert (described.topology.epoch, member.streams.tasks.active, member.streams.target.active) == (
            3,
            tasks,
            tasks,
        )
        assert set(member.assignment) == {
            TopicPartition(name, task.partition) for name in (topic, again) for task in tasks
        }
        rows = [(row.subtopology_id, row.state_changelog_topics) for row in described.topology.subtopologies]
        assert rows == [("0", ()), ("1", (f"{topic}-changelog",))]

    shown = run("groups", "describe", group, "--members", bootstrap=bootstrap).stdout
    assert f"{group}: streams group, Stable, 1 member" in shown
    assert "0_0" in shown
    value = answer("groups", "describe", group, bootstrap=bootstrap)["groups"][0]
    assert value["topology"]["epoch"] == 3
    assert value["members"][0]["tasks"] == value["members"][0]["target"]
    assert value["members"][0]["endpoint"] == "app:8080"

    heartbeats(bootstrap, request(group, -1))
    with BlockingAdminClient(bootstrap) as admin:
        set_to = admin.alter_group_offsets(group, {TopicPartition(topic, 0): 4, TopicPartition(again, 0): 0})
        assert set(set_to.values()) == {None}
    planned = answer("groups", "reset", group, "--to", "latest", "--yes", bootstrap=bootstrap)["offsets"]
    assert [(row["topic"], row["new"]) for row in planned] == [(topic, 10)]
    with BlockingAdminClient(bootstrap) as admin:
        assert admin.delete_group_offsets(group, [TopicPartition(again, 0)]) == {TopicPartition(again, 0): None}
    run("groups", "delete", group, "--yes", bootstrap=bootstrap)
    assert "GROUP_ID_NOT_FOUND" in run("groups", "describe", group, bootstrap=bootstrap, code=1).stderr
