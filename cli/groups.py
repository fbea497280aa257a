"""`lowtide groups`: lists and describes groups with their lag, resets their offsets, and deletes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from lowtide.admin.client import AdminClient
from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import Lag, find_lags
from lowtide.admin.groups import GroupDescription
from lowtide.admin.offset_reset import (
    PlannedReset,
    ResetTarget,
    committed_offsets,
    is_share_group,
    partitions_to_reset,
    plan_reset,
    set_offsets,
)
from lowtide.cli.call import NetworkCall, Yes, network
from lowtide.cli.cluster_questions import chosen_partitions, parsed_partitions
from lowtide.cli.confirmation import confirm
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, printable
from lowtide.cli.results import error_value, error_values, errors_of, report_each
from lowtide.cli.streams_groups import member_value, print_streams_group, topology_value
from lowtide.protocol.types import TopicPartition

app = typer.Typer(add_completion=False, no_args_is_help=True)

Groups = Annotated[list[str], typer.Argument(metavar="GROUP…")]


@app.command("list")
@network
async def list_groups(
    call: NetworkCall,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="a state, such as Stable or Empty; may be repeated"),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="classic, consumer, share or streams")
    ] = None,
) -> ExitCode:
    """List the groups of all brokers."""
    listed = await call.client.list_groups(states=state or (), kinds=kind or ())
    groups = listed.groups.values()
    errors = {f"broker {key}": error for key, error in listed.errors.items()}
    document = [
        {
            "group": each.group_id,
            "kind": each.kind or None,
            "state": each.state or None,
            "protocol_type": each.protocol_type,
            "coordinator": each.coordinator,
        }
        for each in groups
    ]
    rows = [(each.group_id, each.kind or None, each.state or None, each.coordinator) for each in groups]
    columns = ("group", "kind", "state", "coordinator")
    call.show({"groups": document, "errors": error_values(errors)}, columns, rows)
    return report_each(errors, call.output, quiet=True)


@app.command()
@network
async def describe(
    call: NetworkCall,
    groups: Groups,
    *,
    members: Annotated[bool, typer.Option("--members", "-m", help="show the partitions of each member too")] = False,
) -> ExitCode:
    """Show the committed offsets and the lag of groups. Deleted records are not counted.

    For a share group, show the start offsets of its partitions. For a streams group, --members shows tasks too.
    """
    described = await call.client.describe_groups(groups)
    found = {name: each for name, each in described.items() if isinstance(each, GroupDescription)}
    lags, failed = await find_lags(call.client, {name: each.kind for name, each in found.items()})
    values = []
    for name, group in found.items():
        readers = _readers(group)
        if call.output is Output.JSON:
            values.append(_value(group) | {"offsets": [_lag_value(lag, readers) for lag in lags.get(name, [])]})
            continue
        count = plural(len(group.members), "member")
        kind = f"{group.kind} group, {group.state}, {count}, coordinator {group.coordinator}"
        print(printable(f"{name}: {kind}{f', assignor {group.assignor}' if group.assignor else ''}"))
        rows = [_lag_row(lag, readers) for lag in lags.get(name, [])]
        print_table(("topic", "partition", "committed", "log start", "log end", "behind", "read by"), rows)
        if members and group.topology is not None:
            print_streams_group(group)
        elif members:
            print_table(("member", "client", "host", "partitions"), map(_member_row, group.members))
    errors = errors_of(described) | failed
    if call.output is Output.JSON:
        print_json({"groups": values, "errors": error_values(errors)})
    return report_each(errors, call.output, quiet=True)


@app.command()
@network
async def offsets(call: NetworkCall, groups: Groups) -> ExitCode:
    """Show the committed offsets of groups, also of groups that the cluster does not list."""
    answers = await call.client.list_group_offsets(groups)
    values: list[dict[str, Any]] = []
    failed: dict[Any, AdminError] = {**errors_of(answers)}
    for name, committed in answers.items():
        for key, each in sorted(() if isinstance(committed, AdminError) else committed.items()):
            if isinstance(each, AdminError):
                failed[f"{name}, {key}"] = each
            else:
                epoch = None if each.leader_epoch < 0 else each.leader_epoch
                row = {"group": name, **key._asdict(), "offset": each.offset}
                values.append(row | {"leader_epoch": epoch, "metadata": each.metadata})
    columns = ("group", "topic", "partition", "offset", "leader epoch", "metadata")
    document = {"offsets": values, "errors": error_values(failed)}
    call.show(document, columns, [tuple(row.values()) for row in values])
    return report_each(failed, call.output, quiet=True)


@app.command()
@network
async def reset(
    call: NetworkCall,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:PARTITIONS]", help="default: the partitions with committed offsets"
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", "--to-offset", metavar="WHERE", help="earliest, latest, or an offset")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", "--to-datetime", metavar="TIME", help="the first record at or after a time"),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="forward by N records, or back if N is negative")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the new offsets, and set nothing")] = False,
    yes: Yes = False,
) -> ExitCode:
    """Set the committed offsets of a group without members.

    Offsets are limited to what the log has. Without --topic, a streams group's internal topics keep theirs.
    """
    if sum(each is not None for each in (to, to_time, shift_by)) != 1:
        raise misused("give one of --to, --to-time and --shift-by.")
    try:
        target = ResetTarget.of(to, to_time, shift_by)
    except ValueError as error:
        raise misused(f"{error}.") from None
    shares = await is_share_group(call.client, group)
    planned = await _planned(call.client, group, topic or [], target, shares=shares)
    new = {each.partition: each.new for each in planned if each.new is not None}
    if dry_run or not new:
        _print_reset(call, planned, {}, dry_run=True)
        return ExitCode.FAILED if len(new) < len(planned) or not planned else ExitCode.DONE
    if not yes:
        confirm(
            f"Set {plural(len(new), 'offset')} of group {printable(group)}?", (_RESET_COLUMNS, _reset_rows(planned, {}))
        )
    outcomes = await set_offsets(call.client, group, planned, shares=shares)
    _print_reset(call, planned, outcomes, dry_run=False)
    failed = len(new) < len(planned) or any(error is not None for error in outcomes.values())
    return ExitCode.FAILED if failed else ExitCode.DONE


@app.command()
@network
async def delete(call: NetworkCall, groups: Groups, *, yes: Yes = False) -> ExitCode:
    """Delete groups without members, and their committed offsets."""
    if not all(groups):
        raise misused("GROUP must not be empty.")
    if not yes:
        confirm(
            f"Delete {plural(len(groups), 'group')} with all committed offsets: {printable(', '.join(groups))}?",
            rehearsal="",
        )
    return report_each(await call.client.delete_groups(groups), call.output, done="deleted")


async def _planned(
    client: AdminClient, group: str, topics: Sequence[str], target: ResetTarget, *, shares: bool
) -> list[PlannedReset]:
    """Plans the reset of the named partitions, or of those with committed offsets. Errors: CommandError, AdminError."""
    committed = await committed_offsets(client, group, shares=shares)
    if topics:
        names = dict.fromkeys(parsed_partitions(text)[0] for text in topics)
        partitions = chosen_partitions(topics, (await client.call().view(names)).topics)
    elif committed:
        partitions = await partitions_to_reset(client, group, committed)
    else:
        raise misused(f"group {group} has no committed offsets: give --topic.")
    return await plan_reset(client, partitions, committed, target)


_RESET_COLUMNS: Final = ("topic", "partition", "was", "is to be", "remark")


def _reset_rows(
    planned: Iterable[PlannedReset], outcomes: Mapping[TopicPartition, AdminError | None]
) -> list[tuple[object, ...]]:
    return [
        (*each.partition, each.old, each.new, each.reason or str(outcomes.get(each.partition) or ""))
        for each in planned
    ]


def _reset_value(each: PlannedReset, error: AdminError | None) -> dict[str, Any]:
    reason = None if each.reason is None else {"code": None, "message": each.reason}
    shown = reason if error is None else error_value(error)
    return {**each.partition._asdict(), "old": each.old, "new": each.new, "error": shown}


def _print_reset(
    call: NetworkCall,
    planned: Sequence[PlannedReset],
    outcomes: Mapping[TopicPartition, AdminError | None],
    *,
    dry_run: bool,
) -> None:
    document = [_reset_value(each, outcomes.get(each.partition)) for each in planned]
    call.show({"dry_run": dry_run, "offsets": document}, _RESET_COLUMNS, _reset_rows(planned, outcomes))
    if dry_run and call.output is Output.TEXT:
        print("Nothing was set.")


def _readers(group: GroupDescription) -> dict[TopicPartition, str]:
    """Returns the clients that read each partition; members of a share group share partitions."""
    readers: dict[TopicPartition, list[str]] = {}
    for member in group.members:
        for partition in member.assignment:
            readers.setdefault(partition, []).append(member.client_id)
    return {partition: ", ".join(dict.fromkeys(names)) for partition, names in readers.items()}


def _member_row(member: Any) -> tuple[object, ...]:
    return member.member_id, member.client_id, member.host, _ranges(member.assignment)


def _ranges(partitions: Collection[TopicPartition]) -> str:
    """Formats partitions as `flights:0,1,2 delays:0`."""
    topics: dict[str, list[int]] = {}
    for key in sorted(partitions):
        topics.setdefault(key.topic, []).append(key.partition)
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items())


def _lag_row(lag: Lag, readers: Mapping[TopicPartition, str]) -> tuple[object, ...]:
    key = lag.partition
    return key.topic, key.partition, lag.committed, lag.log_start, lag.log_end, lag.records, readers.get(key)


def _lag_value(lag: Lag, readers: Mapping[TopicPartition, str]) -> dict[str, Any]:
    return {
        **lag.partition._asdict(),
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
            "partitions": [key._asdict() for key in each.assignment],
            **({} if each.streams is None else member_value(each.streams)),
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
        **({} if group.topology is None else {"topology": topology_value(group.topology)}),
    }
