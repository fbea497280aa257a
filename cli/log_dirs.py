"""`lowtide log-dirs`: the log directories of brokers, and how much space partitions take in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import LogDir
from lowtide.admin.retained import size
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import fitting
from lowtide.cli.full_directories import full_directories, is_full, print_full
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import Output, print_json, print_table
from lowtide.cli.results import error_value, report_each

app = typer.Typer(add_completion=False)


@app.command()
@network
async def log_dirs(
    call: NetworkCall,
    *,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", metavar="ID", help="of this broker; may be repeated; without it all")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="PATTERN", help="of these topics, with * and ?")] = None,
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="a row for each partition, the largest first")] = False,
) -> ExitCode:
    """Show what log directories brokers have, how full they are, and how much space partitions take."""
    answers = await call.client.describe_log_dirs(broker or None, timeout=call.timeout_ms / 1000)
    failed: dict[Any, AdminError | None] = {
        f"broker {broker_id}": each for broker_id, each in answers.items() if isinstance(each, AdminError)
    }
    found = {broker_id: each for broker_id, each in answers.items() if not isinstance(each, AdminError)}
    rows = [(broker_id, directory) for broker_id, directories in sorted(found.items()) for directory in directories.values()]
    names = {key.topic for _, directory in rows for key in directory.replicas}
    chosen = set(fitting(topic, names)) if topic else names
    failed |= {f"broker {broker_id}, {directory.path}": directory.error for broker_id, directory in rows if directory.error is not None}
    if call.output is Output.JSON:
        errors = {str(name): error_value(each) for name, each in failed.items() if each is not None}
        print_json({"log_dirs": [_value(broker_id, directory, chosen) for broker_id, directory in rows], "errors": errors})
    elif partitions:
        sizes: list[tuple[str, int, int, int, int, str]] = [
            (key.topic, key.partition, broker_id, replica.size_bytes, replica.offset_lag, directory.path)
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
