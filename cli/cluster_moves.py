"""`lowtide cluster elect`, `move`, `moves`, `drain`, `replace` and `unregister`: moves replicas and leaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError
from lowtide.admin.move_plan import MovePlan, Replicas, assignment_of, drained, replaced, to_replicas
from lowtide.cli.call import NetworkCall, OptionGroup, Yes, network
from lowtide.cli.cluster_questions import chosen_partitions
from lowtide.cli.confirmation import confirm
from lowtide.cli.moving import AT_ONCE, carry_out, move_file, read_move_file, wait_for_moves
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table
from lowtide.cli.results import error_value, report_each
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.filesystem import OsFileSystem

SHOWN: Final = 20
"""Moves that the question for confirmation shows."""

Partitions = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC[:PARTITIONS]]…", help="flights, or flights:0,2-4; default: all")
]
BrokerArgument = Annotated[int, typer.Argument(metavar="ID", min=0, help="a broker")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions(OptionGroup):
    """The options of moves."""

    throttle: Annotated[
        int | None,
        typer.Option("--throttle", metavar="BYTES", min=1024, help="bytes a second for each broker during the moves"),
    ] = None
    at_once: Annotated[
        int, typer.Option("--at-once", metavar="N", min=1, max=10_000, help="how many partitions move at once")
    ] = AT_ONCE
    undo: Annotated[
        str | None,
        typer.Option("--undo", metavar="FILE", help="write the present replicas to a file for `move --file` first"),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the moves, and move nothing")] = False
    yes: Yes = False


@network
async def elect(
    call: NetworkCall,
    partitions: Partitions = None,
    *,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="where there is no leader, elect one that is not in sync: records are lost"),
    ] = False,
    yes: Yes = False,
) -> ExitCode:
    """Elect the preferred leader of each partition, if it is in sync.

    Brokers do that themselves within five minutes.
    """
    topics = await _topics(call)
    chosen = chosen_partitions(partitions or sorted(topics), topics)
    lacking = []
    for key in chosen:
        described = topics[key.topic].partitions[key.partition]
        if described.leader is None if unclean else described.leader not in described.replicas[:1]:
            lacking.append(key)
    if unclean and lacking and not yes:
        confirm(f"Elect leaders that may lack records, for {plural(len(lacking), 'partition')}?", rehearsal="")
    outcomes = await call.client.elect_leaders(lacking, unclean=unclean)
    if not outcomes and call.output is Output.TEXT:
        print(f"{plural(len(chosen), 'partition')}: nothing to elect.")
    return report_each(outcomes, call.output, done="elected")


@network
async def move(
    call: NetworkCall,
    partitions: Partitions = None,
    *,
    replicas: Annotated[
        str | None, typer.Option("--replicas", metavar="ID,…", help="brokers of each partition, preferred leader first")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="in the form of kafka-reassign-partitions, or written by --undo"),
    ] = None,
    options: MoveOptions,
) -> ExitCode:
    """Give partitions other replicas, and wait until these are in sync and the old ones are removed."""
    if (replicas is None) == (file is None) or (partitions is None) == (replicas is not None):
        raise misused("give partitions and --replicas, or --file.")
    topics = await _topics(call)
    assignment = assignment_of(topics)
    if file is not None:
        plan = MovePlan()
        for key, after in read_move_file(file, OsFileSystem()).items():
            if key not in assignment:
                raise misused(f"{file}: there is no partition {key}.")
            plan.move(key, assignment[key], after)
    else:
        chosen = chosen_partitions(partitions or sorted(topics), topics)
        plan = to_replicas({key: assignment[key] for key in chosen}, _ids(replicas or ""))
    return await _carry_out(call, plan, options, "Move")


@network
async def drain(call: NetworkCall, broker: BrokerArgument, *, options: MoveOptions) -> ExitCode:
    """Move all replicas of a broker to the others, and wait. Then it can be stopped for good.

    A partition moves to a rack without a replica of it, if there is one, and there to the broker with the fewest
    replicas. Topics that are created meanwhile may get replicas on the broker: repeat the command until none is left.
    """
    described = await call.client.describe_cluster(include_fenced=True)
    plan = drained(assignment_of(await _topics(call)), broker, described.brokers)
    return await _carry_out(call, plan, options, f"Drain broker {broker}: move")


@network
async def replace(
    call: NetworkCall,
    broker: BrokerArgument,
    by: Annotated[int, typer.Argument(metavar="NEW", min=0, help="the broker that replaces it")],
    *,
    options: MoveOptions,
) -> ExitCode:
    """Move all replicas of a broker, which may be dead, to another one, and wait."""
    described = await call.client.describe_cluster(include_fenced=True)
    if by not in [each.broker_id for each in described.brokers if not each.is_fenced]:
        raise misused(f"broker {by} does not exist or is fenced: start it first.")
    plan = replaced(assignment_of(await _topics(call)), broker, by)
    return await _carry_out(call, plan, options, f"Replace broker {broker} by {by}: move")


@network
async def moves(
    call: NetworkCall,
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="wait until all moves are done, and remove the throttle")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="cancel all moves, and remove the throttle")] = False,
) -> ExitCode:
    """Show the moves in progress."""
    under_way = await call.client.list_reassignments()
    outcomes: dict[TopicPartition, AdminError | None] = dict.fromkeys(under_way)
    if cancel:
        outcomes = await call.client.alter_reassignments(dict.fromkeys(under_way))
    if wait or cancel:
        await wait_for_moves(call)
    if cancel:
        return report_each(outcomes, call.output, done="cancelled")
    if call.output is Output.TEXT and not under_way:
        print("Nothing is being moved.")
        return ExitCode.DONE
    columns = ("replicas", "adding", "removing")
    rows = [(key, [getattr(each, name) for name in columns]) for key, each in sorted(under_way.items())]
    document = [{**key._asdict(), **dict(zip(columns, lists, strict=True))} for key, lists in rows]
    table = [(*key, *map(_text, lists)) for key, lists in rows]
    call.show({"moves": document, "waited": wait}, ("topic", "partition", *columns), table)
    return ExitCode.DONE


@network
async def unregister(call: NetworkCall, broker: BrokerArgument, *, yes: Yes = False) -> ExitCode:
    """Remove a broker that will not return from the cluster. It must be stopped and have no replicas."""
    left = sum(broker in replicas for replicas in assignment_of(await _topics(call)).values())
    if left:
        remedy = f"run `lowtide cluster drain {broker}` or `replace` first"
        raise CommandError(f"broker {broker} has replicas of {plural(left, 'partition')}: {remedy}.")
    if not yes:
        confirm(f"Remove broker {broker} from the cluster?", rehearsal="")
    try:
        await call.client.unregister_broker(broker)
    except AdminError as error:
        return report_each({f"broker {broker}": error}, call.output)
    return report_each({f"broker {broker}": None}, call.output, done="unregistered")


async def _topics(call: NetworkCall) -> dict[str, TopicDescription]:
    return await call.client.list_topics(include_internal=True)


def _ids(text: str) -> list[BrokerId]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise misused(f"--replicas {text} is invalid: it must be broker ids, each once, as in 1,2,3.")
    return [int(part) for part in parts]


async def _carry_out(call: NetworkCall, plan: MovePlan, options: MoveOptions, question: str) -> ExitCode:
    """Shows the plan, asks, and moves. Errors: CommandError, AdminError."""
    if options.dry_run:
        _print(call.output, plan, {}, dry_run=True)
        return ExitCode.FAILED if plan.problems else ExitCode.DONE
    if plan.after:
        if not options.yes:
            shown = None if call.output is Output.JSON else (_COLUMNS, _rows(plan, {})[:SHOWN])
            confirm(f"{question} {plural(len(plan.after), 'partition')}?", shown)
        if options.undo is not None:
            OsFileSystem().replace_file(options.undo, move_file(plan.before))
    outcomes = await carry_out(call, plan, options.at_once, options.throttle) if plan.after else {}
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
        rows = [
            {
                **key._asdict(),
                "from": plan.before[key],
                "to": after,
                "error": None if (error := outcomes.get(key)) is None else error_value(error),
            }
            for key, after in plan.after.items()
        ]
        problems = [{**key._asdict(), "reason": reason} for key, reason in plan.problems.items()]
        print_json({"dry_run": dry_run, "moves": rows, "problems": problems})
        return
    if plan.after or plan.problems:
        print_table(_COLUMNS, _rows(plan, outcomes))
    failed = sum(error is not None for error in outcomes.values())
    verb = "would be moved. Nothing was moved" if dry_run else "moved"
    print(f"{plural(len(plan.after) - failed, 'partition')} {verb}.")


def _text(replicas: Replicas) -> str:
    return " ".join(map(str, replicas))
