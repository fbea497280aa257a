"""The pages of groups: lags, members, and changes of committed offsets, which are rehearsed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import Lag, find_lags
from lowtide.admin.offset_reset import (
    PlannedReset,
    ResetTarget,
    committed_offsets,
    is_share_group,
    plan_reset,
    set_offsets,
)
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import Parameters
from lowtide.console.group_details import member_value, topology_value
from lowtide.console.topic import chosen_numbers, topic_of
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

LAGS_MAX: Final = 500
"""How many groups in the list have a lag; the page says how many have none."""

RESET_PLACES: Final = ("earliest", "latest", "offset", "time", "shift")
SHIFT_MAX: Final = 2**53


@dataclass(frozen=True, slots=True)
class RehearsedReset:
    """New offsets of a group as they were shown."""

    group: str
    planned: Sequence[PlannedReset]
    shares: bool
    """Whether it is a share group."""


@dataclass(frozen=True, slots=True)
class RehearsedForget:
    """Committed offsets to delete, or with `whole` the group, as they were shown."""

    group: str
    partitions: Sequence[TopicPartition]
    whole: bool


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


# ---------------------------------------------------------------------- changes
async def rehearse_reset(client: AdminClient, given: Parameters) -> RehearsedReset:
    """Plans new offsets of a group. Errors: RefusedError, AdminError."""
    group = arguments.text(given, "group")
    wanted = _wanted(given)
    shares = await is_share_group(client, group)
    committed = await committed_offsets(client, group, shares=shares)
    chosen = sorted(await _chosen(client, given, committed))
    if not chosen:
        raise bad("The group has no committed offsets: choose a topic.")
    return RehearsedReset(group, await plan_reset(client, chosen, committed, wanted), shares)


async def _chosen(
    client: AdminClient, given: Parameters, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Returns the partitions of a topic, or those with committed offsets. Errors: RefusedError, AdminError."""
    if given.get("topic") in (None, ""):
        return list(committed)
    topic = await topic_of(client, arguments.topic(given))
    return [TopicPartition(topic.name, number) for number in chosen_numbers(topic, given)]


def _wanted(given: Parameters) -> ResetTarget:
    """Reads where the offsets are set. Errors: RefusedError."""
    to = arguments.choice(given, "to", RESET_PLACES)
    try:
        if to in ("earliest", "latest"):
            return ResetTarget(place=to)
        if to == "shift":
            return ResetTarget(shift=_shift(given))
        value = arguments.text(given, "value", longest=64)
        return ResetTarget.of(value, None, None) if to == "offset" else ResetTarget.of(None, value, None)
    except ValueError as error:
        raise bad(sentence_of(error)) from None


def _shift(given: Parameters) -> int:
    text = arguments.text(given, "value", longest=20)
    digits = text.removeprefix("-").removeprefix("+")
    if not digits.isascii() or not digits.isdigit() or int(digits) > SHIFT_MAX:
        raise bad("A shift must be a whole number, such as 100 or -100.")
    return -int(digits) if text.startswith("-") else int(digits)


def reset_value(
    plan: RehearsedReset, outcomes: Mapping[TopicPartition, AdminError | None] | None = None
) -> dict[str, Any]:
    """Returns a reset for the page."""
    rows = []
    for each in plan.planned:
        error = None if outcomes is None else outcomes.get(each.partition)
        rows.append(
            {
                **each.partition._asdict(),
                "old": each.old,
                "new": each.new,
                "error": each.reason if error is None else sentence_of(error),
            }
        )
    return {"group": plan.group, "partitions": rows}


async def carry_out_reset(client: AdminClient, plan: RehearsedReset) -> dict[str, Any]:
    """Sets the offsets. Errors: AdminError."""
    return reset_value(plan, await set_offsets(client, plan.group, plan.planned, shares=plan.shares))


async def rehearse_forget(client: AdminClient, given: Parameters) -> RehearsedForget:
    """Plans to delete the committed offsets for a topic, or the group. Errors: RefusedError, AdminError."""
    group = arguments.text(given, "group")
    shares = await is_share_group(client, group)
    committed = await committed_offsets(client, group, shares=shares)
    topic = arguments.optional_text(given, "topic", longest=arguments.TOPIC_CHARACTERS_MAX)
    chosen = sorted(key for key in committed if topic is None or key.topic == topic)
    if topic is not None and not chosen:
        raise bad(f"The group has no committed offsets for {topic}.")
    return RehearsedForget(group, chosen, whole=topic is None)


def forget_value(
    plan: RehearsedForget, outcomes: Mapping[TopicPartition, AdminError | None] | None = None
) -> dict[str, Any]:
    """Returns a deletion of offsets for the page."""
    errors = outcomes or {}
    rows = []
    for key in plan.partitions:
        error = errors.get(key)
        rows.append({**key._asdict(), "error": None if error is None else sentence_of(error)})
    return {"group": plan.group, "whole": plan.whole, "partitions": rows}


async def carry_out_forget(client: AdminClient, plan: RehearsedForget) -> dict[str, Any]:
    """Deletes the offsets or the group. Errors: AdminError."""
    if not plan.whole:
        return forget_value(plan, await client.delete_group_offsets(plan.group, plan.partitions))
    error = (await client.delete_groups([plan.group]))[plan.group]
    if error is not None:
        raise error
    return forget_value(plan)
