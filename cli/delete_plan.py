"""Reads the options of a delete, and shows plans and results."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.delete_plan import DeletePlan, PlannedDelete
from lowtide.admin.deletion import Committed, DeletedRecords, DeleteResult, DeleteTarget, ErasedRecords
from lowtide.admin.errors import code_name
from lowtide.admin.offsets import Timestamp
from lowtide.admin.retained import size
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.cli.call import OptionGroup
from lowtide.cli.outcome import misused
from lowtide.cli.printing import moment, plural
from lowtide.protocol.types import BrokerId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(OptionGroup):
    """Where a delete ends. Exactly one is given."""

    offset: Annotated[
        str | None,
        typer.Option(
            "--offset", metavar="OFFSET", help="the first offset that stays, or `end` for all committed records"
        ),
    ] = None
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="TIME",
            help="delete what precedes the first record of a time: ISO 8601 with a time zone, or milliseconds",
        ),
    ] = None
    committed_by: Annotated[
        list[str] | None,
        typer.Option(
            "--committed-by", metavar="GROUP", help="what a group has consumed; repeated: what all groups have"
        ),
    ] = None


LeaderOnly = Annotated[
    bool, typer.Option("--leader-only", help="done when the leaders have deleted; followers follow later (KIP-1343)")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show what would be deleted, and delete nothing")]


def target_of(offset: str | None, before: str | None, groups: Sequence[str]) -> DeleteTarget:
    """Returns the target that exactly one option gives. Errors: CommandError."""
    given = [name for name, value in (("--offset", offset), ("--before", before), ("--committed-by", groups)) if value]
    if len(given) != 1:
        conflict = f"{' and '.join(given)} exclude each other: " if given else ""
        raise misused(f"{conflict}give one of --offset, --before and --committed-by.")
    try:
        if offset is not None:
            return parse_offset(offset)
        if before is not None:
            return Timestamp(parse_time(before))
        return Committed(groups)
    except ValueError as error:
        raise misused(f"{given[0]}: {error}.") from None


def in_words(target: DeleteTarget) -> str:
    """Describes a target for the question for confirmation."""
    if isinstance(target, Timestamp):
        return f"all records before the first one of {moment(target.ms)} or later"
    if isinstance(target, Committed):
        have = "has" if len(target.groups) == 1 else "have all"
        return f"all records that {' and '.join(target.groups)} {have} consumed"
    return "all records" if target < 0 else f"all records below offset {target}"


def matching_topics(patterns: Iterable[str], view: ClusterView) -> list[str]:
    """Returns the topics that match a pattern (`*` and `?`), except internal ones.

    Errors: CommandError if none does.
    """
    names = [name for name, topic in sorted(view.topics.items()) if not topic.is_internal]
    found: dict[str, None] = {}
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise misused(f"no topic matches {pattern!r}.")
        found.update(dict.fromkeys(fitting))
    return sorted(found)


PLAN_COLUMNS = ("topic", "partition", "log start", "delete to", "records", "bytes, about", "remark")


def plan_rows(plan: DeletePlan) -> list[tuple[object, ...]]:
    """Returns the rows of the table."""
    return [
        (*each.partition, each.log_start, each.delete_to, each.records, each.bytes, each.reason or "")
        for each in plan.deletes
    ]


def summary(plan: DeletePlan) -> str:
    """Returns the plan in one line."""
    space = "" if plan.bytes is None else f", about {size(plan.bytes)}"
    return f"{plural(plan.records, 'record')} of {plural(len(plan.offsets), 'partition')}{space}"


def plan_value(each: PlannedDelete) -> dict[str, Any]:
    """Returns a planned delete for JSON."""
    return {
        **each.partition._asdict(),
        "log_start_offset": each.log_start,
        "delete_to": each.delete_to,
        "records": each.records,
        "bytes_estimated": each.bytes,
        "error": None
        if each.reason is None
        else {"stage": "finding the offset", "code": None, "message": each.reason, "leader_done": False},
    }


def result_value(each: PlannedDelete, result: DeleteResult | None) -> dict[str, Any]:
    """Returns the result of a delete for JSON; None if nothing was sent."""
    value = plan_value(each) | {"low_watermark": None, "leader_log_start_offset": None}
    if isinstance(result, DeletedRecords):
        value["low_watermark"] = result.low_watermark
        value["leader_log_start_offset"] = (
            None if result.leader_log_start_offset < 0 else result.leader_log_start_offset
        )
        if isinstance(result, ErasedRecords):
            value["erased_by"] = list(result.erased_by)
            value["not_erased_by"] = [
                {"broker": broker, "message": reason} for broker, reason in sorted(result.not_erased_by.items())
            ]
    elif result is not None:
        value["error"] = {
            "stage": result.stage.value,
            "code": None if result.code is None else code_name(result.code),
            "message": result.reason,
            "leader_done": result.leader_done,
        }
    return value


def not_erased(results: Mapping[TopicPartition, DeleteResult]) -> str | None:
    """Returns a sentence about the brokers that have not erased, with the remedy; None if all have."""
    missing = brokers_with_reasons(each.not_erased_by for each in results.values() if isinstance(each, ErasedRecords))
    if not missing:
        return None
    return f"Deleted everywhere, but not erased at {missing}: run the same command again when the cause is gone."


def brokers_with_reasons(partitions: Iterable[Mapping[BrokerId, str]]) -> str:
    """Returns the brokers that have not erased, each with its partitions and the first reason; empty if all have."""
    brokers: dict[BrokerId, list[str]] = {}
    for each in partitions:
        for broker, reason in each.items():
            brokers.setdefault(broker, []).append(reason)
    return ", ".join(
        f"broker {broker} ({plural(len(reasons), 'partition')}: {reasons[0]})"
        for broker, reasons in sorted(brokers.items())
    )
