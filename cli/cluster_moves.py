"""`lowtide cluster elect`, `move`, `moves`, `drain`, `replace`, `unregister`: where replicas are, and who leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError
from lowtide.admin.move_plan import MovePlan, Replicas, assignment_of, drained, replaced, to_replicas
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import chosen_partitions
from lowtide.cli.confirmation import confirm
from lowtide.cli.move_file import move_file, read_move_file
from lowtide.cli.moving import AT_ONCE, Pace, carry_out, wait_for_moves
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table
from lowtide.cli.results import error_value, report_each
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.filesystem import OsFileSystem

SHOWN: Final = 20
"""Moves that are shown to people before they are asked."""

Partitions = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC[:PARTITIONS]]…", help="flights, or flights:0,2-4; all without any")
]
BrokerArgument = Annotated[int, typer.Argument(metavar="ID", min=0, help="a broker")]
ReplicasOption = Annotated[
    str | None, typer.Option("--replicas", metavar="ID,…", help="of each partition, the preferred leader first")
]
FileOption = Annotated[
    str | None,
    typer.Option(
        "--file", metavar="FILE", help="replicas by partition, as kafka-reassign-partitions has them, or --undo"
    ),
]
ThrottleOption = Annotated[
    int | None,
    typer.Option(
        "--throttle", metavar="BYTES", min=1024, help="so many bytes a second of each broker, until all are moved"
    ),
]
AtOnceOption = Annotated[
    int, typer.Option("--at-once", metavar="N", min=1, max=10_000, help="partitions that are moved at once")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="say what would be moved, and move nothing")]
UndoOption = Annotated[
    str | None,
    typer.Option(
        "--undo", metavar="FILE", help="write where the replicas are now, for `move --file`, before anything is moved"
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="don't ask")]


@network
async def elect(
    call: NetworkCall,
    partitions: Partitions = None,
    *,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="a leader that isn't in sync, where there is none: records are lost")
    ] = False,
    yes: YesOption = False,
) -> ExitCode:
    """Have the first replica of each partition lead, where it is in sync; brokers do so by themselves within five minutes."""
    topics = await _topics(call)
    chosen = chosen_partitions(partitions or sorted(topics), topics)
    lacking = []
    for key in chosen:
        described = topics[key.topic].partitions[key.partition]
        if described.leader is None if unclean else described.leader not in described.replicas[:1]:
            lacking.append(key)
    if unclean and lacking and not yes:
        confirm(f"Elect leaders that may lack records, for {plural(len(lacking), 'partition')}?", rehearsal="")
    outcomes = await call.client.elect_leaders(lacking, unclean=unclean, timeout=call.timeout_ms / 1000)
    if not outcomes and call.output is Output.TEXT:
        print(f"{plural(len(chosen), 'partition')}: nothing to elect.")
    return report_each(outcomes, call.output, done="elected")


@network
async def move(
    call: NetworkCall,
    partitions: Partitions = None,
    *,
    replicas: Annotated[
        str | None, typer.Option("--replicas", metavar="ID,…", help="of each partition, the preferred leader first")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="as kafka-reassign-partitions takes it, or --undo wrote it"),
    ] = None,
    throttle: ThrottleOption = None,
    at_once: AtOnceOption = AT_ONCE,
    undo: UndoOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> ExitCode:
    """Give partitions other replicas, and wait until these are in sync and the others are gone."""
    if (replicas is None) == (file is None) or (partitions is None) == (replicas is not None):
        raise misused("give partitions and --replicas, or --file.")
    topics = await _topics(call)
    assignment = assignment_of(topics)
    if file is not None:
        plan = MovePlan()
        for key, after in read_move_file(file, OsFileSystem()).items():
            if key not in assignment:
                raise misused(f"{file}: there is no {key}.")
            plan.move(key, assignment[key], after)
    else:
        wanted = _ids(replicas or "")
        plan = to_replicas(
            {key: assignment[key] for key in chosen_partitions(partitions or sorted(topics), topics)}, wanted
        )
    return await _carried_out(
        call, plan, Pace(at_once=at_once, throttle=throttle), undo=undo, asks=None if yes else "Move", dry_run=dry_run
    )


@network
async def drain(
    call: NetworkCall,
    broker: BrokerArgument,
    *,
    throttle: ThrottleOption = None,
    at_once: AtOnceOption = AT_ONCE,
    undo: UndoOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> ExitCode:
    """Give all replicas of a broker to the others, and wait for it; it can be stopped for good then, or serve again as it is.

    A partition goes to a rack that has none of its replicas, if there is one, and there to the broker with the fewest replicas. What is
    created meanwhile may get replicas on the broker: repeat the command until nothing is left.
    """
    described = await call.client.describe_cluster(include_fenced=True, timeout=call.timeout_ms / 1000)
    plan = drained(assignment_of(await _topics(call)), broker, described.brokers)
    pace = Pace(at_once=at_once, throttle=throttle)
    return await _carried_out(
        call, plan, pace, undo=undo, asks=None if yes else f"Drain broker {broker}: move", dry_run=dry_run
    )


@network
async def replace(
    call: NetworkCall,
    broker: BrokerArgument,
    by: Annotated[int, typer.Argument(metavar="NEW", min=0, help="the broker that takes its place")],
    *,
    throttle: ThrottleOption = None,
    at_once: AtOnceOption = AT_ONCE,
    undo: UndoOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> ExitCode:
    """Give all replicas of a broker, which may be dead, to another one, and wait for it."""
    described = await call.client.describe_cluster(include_fenced=True, timeout=call.timeout_ms / 1000)
    if by not in [each.broker_id for each in described.brokers if not each.is_fenced]:
        raise misused(f"broker {by} isn't there, or is fenced: start it first.")
    plan = replaced(assignment_of(await _topics(call)), broker, by)
    pace = Pace(at_once=at_once, throttle=throttle)
    return await _carried_out(
        call, plan, pace, undo=undo, asks=None if yes else f"Replace broker {broker} by {by}: move", dry_run=dry_run
    )


@network
async def moves(
    call: NetworkCall,
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="wait until nothing is being moved, and lift the throttle")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="cancel all: what comes goes, what goes stays; and lift the throttle")
    ] = False,
) -> ExitCode:
    """Show what is being moved."""
    under_way = await call.client.list_reassignments(timeout=call.timeout_ms / 1000)
    outcomes: dict[TopicPartition, AdminError | None] = dict.fromkeys(under_way)
    if cancel:
        outcomes = await call.client.alter_reassignments(dict.fromkeys(under_way), timeout=call.timeout_ms / 1000)
    if wait or cancel:
        await wait_for_moves(call)
    if cancel:
        return report_each(outcomes, call.output, done="cancelled")
    if call.output is Output.JSON:
        rows = [
            {
                "topic": key.topic,
                "partition": key.partition,
                "replicas": each.replicas,
                "adding": each.adding,
                "removing": each.removing,
            }
            for key, each in sorted(under_way.items())
        ]
        print_json({"moves": rows, "waited": wait})
    elif under_way:
        columns = ("topic", "partition", "replicas", "adding", "removing")
        rows_shown = [
            (*key, _text(each.replicas), _text(each.adding), _text(each.removing))
            for key, each in sorted(under_way.items())
        ]
        print_table(columns, rows_shown)
    else:
        print("Nothing is being moved.")
    return ExitCode.DONE


@network
async def unregister(call: NetworkCall, broker: BrokerArgument, *, yes: YesOption = False) -> ExitCode:
    """Have the cluster forget a broker that won't come back. It has to be stopped, and without replicas."""
    left = sum(broker in replicas for replicas in assignment_of(await _topics(call)).values())
    if left:
        message = f"broker {broker} has replicas of {plural(left, 'partition')}: `lowtide cluster drain {broker}` or `replace` comes first."
        raise CommandError(message)
    if not yes:
        confirm(f"Forget broker {broker}?", rehearsal="")
    try:
        await call.client.unregister_broker(broker, timeout=call.timeout_ms / 1000)
    except AdminError as error:
        return report_each({f"broker {broker}": error}, call.output)
    return report_each({f"broker {broker}": None}, call.output, done="unregistered")


async def _topics(call: NetworkCall) -> dict[str, TopicDescription]:
    return await call.client.list_topics(include_internal=True, timeout=call.timeout_ms / 1000)


def _ids(text: str) -> list[BrokerId]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise misused(f"--replicas {text} is not possible: allowed are ids of brokers, each once, as in 1,2,3.")
    return [int(part) for part in parts]


async def _carried_out(
    call: NetworkCall, plan: MovePlan, pace: Pace, *, undo: str | None, asks: str | None, dry_run: bool
) -> ExitCode:
    """Show the plan, ask, and move; with the results of all.

    `asks` begins the question. Errors: CommandError, AdminError.
    """
    count = plural(len(plan.after), "partition")
    if dry_run:
        _print(call.output, plan, {}, dry_run=True)
        return ExitCode.FAILED if plan.problems else ExitCode.DONE
    if plan.after:
        if asks is not None:
            rows = _rows(plan, {})
            confirm(f"{asks} {count}?", None if call.output is Output.JSON else (_COLUMNS, rows[:SHOWN]))
        if undo is not None:
            OsFileSystem().replace_file(undo, move_file(plan.before))
    outcomes = await carry_out(call, plan, pace) if plan.after else {}
    _print(call.output, plan, outcomes, dry_run=False)
    return ExitCode.FAILED if plan.problems or any(outcomes.values()) else ExitCode.DONE


_COLUMNS: Final = ("topic", "partition", "from", "to", "remark")


def _rows(plan: MovePlan, outcomes: Mapping[TopicPartition, AdminError | None]) -> list[tuple[object, ...]]:
    rows = [
        (*key, _text(plan.before[key]), _text(after), "" if outcomes.get(key) is None else str(outcomes[key]))
        for key, after in plan.after.items()
    ]
    return rows + [(*key, None, None, f"stays: {reason}") for key, reason in plan.problems.items()]


def _print(
    output: Output, plan: MovePlan, outcomes: Mapping[TopicPartition, AdminError | None], *, dry_run: bool
) -> None:
    if output is Output.JSON:
        rows = [_value(key, plan, outcomes.get(key)) for key in plan.after]
        problems = [
            {"topic": key.topic, "partition": key.partition, "reason": reason} for key, reason in plan.problems.items()
        ]
        print_json({"dry_run": dry_run, "moves": rows, "problems": problems})
        return
    if plan.after or plan.problems:
        print_table(_COLUMNS, _rows(plan, outcomes))
    failed = sum(error is not None for error in outcomes.values())
    verb = "would be moved. Nothing was moved" if dry_run else "moved"
    print(f"{plural(len(plan.after) - failed, 'partition')} {verb}.")


def _value(key: TopicPartition, plan: MovePlan, error: AdminError | None) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "from": plan.before[key],
        "to": plan.after[key],
        "error": None if error is None else error_value(error),
    }


def _text(replicas: Replicas) -> str:
    return " ".join(map(str, replicas))
