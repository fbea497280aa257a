"""Deletes a topic, after a rehearsal that counts what it has and names the groups that read it.

The visitor types the topic's name, which the server compares.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.offsets import ends_of
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad, sentence_of
from lowtide.console.topic import replica_rows, topic_of
from lowtide.console.topic_changes import check_same
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.console.arguments import Parameters
    from lowtide.console.sessions import ConsolePorts

GROUPS_MAX: Final = 500
"""How many groups are asked about the topic; the page says how many are not."""

_HOLD: Final = "lowtide.hold.until"


@dataclass(frozen=True, slots=True)
class RehearsedTopicDeletion:
    """A topic to delete, as it was, and what the page says about it."""

    topic: TopicDescription
    value: Mapping[str, Any]


async def rehearse_topic_deletion(
    client: AdminClient, given: Parameters, ports: ConsolePorts
) -> RehearsedTopicDeletion:
    """Counts what a topic has, and finds the groups with offsets there. Errors: RefusedError, AdminError."""
    topic = await topic_of(client, arguments.topic(given))
    if topic.is_internal:
        raise bad(f"The topic {topic.name} is internal: the brokers need it.")
    keys = [TopicPartition(topic.name, number) for number, row in topic.partitions.items() if row.leader is not None]
    (starts, ends), replicas, (groups, others), held = await asyncio.gather(
        ends_of(client, keys),
        replica_rows(client, topic),
        _groups(client, topic),
        _held_until_ms(client, topic.name),
    )
    counted = [max(0, ends[key] - starts[key]) for key in keys if key in ends and key in starts]
    sizes = [row["bytes"] for row in replicas.values() if row["bytes"] is not None]
    leaders = {number: row.leader for number, row in topic.partitions.items()}
    led = [row["bytes"] for (broker_id, number), row in replicas.items() if leaders.get(number) == broker_id]
    notes = ["Records that are written until the deletion go with the topic. A deletion can't be undone."]
    if groups:
        notes.append("The offsets of these groups are deleted with the topic.")
    if others:
        notes.append(others)
    if held is not None and held > ports.clock.wall_ms():
        notes.append("The topic is held (lowtide.hold.until): the brokers will refuse to delete it.")
    if len(counted) < len(topic.partitions):
        notes.append("Some partitions have no leader, so their records are not counted.")
    return RehearsedTopicDeletion(
        topic,
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "records": sum(counted) if counted else None,
            "bytes": sum(each for each in led if each is not None) if sizes else None,
            "on_all_disks": sum(sizes) if sizes else None,
            "groups": groups,
            "notes": notes,
        },
    )


async def _groups(client: AdminClient, topic: TopicDescription) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the groups with offsets in a topic, and a sentence if some were not asked."""
    keys = [TopicPartition(topic.name, number) for number in topic.partitions]
    try:
        listed = (await client.list_groups()).groups
        names = list(listed)[:GROUPS_MAX]
        answers = await client.list_group_offsets(dict.fromkeys(names, keys)) if names else {}
    except AdminError as error:
        return [], f"Which groups read the topic is not known: {sentence_of(error)}"
    found = []
    for name, each in answers.items():
        if isinstance(each, AdminError):
            continue
        offsets = [row for row in each.values() if isinstance(row, CommittedOffset) and row.offset >= 0]
        if offsets:
            found.append({"group": name, "state": listed[name].state, "partitions": len(offsets)})
    left = len(listed) - len(names)
    return found, f"There are {left} more groups, which were not asked about the topic." if left else None


async def _held_until_ms(client: AdminClient, name: str) -> int | None:
    """Returns until when the topic is held; None if it is not, or if the user may not see it."""
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    try:
        found = (await client.describe_configs([resource], keys=[_HOLD]))[resource]
    except AdminError:
        return None
    entry = None if isinstance(found, AdminError) else found.get(_HOLD)
    text = "" if entry is None or entry.value is None else entry.value
    return int(text) if text.isdecimal() else None


async def carry_out_topic_deletion(
    client: AdminClient, plan: RehearsedTopicDeletion, given: Parameters
) -> dict[str, Any]:
    """Deletes the topic if its name was typed, and if it has not changed since. Errors: RefusedError, AdminError."""
    name = plan.topic.name
    if given.get("name") != name:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"Type the name of the topic, {name}, to delete it.")
    await check_same(client, plan.topic)
    error = (await client.delete_topics([name]))[name]
    if error is not None:
        raise error
    return {"topic": name}
