"""Resets and deletes committed offsets of a group, and groups, after a rehearsal.

A change is refused if the group has committed since, or has members now: the brokers would refuse it too, but do not
say so as clearly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.groups import SHARE
from lowtide.admin.offset_reset import (
    PlannedReset,
    ResetTarget,
    committed_offsets,
    new_offset,
    partitions_to_reset,
    plan_reset,
    set_offsets,
)
from lowtide.admin.offsets import ends_of
from lowtide.admin.wanted_offsets import parse_offset
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad, sentence_of
from lowtide.console.topic import chosen_numbers, topic_of
from lowtide.console.topic_changes import changed
from lowtide.protocol.types import Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.groups import GroupDescription
    from lowtide.console.arguments import Parameters

RESET_PLACES: Final = ("earliest", "latest", "offset", "time", "duration", "shift", "table")
SHIFT_MAX: Final = 2**53
TABLE_CHARACTERS_MAX: Final = 64 * 1024
ROWS_MAX: Final = 2_000
"""Rows of a table of offsets."""

DURATION_DAYS_MAX: Final = 36_500
_UNITS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "min": 60_000, "s": 1_000}
_DURATION: Final = re.compile(r"\s*(\d{1,9})\s*(w|d|h|min|m|s)", re.IGNORECASE)
_ISO: Final = re.compile(r"P(?=.)(?:\d+W)?(?:\d+D)?(?:T(?=.)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RehearsedReset:
    """New offsets of a group as they were shown."""

    group: str
    planned: Sequence[PlannedReset]
    shares: bool
    """Whether it is a share group."""
    members: int


@dataclass(frozen=True, slots=True)
class RehearsedForget:
    """Committed offsets to delete, or with `whole` the group, as they were shown."""

    group: str
    offsets: Mapping[TopicPartition, Offset]
    whole: bool
    shares: bool
    members: int


# ---------------------------------------------------------------------- reset
async def rehearse_reset(client: AdminClient, given: Parameters, now_ms: int) -> RehearsedReset:
    """Plans new offsets of a group. Errors: RefusedError, AdminError."""
    group = arguments.text(given, "group")
    described = await _described(client, group)
    shares, members = _facts(described)
    committed = await committed_offsets(client, group, shares=shares)
    if arguments.choice(given, "to", RESET_PLACES) == "table":
        wanted = table_of(arguments.text(given, "value", longest=TABLE_CHARACTERS_MAX))
        return RehearsedReset(group, await _plan_table(client, wanted, committed), shares, members)
    chosen = await _chosen(client, group, given, committed)
    if not chosen:
        raise bad("The group has no committed offsets: choose a topic.")
    return RehearsedReset(group, await plan_reset(client, chosen, committed, _wanted(given, now_ms)), shares, members)


async def _described(client: AdminClient, group: str) -> GroupDescription | None:
    """Returns a group; None if it does not exist, so that offsets create it. Errors: AdminError."""
    found = (await client.describe_groups([group]))[group]
    return None if isinstance(found, AdminError) else found


def _facts(found: GroupDescription | None) -> tuple[bool, int]:
    """Returns whether a group is a share group, and how many members it has."""
    return (False, 0) if found is None else (found.kind == SHARE, len(found.members))


async def _chosen(
    client: AdminClient, group: str, given: Parameters, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Returns the partitions of a topic, or those with committed offsets. Errors: RefusedError, AdminError."""
    if given.get("topic") in (None, ""):
        return await partitions_to_reset(client, group, committed)
    topic = await topic_of(client, arguments.topic(given))
    return sorted(TopicPartition(topic.name, number) for number in chosen_numbers(topic, given))


async def _plan_table(
    client: AdminClient, wanted: Mapping[TopicPartition, Offset], committed: Mapping[TopicPartition, int]
) -> list[PlannedReset]:
    starts, ends = await ends_of(client, sorted(wanted))
    return [
        new_offset(key, committed.get(key), ResetTarget(offset=offset), (starts.get(key), ends.get(key)), None)
        for key, offset in sorted(wanted.items())
    ]


def _wanted(given: Parameters, now_ms: int) -> ResetTarget:
    """Reads where the offsets are set. Errors: RefusedError."""
    to = arguments.choice(given, "to", RESET_PLACES)
    try:
        if to in ("earliest", "latest"):
            return ResetTarget(place=to)
        if to == "shift":
            return ResetTarget(shift=_shift(given))
        value = arguments.text(given, "value", longest=64)
        if to == "duration":
            return ResetTarget(time_ms=max(0, now_ms - duration_ms(value)))
        return ResetTarget.of(value, None, None) if to == "offset" else ResetTarget.of(None, value, None)
    except ValueError as error:
        raise bad(sentence_of(error)) from None


def duration_ms(text: str) -> int:
    """Reads a duration, also in ISO 8601. Errors: ValueError, a sentence without a full stop.

    >>> duration_ms("1 d 12 h"), duration_ms("90min"), duration_ms("PT1H30M")
    (129600000, 5400000, 5400000)
    """
    days, _, times = text.strip().upper().removeprefix("P").partition("T")
    written = days + times if _ISO.fullmatch(text.strip()) else text
    found, end = 0, 0
    for match in _DURATION.finditer(written):
        if match.start() != end:
            break
        found, end = found + int(match[1]) * _UNITS[match[2].lower()], match.end()
    if not end or written[end:].strip():
        raise ValueError(f"{text!r} is not a duration: write 90min, 1 d 12 h, or PT1H30M")
    if found > DURATION_DAYS_MAX * _UNITS["d"]:
        raise ValueError(f"{text!r} is too long: a duration has at most {DURATION_DAYS_MAX} days")
    return found


def table_of(text: str) -> dict[TopicPartition, Offset]:
    """Reads lines of topic, partition and offset with commas between them, as Kafka's tool exports them.

    Errors: RefusedError.

    >>> table_of("flights,0,7")
    {TopicPartition(topic='flights', partition=0): 7}
    """
    found: dict[TopicPartition, Offset] = {}
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not 0 < len(lines) <= ROWS_MAX:
        raise bad(f"A table of offsets has 1 to {ROWS_MAX} lines.")
    for number, line in lines:
        parts = [each.strip().strip('"') for each in line.split(",")]
        try:
            topic, partition, offset = parts
            key = TopicPartition(
                arguments.topic({"topic": topic}),
                arguments.number({"partition": partition}, "partition", 0, arguments.PARTITION_MAX),
            )
            value = parse_offset(offset)
        except (ValueError, RefusedError):
            raise bad(f"Line {number} is not a topic, a partition and an offset with commas between them.") from None
        if key in found:
            raise bad(f"Line {number} names partition {key.partition} of {key.topic} again.")
        found[key] = value
    return found


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
    return {"group": plan.group, "partitions": rows, "notes": _notes(plan.members)}


def _notes(members: int) -> list[str]:
    """Returns what keeps the brokers from changing the offsets now, as sentences."""
    if not members:
        return []
    count = "1 member" if members == 1 else f"{members} members"
    return [f"The group has {count}: stop its consumers first, the brokers refuse this until then."]


async def carry_out_reset(client: AdminClient, plan: RehearsedReset) -> dict[str, Any]:
    """Sets the offsets, unless the group has committed since, or has members. Errors: RefusedError, AdminError."""
    await _check_idle(client, plan.group)
    committed = await committed_offsets(client, plan.group, shares=plan.shares)
    _check_committed({each.partition: each.old for each in plan.planned if each.new is not None}, committed)
    return reset_value(plan, await set_offsets(client, plan.group, plan.planned, shares=plan.shares))


async def _check_idle(client: AdminClient, group: str) -> None:
    _, members = _facts(await _described(client, group))
    if members:
        raise changed(_notes(members)[0])


def _check_committed(before: Mapping[TopicPartition, Offset | None], now: Mapping[TopicPartition, Offset]) -> None:
    """Refuses a change of offsets that are others now. Errors: RefusedError."""
    for key, offset in before.items():
        if now.get(key) != offset:
            where = f"partition {key.partition} of {key.topic}"
            is_now = "no offset" if now.get(key) is None else f"offset {now[key]}"
            was = "none" if offset is None else str(offset)
            raise changed(f"The group has {is_now} for {where} now, and had {was} in the rehearsal: rehearse again.")


# ---------------------------------------------------------------------- delete
async def rehearse_forget(client: AdminClient, given: Parameters) -> RehearsedForget:
    """Plans to delete the committed offsets for a topic, or the group. Errors: RefusedError, AdminError."""
    group = arguments.text(given, "group")
    described = (await client.describe_groups([group]))[group]
    if isinstance(described, AdminError):
        raise described
    shares, members = _facts(described)
    committed = await committed_offsets(client, group, shares=shares)
    topic = arguments.optional_text(given, "topic", longest=arguments.TOPIC_CHARACTERS_MAX)
    chosen = {key: offset for key, offset in sorted(committed.items()) if topic is None or key.topic == topic}
    if topic is not None and not chosen:
        raise bad(f"The group has no committed offsets for {topic}.")
    return RehearsedForget(group, chosen, whole=topic is None, shares=shares, members=members)


def forget_value(
    plan: RehearsedForget, outcomes: Mapping[TopicPartition, AdminError | None] | None = None
) -> dict[str, Any]:
    """Returns a deletion of offsets for the page."""
    errors = outcomes or {}
    rows = []
    for key, offset in plan.offsets.items():
        error = errors.get(key)
        rows.append({**key._asdict(), "old": offset, "error": None if error is None else sentence_of(error)})
    notes = _notes(plan.members) if plan.whole else []
    return {"group": plan.group, "whole": plan.whole, "partitions": rows, "notes": notes}


async def carry_out_forget(client: AdminClient, plan: RehearsedForget) -> dict[str, Any]:
    """Deletes the offsets or the group, unless it has committed since. Errors: RefusedError, AdminError."""
    if plan.whole:
        await _check_idle(client, plan.group)
    committed = await committed_offsets(client, plan.group, shares=plan.shares)
    _check_committed(plan.offsets if not plan.whole else {**dict.fromkeys(committed), **plan.offsets}, committed)
    if not plan.whole:
        return forget_value(plan, await client.delete_group_offsets(plan.group, list(plan.offsets)))
    error = (await client.delete_groups([plan.group]))[plan.group]
    if error is not None:
        raise error
    return forget_value(plan)
