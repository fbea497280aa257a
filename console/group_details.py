"""What only some kinds of groups have: the tasks and the topology of streams groups, what share groups deliver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.admin.groups import GroupDescription, GroupMember
    from lowtide.admin.streams_groups import StreamsTasks


def member_value(member: GroupMember) -> dict[str, Any]:
    """Returns a member for the page; `awaited` has the partitions that it gets when the group has rebalanced."""
    streams = member.streams
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "epoch": member.epoch if member.epoch >= 0 else None,
        "partitions": [key._asdict() for key in member.assignment],
        "awaited": [key._asdict() for key in sorted(set(member.target) - set(member.assignment))],
        "streams": None
        if streams is None
        else {
            "process": streams.process_id,
            "rack": streams.rack_id,
            "endpoint": streams.endpoint,
            "topology_epoch": streams.topology_epoch,
            "tags": dict(streams.client_tags),
            "tasks": _tasks(streams.tasks),
            "target": None if streams.target == streams.tasks else _tasks(streams.target),
        },
    }


def _tasks(tasks: StreamsTasks) -> dict[str, list[str]]:
    return {
        "active": [str(task) for task in tasks.active],
        "standby": [str(task) for task in tasks.standby],
        "warmup": [str(task) for task in tasks.warmup],
    }


def topology_value(group: GroupDescription) -> dict[str, Any] | None:
    """Returns the topology of a streams group; None for other groups."""
    if group.topology is None:
        return None
    return {
        "epoch": group.topology.epoch,
        "subtopologies": [
            {
                "id": row.subtopology_id,
                "sources": row.source_topics,
                "repartition_sources": row.repartition_source_topics,
                "repartition_sinks": row.repartition_sink_topics,
                "changelogs": row.state_changelog_topics,
            }
            for row in group.topology.subtopologies
        ],
    }
