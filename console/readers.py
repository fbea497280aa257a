"""The groups that read a topic: those that have committed offsets for it, and those whose members read it now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import Lag, find_lags
from lowtide.admin.groups import GroupDescription
from lowtide.console.answers import sentence_of
from lowtide.console.topic import topic_of
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.groups import GroupListing

GROUPS_MAX: Final = 500
"""How many groups are asked for their offsets, by name; the page says how many are not."""

MEMBERS_OF_MAX: Final = 100
"""How many groups with members are asked for them."""

_WITHOUT_MEMBERS: Final = ("empty", "dead")


async def readers_page(client: AdminClient, name: str) -> dict[str, Any]:
    """Returns the groups of a topic, those with the largest lag first. Errors: AdminError."""
    topic, listed = await asyncio.gather(topic_of(client, name), client.list_groups())
    keys = [TopicPartition(name, number) for number in topic.partitions]
    asked = dict(list(listed.groups.items())[:GROUPS_MAX])
    active = [each.group_id for each in asked.values() if each.state.lower() not in _WITHOUT_MEMBERS]
    lags, described = await asyncio.gather(
        find_lags(client, {each: row.kind for each, row in asked.items()}, keys),
        client.describe_groups(active[:MEMBERS_OF_MAX]),
    )
    reading = {each: reads_of(name, row) for each, row in described.items()}
    found = [each for each in asked if lags[0].get(each) or any(reading.get(each, {}).values())]
    rows = [reader_row(asked[each], lags[0].get(each, ()), reading.get(each)) for each in found]
    errors = [f"Broker {broker_id}: {sentence_of(error)}" for broker_id, error in listed.errors.items()]
    return {
        "groups": sorted(rows, key=lambda row: (-(row["lag"] or 0), row["group"])),
        "left_out": max(0, len(listed.groups) - GROUPS_MAX),
        "errors": errors + [sentence_of(error) for error in lags[1].values()],
    }


def reads_of(topic: str, group: GroupDescription | AdminError) -> dict[str, int]:
    """Returns how many partitions of a topic each member of a group reads."""
    if isinstance(group, AdminError):
        return {}
    return {
        member.member_id: len(numbers)
        for member in group.members
        if (numbers := [key for key in member.assignment if key.topic == topic])
    }


def reader_row(group: GroupListing, lags: Sequence[Lag], reading: Mapping[str, int] | None) -> dict[str, Any]:
    """Returns a group with its lag on the topic. `reading` is None if its members are unknown."""
    known = [lag.records for lag in lags if lag.records is not None]
    furthest = max(lags, key=lambda lag: lag.records or 0, default=None)
    return {
        "group": group.group_id,
        "kind": group.kind,
        "state": group.state,
        "members": None if reading is None else len(reading),
        "committed": len(lags),
        "lag": sum(known) if known else None,
        "furthest": None if furthest is None else furthest.partition.partition,
        "furthest_lag": None if furthest is None else furthest.records,
    }
