"""The pages of groups: their lag, their members, and changes of what they have committed, each rehearsed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import Lag, find_lags
from lowtide.admin.offset_reset import PlannedReset, Wanted, committed_offsets, is_share_group, plan_reset, set_offsets
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import Given
from lowtide.console.topic import topic_of
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.groups import GroupMember

LAGS_MAX: Final = 500
"""Groups whose lag is looked up for the list; of more, the list says so."""

RESET_PLACES: Final = ("earliest", "latest", "offset", "time", "shift")
SHIFT_MAX: Final = 2**53


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What was shown: new offsets of a group."""

    group: str
    planned: Sequence[PlannedReset]
    shares: bool
    """Of a share group."""


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """What was shown: committed offsets that are deleted, or with `whole` the group."""

    group: str
    partitions: Sequence[TopicPartition]
    whole: bool


async def groups_page(client: AdminClient) -> dict[str, Any]:
    """All groups, those with the largest lag first. Errors: AdminError."""
    listed = await client.list_groups()
    names = list(listed.groups)
    lags, _ = await find_lags(
        client, {name: listed.groups[name].kind for name in names[:LAGS_MAX]}, client.settings.default_api_timeout_ms
    )
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
    """One group: its members and its partitions. Errors: AdminError."""
    described = (await client.describe_groups([name]))[name]
    if isinstance(described, AdminError):
        raise described
    lags, failed = await find_lags(client, {name: described.kind}, client.settings.default_api_timeout_ms)
    readers = {key: member.member_id for member in described.members for key in member.assignment}
    rows = {lag.partition: _lag_row(lag, readers) for lag in lags.get(name, [])}
    for key in sorted(set(readers) - set(rows)):
        rows[key] = {
            **_key(key),
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
        "members": [_member(member) for member in described.members],
        "partitions": [rows[key] for key in sorted(rows)],
        "errors": [sentence_of(error) for error in failed.values()],
    }


def _key(key: TopicPartition) -> dict[str, Any]:
    return {"topic": key.topic, "partition": key.partition}


def _lag_row(lag: Lag, readers: Mapping[TopicPartition, str]) -> dict[str, Any]:
    return {
        **_key(lag.partition),
        "committed": lag.committed,
        "log_start": lag.log_start,
        "high_watermark": lag.log_end,
        "lag": lag.records,
        "reader": readers.get(lag.partition),
    }


def _member(member: GroupMember) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "partitions": [_key(key) for key in member.assignment],
    }


# ---------------------------------------------------------------------- changes
async def rehearse_reset(client: AdminClient, given: Given) -> ResetPlan:
    """Where a group's offsets would be set. Errors: RefusedError, AdminError."""
    group = arguments.text(given, "group")
    wanted = _wanted(given)
    timeout_ms = client.settings.default_api_timeout_ms
    shares = await is_share_group(client, group, timeout_ms)
    committed = await committed_offsets(client, group, timeout_ms, shares=shares)
    chosen = sorted(await _chosen(client, given, committed))
    if not chosen:
        raise bad("The group has committed nothing: choose a topic.")
    return ResetPlan(group, await plan_reset(client, chosen, committed, wanted, timeout_ms), shares)


async def _chosen(client: AdminClient, given: Given, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions of one topic, or what the group has committed. Errors: RefusedError, AdminError."""
    if given.get("topic") in (None, ""):
        return list(committed)
    topic = await topic_of(client, arguments.topic(given))
    numbers = list(topic.partitions) if given.get("partitions") is None else arguments.partitions(given)
    if set(numbers) - set(topic.partitions):
        raise bad(f"The topic has no partition {min(set(numbers) - set(topic.partitions))}.")
    return [TopicPartition(topic.name, number) for number in numbers]


def _wanted(given: Given) -> Wanted:
    """Errors: RefusedError."""
    to = arguments.choice(given, "to", RESET_PLACES)
    try:
        if to in ("earliest", "latest"):
            return Wanted(place=to)
        if to == "shift":
            return Wanted(shift=_shift(given))
        value = arguments.text(given, "value", longest=64)
        return Wanted.of(value, None, None) if to == "offset" else Wanted.of(None, value, None)
    except ValueError as error:
        raise bad(sentence_of(error)) from None


def _shift(given: Given) -> int:
    text = arguments.text(given, "value", longest=20)
    digits = text.removeprefix("-").removeprefix("+")
    if not digits.isascii() or not digits.isdigit() or int(digits) > SHIFT_MAX:
        raise bad("A shift is a whole number, such as 100 or -100.")
    return -int(digits) if text.startswith("-") else int(digits)


def reset_value(plan: ResetPlan, outcomes: Mapping[TopicPartition, AdminError | None] | None = None) -> dict[str, Any]:
    """For the page."""
    rows = []
    for each in plan.planned:
        error = None if outcomes is None else outcomes.get(each.partition)
        rows.append(
            {
                **_key(each.partition),
                "old": each.old,
                "new": each.new,
                "error": each.reason if error is None else sentence_of(error),
            }
        )
    return {"group": plan.group, "partitions": rows}


async def carry_out_reset(client: AdminClient, plan: ResetPlan) -> dict[str, Any]:
    """Set what was shown. Errors: AdminError."""
    timeout_ms = client.settings.default_api_timeout_ms
    return reset_value(plan, await set_offsets(client, plan.group, plan.planned, timeout_ms, shares=plan.shares))


async def rehearse_forget(client: AdminClient, given: Given) -> ForgetPlan:
    """Which committed offsets would be deleted: of a topic, or with the group all. Errors: RefusedError, AdminError."""
    group = arguments.text(given, "group")
    timeout_ms = client.settings.default_api_timeout_ms
    shares = await is_share_group(client, group, timeout_ms)
    committed = await committed_offsets(client, group, timeout_ms, shares=shares)
    topic = arguments.optional_text(given, "topic", longest=arguments.TOPIC_CHARACTERS_MAX)
    chosen = sorted(key for key in committed if topic is None or key.topic == topic)
    if topic is not None and not chosen:
        raise bad(f"The group has committed nothing for {topic}.")
    return ForgetPlan(group, chosen, whole=topic is None)


def forget_value(
    plan: ForgetPlan, outcomes: Mapping[TopicPartition, AdminError | None] | None = None
) -> dict[str, Any]:
    """For the page."""
    errors = outcomes or {}
    rows = []
    for key in plan.partitions:
        error = errors.get(key)
        rows.append({**_key(key), "error": None if error is None else sentence_of(error)})
    return {"group": plan.group, "whole": plan.whole, "partitions": rows}


async def carry_out_forget(client: AdminClient, plan: ForgetPlan) -> dict[str, Any]:
    """Delete what was shown. Errors: AdminError."""
    if not plan.whole:
        return forget_value(plan, await client.delete_group_offsets(plan.group, plan.partitions))
    error = (await client.delete_groups([plan.group]))[plan.group]
    if error is not None:
        raise error
    return forget_value(plan)
