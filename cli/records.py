"""`lowtide records`: delete records, sweep many partitions, show records, write some."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from lowtide.admin.delete_plan import Plan, PlannedDelete, make_plan
from lowtide.admin.deletion import DeletedRecords, DeleteResult, ErasedRecords
from lowtide.admin.wanted_offsets import parse_partitions
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import view_of_topics
from lowtide.cli.confirmation import confirm
from lowtide.cli.delete_plan import (
    PLAN_COLUMNS,
    chosen_partitions,
    in_words,
    not_erased,
    plan_rows,
    plan_value,
    result_value,
    summary,
    target_of,
)
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, print_json, print_table
from lowtide.cli.produce import produce
from lowtide.cli.show import show
from lowtide.cli.sweep import sweep
from lowtide.protocol.types import TopicPartition

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Delete records, sweep many partitions, show records, write some."
)
app.command("sweep")(sweep)
app.command("show")(show)
app.command("produce")(produce)

OffsetOption = Annotated[
    str | None,
    typer.Option("--offset", metavar="OFFSET", help="the first offset that stays, or `end` for all that is committed"),
]
BeforeOption = Annotated[
    str | None,
    typer.Option(
        "--before",
        metavar="TIME",
        help="ISO 8601 with a time zone, or milliseconds: what is older than the first record of then",
    ),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--committed-by", metavar="GROUP", help="what this group has consumed; of several, what all of them have"
    ),
]
LeaderOnlyOption = Annotated[
    bool, typer.Option("--leader-only", help="done as soon as the leader has deleted; other replicas follow (KIP-1343)")
]
EraseOption = Annotated[
    bool,
    typer.Option(
        "--erase",
        help="done when no file of any live replica has the deleted records any more; names brokers that are away",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="say what would go, and delete nothing")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="don't ask")]

_RESULT_COLUMNS: Final = ("topic", "partition", "records", "low watermark", "leader log start", "error")
_ERASED_COLUMNS: Final = (*_RESULT_COLUMNS[:-1], "erased by", "error")


@app.command()
@network
async def delete(
    call: NetworkCall,
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITIONS]…", help="flights, or flights:0,2-4")],
    *,
    offset: OffsetOption = None,
    before: BeforeOption = None,
    committed_by: GroupOption = None,
    leader_only: LeaderOnlyOption = False,
    erase: EraseOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> ExitCode:
    """Delete the beginning of partitions: up to an offset, a time, or what groups have consumed.

    The offsets are looked up once and shown; nothing that comes later is deleted. Partitions of which a group has
    committed nothing, or of which the offset is in doubt, are left alone, and the exit code is 1 then. So it is with
    --erase while any replica has not erased.
    """
    if erase and leader_only:
        raise misused("--erase and --leader-only are not possible together: erasing concerns all replicas.")
    target = target_of(offset, before, committed_by or [])
    topics = dict.fromkeys(text.partition(":")[0] for text in partitions)
    for text in partitions:
        _check(text)
    view = await view_of_topics(call.client, list(topics), call.timeout_ms)
    chosen = chosen_partitions(partitions, view)
    plan = await make_plan(call.client, dict.fromkeys(chosen, target), view, call.timeout_ms, with_bytes=True)
    if dry_run:
        _print_plan(call, plan, leader_only=leader_only)
        return _code(plan, {})
    if not plan.offsets:
        _print_results(call, plan, {}, leader_only=leader_only, erase=erase)
        return ExitCode.FAILED
    if not yes:
        verb = "Delete and erase" if erase else "Delete"
        confirm(
            f"{verb} {in_words(target)}: {summary(plan)}?",
            None if call.output is Output.JSON else (PLAN_COLUMNS, plan_rows(plan)),
        )
    results = await call.client.delete_records(
        plan.offsets, leader_only=leader_only, erase=erase, timeout=call.timeout_ms / 1000, topic_ids=plan.topic_ids
    )
    _print_results(call, plan, results, leader_only=leader_only, erase=erase)
    if missing := not_erased(results):
        print(missing, file=sys.stderr)
    return ExitCode.FAILED if missing else _code(plan, results)


def _check(text: str) -> None:
    """Errors: CommandError, before a cluster is asked."""
    try:
        parse_partitions(text)
    except ValueError as error:
        raise misused(f"{error}.") from None


def _code(plan: Plan, results: dict[TopicPartition, DeleteResult]) -> ExitCode:
    failed = any(each.reason is not None for each in plan.deletes) or not all(
        isinstance(each, DeletedRecords) for each in results.values()
    )
    return ExitCode.FAILED if failed else ExitCode.DONE


def _print_plan(call: NetworkCall, plan: Plan, *, leader_only: bool) -> None:
    if call.output is Output.JSON:
        rows = [plan_value(each) for each in plan.deletes]
        print_json(
            {
                "dry_run": True,
                "leader_only": leader_only,
                "records": plan.records,
                "bytes_estimated": plan.bytes,
                "partitions": rows,
            }
        )
        return
    print_table(PLAN_COLUMNS, plan_rows(plan))
    print(f"{summary(plan)} would go. Nothing was deleted.")


def _print_results(
    call: NetworkCall, plan: Plan, results: dict[TopicPartition, DeleteResult], *, leader_only: bool, erase: bool
) -> None:
    if call.output is Output.JSON:
        rows = [result_value(each, results.get(each.partition)) for each in plan.deletes]
        print_json({"dry_run": False, "leader_only": leader_only, "erase": erase, "partitions": rows})
        return
    print_table(
        _ERASED_COLUMNS if erase else _RESULT_COLUMNS,
        [_row(each, results.get(each.partition), erase=erase) for each in plan.deletes],
    )


def _row(each: PlannedDelete, result: DeleteResult | None, *, erase: bool) -> tuple[object, ...]:
    key = each.partition
    if isinstance(result, DeletedRecords):
        start = None if result.leader_log_start_offset < 0 else result.leader_log_start_offset
        values: tuple[object, ...] = (each.records, result.low_watermark, start)
        reason: str | None = ""
    else:
        values = (0 if result is None else None, None, None)
        reason = each.reason if result is None else str(result).removeprefix(f"{key}: ")
    erased = (", ".join(map(str, result.erased_by)) if isinstance(result, ErasedRecords) else None,) if erase else ()
    return (key.topic, key.partition, *values, *erased, reason)
