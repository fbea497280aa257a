"""`lowtide records`: deletes records, sweeps many partitions, finds, erases, shows and writes records."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from lowtide.admin.delete_plan import DeletePlan, PlannedDelete, make_plan
from lowtide.admin.deletion import DeletedRecords, DeleteResult, ErasedRecords
from lowtide.cli.call import NetworkCall, Yes, network
from lowtide.cli.cluster_questions import chosen_partitions, parsed_partitions
from lowtide.cli.confirmation import confirm
from lowtide.cli.delete_plan import (
    PLAN_COLUMNS,
    DryRun,
    LeaderOnly,
    TargetOptions,
    in_words,
    not_erased,
    plan_rows,
    plan_value,
    result_value,
    summary,
    target_of,
)
from lowtide.cli.erase import erase as erase_command
from lowtide.cli.find import find
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, print_json, print_table
from lowtide.cli.produce import produce
from lowtide.cli.show import show
from lowtide.cli.sweep import sweep
from lowtide.protocol.types import TopicPartition

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command("find")(find)
app.command("erase")(erase_command)
app.command("sweep")(sweep)
app.command("show")(show)
app.command("produce")(produce)

_RESULT_COLUMNS: Final = ("topic", "partition", "records", "low watermark", "leader log start", "error")
_ERASED_COLUMNS: Final = (*_RESULT_COLUMNS[:-1], "erased by", "error")


@app.command()
@network
async def delete(
    call: NetworkCall,
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITIONS]…", help="flights, or flights:0,2-4")],
    *,
    target: TargetOptions,
    leader_only: LeaderOnly = False,
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="done when all live replicas have removed the records from their files; names other brokers"
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> ExitCode:
    """Delete the oldest records of partitions: below an offset, before a time, or all that groups have consumed.

    The offsets are looked up once and shown; records that arrive later stay. If a group has committed nothing for a
    partition, or its offset is in doubt, the partition is left alone and the exit code is 1. With --erase the exit code
    is 1 while any replica has not erased.
    """
    if erase and leader_only:
        raise misused("--erase and --leader-only exclude each other: erasing concerns all replicas.")
    wanted = target_of(target.offset, target.before, target.committed_by or [])
    topics = dict.fromkeys(parsed_partitions(text)[0] for text in partitions)
    view = await call.client.call().view(topics)
    chosen = chosen_partitions(partitions, view.topics)
    plan = await make_plan(call.client, dict.fromkeys(chosen, wanted), view, with_bytes=True)
    if dry_run:
        _print_plan(call, plan, leader_only=leader_only)
        return _code(plan, {})
    if not plan.offsets:
        _print_results(call, plan, {}, leader_only=leader_only, erase=erase)
        return ExitCode.FAILED
    if not yes:
        verb = "Delete and erase" if erase else "Delete"
        confirm(
            f"{verb} {in_words(wanted)}: {summary(plan)}?",
            None if call.output is Output.JSON else (PLAN_COLUMNS, plan_rows(plan)),
        )
    results = await call.client.delete_records(
        plan.offsets, leader_only=leader_only, erase=erase, topic_ids=plan.topic_ids
    )
    _print_results(call, plan, results, leader_only=leader_only, erase=erase)
    if missing := not_erased(results):
        print(missing, file=sys.stderr)
    return ExitCode.FAILED if missing else _code(plan, results)


def _code(plan: DeletePlan, results: dict[TopicPartition, DeleteResult]) -> ExitCode:
    failed = any(each.reason is not None for each in plan.deletes) or not all(
        isinstance(each, DeletedRecords) for each in results.values()
    )
    return ExitCode.FAILED if failed else ExitCode.DONE


def _print_plan(call: NetworkCall, plan: DeletePlan, *, leader_only: bool) -> None:
    if call.output is Output.JSON:
        totals = {"records": plan.records, "bytes_estimated": plan.bytes}
        rows = [plan_value(each) for each in plan.deletes]
        print_json({"dry_run": True, "leader_only": leader_only, **totals, "partitions": rows})
        return
    print_table(PLAN_COLUMNS, plan_rows(plan))
    print(f"{summary(plan)} would be deleted. Nothing was deleted.")


def _print_results(
    call: NetworkCall, plan: DeletePlan, results: dict[TopicPartition, DeleteResult], *, leader_only: bool, erase: bool
) -> None:
    document = [result_value(each, results.get(each.partition)) for each in plan.deletes]
    call.show(
        {"dry_run": False, "leader_only": leader_only, "erase": erase, "partitions": document},
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
