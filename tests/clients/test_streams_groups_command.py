"""Streams groups (KIP-1071) as the `lowtide groups` commands and the client show, reset and delete them."""

from __future__ import annotations

from types import SimpleNamespace

from lowtide import BlockingAdminClient
from lowtide.admin import StreamsTask, TopicPartition

from .command_lines import answer, run
from .driver import Driver, OutgoingRecord
from .streams_member import heartbeat, heartbeats, word_count


def test_a_streams_group(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    """Listed, described with its topology and tasks, set back without its internal topics, and deleted."""
    bootstrap, group = lowtide.bootstrap, f"streams-of-{topic}"
    again = f"{group}-again-repartition"
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    with BlockingAdminClient(bootstrap) as admin:
        count = len(admin.describe_topics([topic])[topic].partitions)
        heartbeats(bootstrap, heartbeat(group, 0, word_count(topic, group)), tasks=2 * count)
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
        assert rows == [("0", ()), ("1", (f"{group}-counts-changelog",))]

    shown = run("groups", "describe", group, "--members", bootstrap=bootstrap).stdout
    assert f"{group}: streams group, Stable, 1 member" in shown
    assert "0_0" in shown
    value = answer("groups", "describe", group, bootstrap=bootstrap)["groups"][0]
    assert value["topology"]["epoch"] == 3
    assert value["members"][0]["tasks"] == value["members"][0]["target"]
    assert value["members"][0]["endpoint"] == "app:8080"

    heartbeats(bootstrap, heartbeat(group, -1))
    with BlockingAdminClient(bootstrap) as admin:
        set_to = admin.alter_group_offsets(group, {TopicPartition(topic, 0): 4, TopicPartition(again, 0): 0})
        assert set(set_to.values()) == {None}
    planned = answer("groups", "reset", group, "--to", "latest", "--yes", bootstrap=bootstrap)["offsets"]
    assert [(row["topic"], row["new"]) for row in planned] == [(topic, 10)]
    with BlockingAdminClient(bootstrap) as admin:
        assert admin.delete_group_offsets(group, [TopicPartition(again, 0)]) == {TopicPartition(again, 0): None}
    run("groups", "delete", group, "--yes", bootstrap=bootstrap)
    assert "GROUP_ID_NOT_FOUND" in run("groups", "describe", group, bootstrap=bootstrap, code=1).stderr
