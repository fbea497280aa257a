"""`lowtide log-dirs`: shows log directories and the sizes of partitions, and moves partitions between directories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import LogDir, ReplicaSize
from lowtide.admin.retained import size
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import chosen_partitions, fitting
from lowtide.cli.full_directories import full_directories, print_full
from lowtide.cli.log_dir_moves import Moving, follow, plan_moves
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import Output, print_json, print_table
from lowtide.cli.results import error_value, error_values, errors_of, report_each


class _Describes(TyperGroup):
    """Runs `describe` if no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_option = bool(args) and args[0].startswith("-") and args[0] not in ("--help", "-h")
        return super().parse_args(ctx, ["describe", *args] if is_option or not args else args)


app = typer.Typer(add_completion=False, cls=_Describes)


@app.command()
@network
async def describe(
    call: NetworkCall,
    *,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", metavar="ID", help="a broker; may be repeated; default: all")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="PATTERN", help="topics, with the wildcards * and ?")
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", "-p", help="a row for each partition, the largest first")
    ] = False,
) -> ExitCode:
    """Show the log directories of brokers, their free space, and the sizes of partitions.

    `lowtide log-dirs` without a command does the same.
    """
    answers = await call.client.describe_log_dirs(broker or None)
    failed: dict[Any, AdminError] = {f"broker {key}": error for key, error in errors_of(answers).items()}
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
        values = [_value(broker_id, directory, chosen) for broker_id, directory in rows]
        print_json({"log_dirs": values, "errors": error_values(failed)})
    elif partitions:
        sizes = [
            (*key, broker_id, replica.size_bytes, replica.offset_lag, _shown(directory.path, replica))
            for broker_id, directory in rows
            for key, replica in directory.replicas.items()
            if key.topic in chosen
        ]
        sizes.sort(key=lambda row: (-row[3], row))
        print_table(("topic", "partition", "broker", "bytes", "behind", "directory"), sizes)
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
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="a log directory of the broker, from `describe`")],
    broker: Annotated[
        int | None,
        typer.Option("--broker", metavar="ID", min=0, help="the broker; default: each that has a replica and DIR"),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="begin the moves, and do not wait")] = False,
) -> ExitCode:
    """Move partitions to another log directory of their broker, and wait.

    They can be written and read meanwhile. If a partition is in DIR already, its move to another directory is
    cancelled.
    """
    path = to.rstrip("/") or "/"
    chosen = chosen_partitions(partitions, await call.client.list_topics(include_internal=True))
    answers = await call.client.describe_log_dirs(None if broker is None else [broker], partitions=chosen)
    plan = plan_moves(answers, chosen, path)
    begun = await call.client.alter_replica_log_dirs(dict.fromkeys(plan, path))
    outcomes = {replica: begun[replica] for replica in plan}
    if not no_wait:
        moving = Moving({replica: each for replica, each in plan.items() if outcomes[replica] is None}, path)
        await follow(call, moving)
        outcomes |= moving.failed
    more = {
        replica: {
            "broker": replica.broker_id,
            **replica.partition._asdict(),
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
    path = f"{directory.path} (cordoned)" if directory.is_cordoned else directory.path
    return broker_id, path, len(held), size(sum(each.size_bytes for each in held.values())), free, total


def _value(broker_id: int, directory: LogDir, chosen: set[str]) -> dict[str, Any]:
    rows = [
        {
            **key._asdict(),
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
        "full": directory.is_full,
        "cordoned": directory.is_cordoned,
        "partitions": rows,
    }
