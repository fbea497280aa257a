"""Shows what streams groups (KIP-1071) have beyond others: subtopologies, and the tasks of members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowtide.admin.groups import GroupDescription
from lowtide.admin.streams_groups import StreamsMemberDescription, StreamsTask, StreamsTasks, StreamsTopology
from lowtide.cli.printing import print_table, printable


def print_streams_group(group: GroupDescription) -> None:
    """Prints the topology of a group and the tasks of its members. Tasks of the target are shown where they differ."""
    topology = group.topology
    assert topology is not None, f"{group.group_id} is no streams group"
    print(printable(f"group epoch {group.epoch}, topology epoch {topology.epoch}"))
    print_table(
        ("subtopology", "sources", "repartition sources", "repartition sinks", "changelogs"),
        [
            (
                row.subtopology_id,
                " ".join(row.source_topics),
                " ".join(row.repartition_source_topics),
                " ".join(row.repartition_sink_topics),
                " ".join(row.state_changelog_topics),
            )
            for row in topology.subtopologies
        ],
    )
    print_table(
        ("member", "process", "epoch", "topology epoch", "client", "host", "active", "standby", "warm-up", "target"),
        [
            (
                member.member_id,
                member.streams.process_id,
                member.epoch,
                member.streams.topology_epoch,
                member.client_id,
                member.host,
                *_columns(member.streams.tasks),
                "" if member.streams.target == member.streams.tasks else _target(member.streams.target),
            )
            for member in group.members
            if member.streams is not None
        ],
    )


def _columns(tasks: StreamsTasks) -> tuple[str, str, str]:
    return _names(tasks.active), _names(tasks.standby), _names(tasks.warmup)


def _target(tasks: StreamsTasks) -> str:
    """Formats a target as `0_1 0_2; standby 1_0`."""
    named = zip(("", "standby ", "warm-up "), _columns(tasks), strict=True)
    return "; ".join(f"{kind}{names}" for kind, names in named if names) or "nothing"


def _names(tasks: Iterable[StreamsTask]) -> str:
    return " ".join(map(str, tasks))


def member_value(member: StreamsMemberDescription) -> dict[str, Any]:
    """Returns the JSON fields that only members of streams groups have."""
    return {
        "process_id": member.process_id,
        "rack_id": member.rack_id,
        "topology_epoch": member.topology_epoch,
        "endpoint": member.endpoint,
        "client_tags": dict(member.client_tags),
        "tasks": _tasks_value(member.tasks),
        "target": _tasks_value(member.target),
    }


def _tasks_value(tasks: StreamsTasks) -> dict[str, list[str]]:
    return {
        "active": [str(task) for task in tasks.active],
        "standby": [str(task) for task in tasks.standby],
        "warmup": [str(task) for task in tasks.warmup],
    }


def topology_value(topology: StreamsTopology) -> dict[str, Any]:
    """Returns a topology for JSON."""
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology": row.subtopology_id,
                "source_topics": row.source_topics,
                "repartition_source_topics": row.repartition_source_topics,
                "repartition_sink_topics": row.repartition_sink_topics,
                "state_changelog_topics": row.state_changelog_topics,
            }
            for row in topology.subtopologies
        ],
    }
