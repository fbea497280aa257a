"""`lowtide groups`: list and describe consumer groups, with how far they are behind; set back their offsets; delete them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import typer

from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import Lag, find_lags
from lowtide.admin.groups import GroupDescription
from lowtide.admin.offset_reset import is_share_group, set_offsets
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.confirmation import confirm
from lowtide.cli.group_resets import planned_reset, reset_rows, reset_value, wanted_place
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, printable
from lowtide.cli.results import error_value, report_each
from lowtide.protocol.types import TopicPartition

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

Groups = Annotated[list[str], typer.Argument(metavar="GROUP…")]


@app.command("list")
@network
async def list_groups(
    call: NetworkCall,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="in this state, as Stable or Empty; may be repeated"),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="classic, consumer (KIP-848) or share (KIP-932)")
    ] = None,
) -> ExitCode:
    """List the groups of all brokers."""
    listed = await call.client.list_groups(states=state or (), kinds=kind or (), timeout=call.timeout_ms / 1000)
    if call.output is Output.JSON:
        rows = [
            {
                "group": each.group_id,
                "kind": each.kind or None,
                "state": each.state or None,
                "protocol_type": each.protocol_type,
                "coordinator": each.coordinator,
            }
            for each in listed.groups.values()
        ]
        print_json(
            {"groups": rows, "errors": {f"broker {key}": error_value(error) for key, error in listed.errors.items()}}
        )
    else:
        columns = ("group", "kind", "state", "coordinator")
        print_table(
            columns,
            [
                (each.group_id, each.kind or None, each.state or None, each.coordinator)
                for each in listed.groups.values()
            ],
        )
    return report_each({f"broker {key}": error for key, error in listed.errors.items()}, call.output, quiet=True)


@app.command()
@network
async def describe(
    call: NetworkCall,
    groups: Groups,
    *,
    members: Annotated[bool, typer.Option("--members", "-m", help="and what each member reads")] = False,
) -> ExitCode:
    """Show what groups have committed, and how many records they are behind; records that are deleted aren't counted.

    Of a share group it shows where its partitions start.
    """
    described = await call.client.describe_groups(groups, timeout=call.timeout_ms / 1000)
    found = {name: each for name, each in described.items() if isinstance(each, GroupDescription)}
    lags, failed = await find_lags(call.client, {name: each.kind for name, each in found.items()}, call.timeout_ms)
    values = []
    for name, group in found.items():
        readers = _readers(group)
        if call.output is Output.JSON:
            values.append(_value(group) | {"offsets": [_lag_value(lag, readers) for lag in lags.get(name, [])]})
            continue
        kind = f"{group.kind} group, {group.state}, {plural(len(group.members), 'member')}, coordinator {group.coordinator}"
        print(printable(f"{name}: {kind}{f', assignor {group.assignor}' if group.assignor else ''}"))
        rows = [_lag_row(lag, readers) for lag in lags.get(name, [])]
        print_table(("topic", "partition", "committed", "log start", "log end", "behind", "read by"), rows)
        if members:
            print_table(("member", "client", "host", "partitions"), map(_member_row, group.members))
    errors = {name: each for name, each in described.items() if isinstance(each, AdminError)} | failed
    if call.output is Output.JSON:
        print_json({"groups": values, "errors": {str(name): error_value(error) for name, error in errors.items()}})
    return report_each(errors, call.output, quiet=True)


@app.command()
@network
async def offsets(call: NetworkCall, groups: Groups) -> ExitCode:
    """Show what groups have committed, as it is; works for groups that the cluster doesn't list, too."""
    answers = await call.client.list_group_offsets(groups, timeout=call.timeout_ms / 1000)
    values: list[dict[str, Any]] = []
    failed: dict[Any, AdminError | None] = {}
    for name, committed in answers.items():
        if isinstance(committed, AdminError):
            failed[name] = committed
            continue
        for key, each in sorted(committed.items()):
            if isinstance(each, AdminError):
                failed[f"{name}, {key}"] = each
            else:
                epoch = None if each.leader_epoch < 0 else each.leader_epoch
                row = {"group": name, "topic": key.topic, "partition": key.partition, "offset": each.offset}
                values.append(row | {"leader_epoch": epoch, "metadata": each.metadata})
    if call.output is Output.JSON:
        print_json(
            {
                "offsets": values,
                "errors": {str(name): error_value(each) for name, each in failed.items() if each is not None},
            }
        )
    else:
        print_table(
            ("group", "topic", "partition", "offset", "leader epoch", "metadata"),
            [tuple(row.values()) for row in values],
        )
    return report_each(failed, call.output, quiet=True)


@app.command()
@network
async def reset(
    call: NetworkCall,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:PARTITIONS]", help="without it what the group has committed for"),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", "--to-offset", metavar="WHERE", help="earliest, latest, or an offset")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", "--to-datetime", metavar="TIME", help="the first record of then or later")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="so many records on, or back if it is negative")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be set, and set nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="don't ask")] = False,
) -> ExitCode:
    """Set what a group without members has committed: it reads from there on.

    Offsets are kept within what the log has.
    """
    wanted = wanted_place(to, to_time, shift_by)
    shares = await is_share_group(call.client, group, call.timeout_ms)
    planned = await planned_reset(call.client, group, topic or [], wanted, call.timeout_ms, shares=shares)
    new = {each.partition: each.new for each in planned if each.new is not None}
    if dry_run or not new:
        _print_reset(call.output, planned, {}, dry_run=True)
        return ExitCode.FAILED if len(new) < len(planned) or not planned else ExitCode.DONE
    if not yes:
        confirm(f"Set {plural(len(new), 'offset')} of group {printable(group)}?", reset_rows(planned, {}))
    outcomes = await set_offsets(call.client, group, planned, call.timeout_ms, shares=shares)
    _print_reset(call.output, planned, outcomes, dry_run=False)
    failed = len(new) < len(planned) or any(error is not None for error in outcomes.values())
    return ExitCode.FAILED if failed else ExitCode.DONE


@app.command()
@network
async def delete(
    call: NetworkCall, groups: Groups, *, yes: Annotated[bool, typer.Option("--yes", "-y", help="don't ask")] = False
) -> ExitCode:
    """Delete groups that have no members, with what they have committed."""
    if not all(groups):
        raise misused("a group has a name.")
    if not yes:
        confirm(
            f"Delete {plural(len(groups), 'group')} with all they have committed: {printable(', '.join(groups))}?",
            rehearsal="",
        )
    return report_each(
        await call.client.delete_groups(groups, timeout=call.timeout_ms / 1000), call.output, done="deleted"
    )


def _print_reset(
    output: Output, planned: Any, outcomes: Mapping[TopicPartition, AdminError | None], *, dry_run: bool
) -> None:
    if output is Output.JSON:
        print_json(
            {"dry_run": dry_run, "offsets": [reset_value(each, outcomes.get(each.partition)) for each in planned]}
        )
        return
    print_table(*reset_rows(planned, outcomes))
    if dry_run:
        print("Nothing was set.")


def _readers(group: GroupDescription) -> dict[TopicPartition, str]:
    """The client of each partition; members of a share group have some in common."""
    readers: dict[TopicPartition, list[str]] = {}
    for member in group.members:
        for partition in member.assignment:
            readers.setdefault(partition, []).append(member.client_id)
    return {partition: ", ".join(dict.fromkeys(names)) for partition, names in readers.items()}


def _member_row(member: Any) -> tuple[object, ...]:
    return member.member_id, member.client_id, member.host, _ranges(member.assignment)


def _ranges(partitions: Collection[TopicPartition]) -> str:
    """`flights:0,1,2 delays:0`."""
    topics: dict[str, list[int]] = {}
    for key in sorted(partitions):
        topics.setdefault(key.topic, []).append(key.partition)
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items())


def _lag_row(lag: Lag, readers: Mapping[TopicPartition, str]) -> tuple[object, ...]:
    key = lag.partition
    return key.topic, key.partition, lag.committed, lag.log_start, lag.log_end, lag.records, readers.get(key)


def _lag_value(lag: Lag, readers: Mapping[TopicPartition, str]) -> dict[str, Any]:
    return {
        "topic": lag.partition.topic,
        "partition": lag.partition.partition,
        "committed": lag.committed,
        "log_start_offset": lag.log_start,
        "log_end_offset": lag.log_end,
        "lag": lag.records,
        "read_by": readers.get(lag.partition),
    }


def _value(group: GroupDescription) -> dict[str, Any]:
    members = [
        {
            "member_id": each.member_id,
            "instance_id": each.instance_id,
            "client_id": each.client_id,
            "host": each.host,
            "partitions": [{"topic": key.topic, "partition": key.partition} for key in each.assignment],
        }
        for each in group.members
    ]
    return {
        "group": group.group_id,
        "kind": group.kind,
        "state": group.state,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator,
        "members": members,
    }
