"""What the options of a reset mean, and how it is shown: where offsets are set, beside what they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lowtide.admin.client import AdminClient
from lowtide.admin.errors import AdminError
from lowtide.admin.offset_reset import PlannedReset, Wanted, committed_offsets, plan_reset
from lowtide.admin.wanted_offsets import parse_partitions
from lowtide.cli.cluster_questions import view_of_topics
from lowtide.cli.delete_plan import chosen_partitions
from lowtide.cli.outcome import misused
from lowtide.cli.results import error_value
from lowtide.protocol.types import TopicPartition


def wanted_place(to: str | None, to_time: str | None, shift_by: int | None) -> Wanted:
    """What the options say. Errors: CommandError."""
    if sum(each is not None for each in (to, to_time, shift_by)) != 1:
        raise misused("it has to be said where to: give one of --to, --to-time and --shift-by.")
    try:
        return Wanted.of(to, to_time, shift_by)
    except ValueError as error:
        raise misused(f"{error}.") from None


async def planned_reset(
    client: AdminClient, group: str, topics: Iterable[str], wanted: Wanted, timeout_ms: int, *, shares: bool
) -> list[PlannedReset]:
    """Look up where to; with `shares` for a share group. Errors: CommandError, AdminError."""
    committed = await committed_offsets(client, group, timeout_ms, shares=shares)
    named = list(topics)
    if named:
        for text in named:
            try:
                parse_partitions(text)
            except ValueError as error:
                raise misused(f"{error}.") from None
        view = await view_of_topics(client, list(dict.fromkeys(text.partition(":")[0] for text in named)), timeout_ms)
        partitions = chosen_partitions(named, view)
    elif committed:
        partitions = sorted(committed)
    else:
        raise misused(f"group {group} has committed nothing: name topics by --topic.")
    return await plan_reset(client, partitions, committed, wanted, timeout_ms)


def reset_rows(
    planned: Sequence[PlannedReset], outcomes: Mapping[TopicPartition, AdminError | None]
) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    """A table for people."""
    rows: list[tuple[object, ...]] = [
        (
            each.partition.topic,
            each.partition.partition,
            each.old,
            each.new,
            each.reason or str(outcomes.get(each.partition) or ""),
        )
        for each in planned
    ]
    return ("topic", "partition", "was", "is to be", "remark"), rows


def reset_value(each: PlannedReset, error: AdminError | None) -> dict[str, Any]:
    """For programs."""
    reason = None if each.reason is None else {"code": None, "message": each.reason}
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "old": each.old,
        "new": each.new,
        "error": reason if error is None else error_value(error),
    }
