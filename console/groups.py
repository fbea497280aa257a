"""The pages of groups: lags and members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import Lag, find_lags
from lowtide.console.answers import sentence_of
from lowtide.console.group_details import member_value, topology_value

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.protocol.types import TopicPartition

LAGS_MAX: Final = 500
"""How many groups in the list have a lag; the page says how many have none."""


async def groups_page(client: AdminClient) -> dict[str, Any]:
    """Returns all groups, those with the largest lag first. Errors: AdminError."""
    listed = await client.list_groups()
    names = list(listed.groups)
    lags, _ = await find_lags(client, {name: listed.groups[name].kind for name in names[:LAGS_MAX]})
    rows = [
        {
            "group": group.group_id,
            "state": group.state,
            "kind": group.kind,
            "protocol": group.protocol_type,
            "coordinator": group.coordinator,
            **_summed(lags.get(name)),
        }
        for name, group in listed.groups.items()
    ]
    return {
        "groups": sorted(rows, key=lambda row: (-(row["lag"] or 0), row["group"])),
        "without_lag": max(0, len(names) - LAGS_MAX),
        "errors": [f"Broker {broker_id}: {sentence_of(error)}" for broker_id, error in listed.errors.items()],
    }


def _summed(lags: Sequence[Lag] | None) -> dict[str, Any]:
    if lags is None:
        return {"lag": None, "partitions": None, "topics": None}
    known = [lag.records for lag in lags if lag.records is not None]
    return {
        "lag": sum(known) if known or not lags else None,
        "partitions": len(lags),
        "topics": len({lag.partition.topic for lag in lags}),
    }


async def group_page(client: AdminClient, name: str) -> dict[str, Any]:
    """Returns a group with its members and partitions. Errors: AdminError."""
    described = (await client.describe_groups([name]))[name]
    if isinstance(described, AdminError):
        raise described
    lags, failed = await find_lags(client, {name: described.kind})
    readers = {key: member.member_id for member in described.members for key in member.assignment}
    rows = {lag.partition: _lag_row(lag, readers) for lag in lags.get(name, [])}
    for key in sorted(set(readers) - set(rows)):
        rows[key] = {
            **key._asdict(),
            "committed": None,
            "log_start": None,
            "high_watermark": None,
            "lag": None,
            "reader": readers[key],
        }
    return {
        "group": name,
        "state": described.state,
        "kind": described.kind,
        "protocol": described.protocol_type,
        "assignor": described.assignor,
        "coordinator": described.coordinator,
        "epoch": described.epoch if described.epoch >= 0 else None,
        "members": [member_value(member) for member in described.members],
        "topology": topology_value(described),
        "partitions": [rows[key] for key in sorted(rows)],
        "errors": [sentence_of(error) for error in failed.values()],
    }


def _lag_row(lag: Lag, readers: Mapping[TopicPartition, str]) -> dict[str, Any]:
    return {
        **lag.partition._asdict(),
        "committed": lag.committed,
        "log_start": lag.log_start,
        "high_watermark": lag.log_end,
        "lag": lag.records,
        "reader": readers.get(lag.partition),
    }
