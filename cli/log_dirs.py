"""`lowtide log-dirs`: the log directories of brokers, how much space partitions take in them, and moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import LogDir, ReplicaSize
from lowtide.admin.retained import size
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import chosen_partitions, fitting
from lowtide.cli.full_directories import full_directories, is_full, print_full
from lowtide.cli.log_dir_moves import Moving, follow, plan_moves
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import Output, print_json, print_table
from lowtide.cli.results import error_value, report_each

_HELP: Final = (
    "Show log directories, how full they are and what partitions take; move partitions between those of a broker."
)


class _Describes(TyperGroup):
    """Without the name of a command it describes, as it did before there were others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_option = bool(args) and args[0].startswith("-") and args[0] not in ("--help", "-h")
        return super().parse_args(ctx, ["describe", *args] if is_option or not args else args)


app = typer.Typer(add_completion=False, cls=_Describes, help=_HELP)


@app.command()
@network
async def describe(
    call: NetworkCall,
    *,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", metavar="ID", help="of this broker; may be repeated; without it all")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="PATTERN", help="of these topics, with * and ?")
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", "-p", help="a row for each partition, the largest first")
    ] = False,
) -> ExitCode:
    """Show what log directories brokers have, how full they are, and how much space partitions take.

    `lowtide log-dirs` without a command does the same.
    """
    answers = await call.client.describe_log_dirs(broker or None, timeout=call.timeout_ms / 1000)
    failed: dict[Any, AdminError | None] = {
        f"broker {broker_id}": each for broker_id, each in answers.items() if isinstance(each, AdminError)
    }
    found = {broker_id: each for broker_id, each in answers.items() if not isinstance(each, AdminError)}
    rows = [
        (broker_id, directory) for broker_id, directories in sorted(found.items()) for directory in directories.values()
    ]
    names = {key.topic for _, directory in rows for key in directory.replicas}
    chosen = set(fitting(topic, names)) if topic else names
    failed |= {
        f"broker {broker_id}, {directory.path}": directory.error
        for broker_id, directory in rows
        if directory.error is not None
    }
    if call.output is Output.JSON:
        errors = {str(name): error_value(each) for name, each in failed.items() if each is not None}
        print_json(
            {"log_dirs": [_value(broker_id, directory, chosen) for broker_id, directory in rows], "errors": errors}
        )
    elif partitions:
        sizes: list[tuple[str, int, int, int, int, str]] = [
            (
                key.topic,
                key.partition,
                broker_id,
                replica.size_bytes,
                replica.offset_lag,
                _shown(directory.path, replica),
            )
            for broker_id, directory in rows
            for key, replica in directory.replicas.items()
            if key.topic in chosen
        ]
        columns = ("topic", "partition", "broker", "bytes", "behind", "directory")
        sizes.sort(key=lambda row: (-row[3], row))
        print_table(columns, sizes)
    else:
        columns = ("broker", "directory", "partitions", "their size", "free", "of")
        print_table(columns, [_row(broker_id, directory, chosen) for broker_id, directory in rows])
        print_full(full_directories(found))
    return report_each(failed, call.output, quiet=True)


@app.command()
@network
async def move(
    call: NetworkCall,
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITIONS]…", help="flights, or flights:0,2-4")],
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="a log directory of the broker, as `describe` shows it")
    ],
    broker: Annotated[
        int | None,
        typer.Option(
            "--broker", metavar="ID", min=0, help="on this broker; without it on each that has a replica and DIR"
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="begin the moves, and leave them to the brokers")] = False,
) -> ExitCode:
    """Move partitions into another log directory of their broker, and wait until they are there.

    They are written and read meanwhile. Where a partition is in DIR already, another move of it ends.
    """
    timeout_s, path = call.timeout_ms / 1000, to.rstrip("/") or "/"
    chosen = chosen_partitions(partitions, await call.client.list_topics(include_internal=True, timeout=timeout_s))
    answers = await call.client.describe_log_dirs(
        None if broker is None else [broker], partitions=chosen, timeout=timeout_s
    )
    plan = plan_moves(answers, chosen, path)
    begun = await call.client.alter_replica_log_dirs(dict.fromkeys(plan, path), timeout=timeout_s)
    outcomes = {replica: begun[replica] for replica in plan}
    if not no_wait:
        moving = Moving({replica: each for replica, each in plan.items() if outcomes[replica] is None}, path)
        await follow(call, moving)
        outcomes |= moving.failed
    more = {
        replica: {
            "broker": replica.broker_id,
            "topic": replica.partition.topic,
            "partition": replica.partition.partition,
            "from": plan[replica].directory,
            "to": path,
            "bytes": plan[replica].size_bytes,
        }
        for replica in plan
    }
    return report_each(outcomes, call.output, done="is being moved" if no_wait else f"is in {path}", more=more)


def _shown(path: str, replica: ReplicaSize) -> str:
    return f"{path} (moving here)" if replica.is_future else path


def _held(directory: LogDir, chosen: set[str]) -> Mapping[Any, Any]:
    return {key: replica for key, replica in directory.replicas.items() if key.topic in chosen}


def _row(broker_id: int, directory: LogDir, chosen: set[str]) -> tuple[object, ...]:
    held = _held(directory, chosen)
    free, total = (None if count < 0 else size(count) for count in (directory.usable_bytes, directory.total_bytes))
    return broker_id, directory.path, len(held), size(sum(each.size_bytes for each in held.values())), free, total


def _value(broker_id: int, directory: LogDir, chosen: set[str]) -> dict[str, Any]:
    rows = [
        {
            "topic": key.topic,
            "partition": key.partition,
            "bytes": replica.size_bytes,
            "offset_lag": replica.offset_lag,
            "moving_here": replica.is_future,
        }
        for key, replica in _held(directory, chosen).items()
    ]
    return {
        "broker": broker_id,
        "path": directory.path,
        "error": None if directory.error is None else error_value(directory.error),
        "total_bytes": None if directory.total_bytes < 0 else directory.total_bytes,
        "usable_bytes": None if directory.usable_bytes < 0 else directory.usable_bytes,
        "full": is_full(directory),
        "partitions": rows,
    }
