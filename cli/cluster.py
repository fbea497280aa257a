"""`lowtide cluster`: shows the brokers, the controller and problems. `cluster_moves` has the commands for changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_description import ClusterDescription, describe_all_brokers
from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.errors import AdminError, code_name
from lowtide.cli import cluster_moves
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.full_directories import FullDirectory, full_directories, full_values, print_full
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import Output, plural, print_json, print_table, remark
from lowtide.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from lowtide.protocol.types import TopicPartition

app = typer.Typer(add_completion=False, no_args_is_help=True)
for name, command in (
    ("elect", cluster_moves.elect),
    ("move", cluster_moves.move),
    ("moves", cluster_moves.moves),
    ("drain", cluster_moves.drain),
    ("replace", cluster_moves.replace),
    ("unregister", cluster_moves.unregister),
):
    app.command(name)(command)

SHOWN: Final = 20
"""Rows of each kind of problem."""

PATIENCE_MS: Final = 5_000
"""How long the command waits for the answer of a single broker. By default the cluster fences a silent one earlier."""

Unwell = Mapping[TopicPartition, PartitionDescription]


@app.command()
@network
async def status(call: NetworkCall) -> ExitCode:
    """Show the brokers, the controller, unhealthy partitions, reassignments, full log directories, and features.

    The exit code is 1 if there is no controller, a partition has no leader or a replica out of sync, a broker is
    fenced, or a log directory is full. Reassignments are no failure.
    """
    client = call.client
    await describe_all_brokers(client)  # Fails if there is no cluster.
    # Single brokers are asked first, because a silent one takes time: the other answers are then up to date.
    patience_s = min(client.settings.default_api_timeout_ms, PATIENCE_MS) / 1000
    full, moves = await _full(client, patience_s), await _moves(client, patience_s)
    described = await describe_all_brokers(client)
    topics = await client.list_topics(include_internal=True)
    leaderless = _those(topics, lambda each: each.leader is None)
    behind = _those(topics, lambda each: len(each.isr) < len(each.replicas))
    features = await client.describe_features()
    levels = {name: feature.finalized_level or None for name, feature in sorted(features.items())}
    if call.output is Output.JSON:
        details = {"reassignments": moves, "features": levels, "full_log_dirs": full_values(full)}
        print_json(_value(described, topics, leaderless, behind) | details)
    else:
        _print(described, topics, leaderless, behind)
        if moves is None:
            print("The reassignments are unknown.")
        elif moves:
            print_table(
                ("being moved", "replicas", "adding", "removing"),
                [(f"{row['topic']}-{row['partition']}", *_lists(row)) for row in moves],
            )
        else:
            print("Nothing is being moved.")
        print_full(full)
        used = ", ".join(f"{name} {level}" for name, level in levels.items() if level is not None)
        print(f"Features: {used or 'none are reported'}.")
    fenced = any(broker.is_fenced for broker in described.brokers)
    return (
        ExitCode.FAILED if leaderless or behind or fenced or full or described.controller_id is None else ExitCode.DONE
    )


async def _full(client: AdminClient, timeout_s: float) -> list[FullDirectory]:
    """Returns the full log directories of the brokers that answer."""
    try:
        answers = await client.describe_log_dirs(timeout=timeout_s)
    except AdminError as error:
        remark(f"the free space of log directories is unknown: {error}")
        return []
    for broker_id, each in answers.items():
        if isinstance(each, AdminError):
            remark(f"the free space of the log directories of broker {broker_id} is unknown: {each}")
    return full_directories(answers)


async def _moves(client: AdminClient, timeout_s: float) -> list[dict[str, Any]] | None:
    """Returns the reassignments in progress; None if the cluster does not return them."""
    call = client.call(timeout_s)
    try:
        controller = await call.cluster.controller(call.deadline)
        answer: ListPartitionReassignmentsResponse = await call.ask(controller, ListPartitionReassignmentsRequest())
    except AdminError as error:
        remark(f"the reassignments are unknown: {error}")
        return None
    if answer.error_code:
        remark(f"the reassignments are unknown: {code_name(answer.error_code)}")
        return None
    return [
        {
            "topic": topic.name,
            "partition": row.partition_index,
            "replicas": row.replicas,
            "adding": row.adding_replicas,
            "removing": row.removing_replicas,
        }
        for topic in answer.topics
        for row in topic.partitions
    ]


def _those(topics: Mapping[str, TopicDescription], wanted: Any) -> dict[TopicPartition, PartitionDescription]:
    return {
        TopicPartition(name, number): each
        for name, topic in sorted(topics.items())
        for number, each in topic.partitions.items()
        if wanted(each)
    }


def _lists(row: Mapping[str, Any]) -> list[str]:
    return [" ".join(map(str, row[key])) for key in ("replicas", "adding", "removing")]


def _print(
    described: ClusterDescription, topics: Mapping[str, TopicDescription], leaderless: Unwell, behind: Unwell
) -> None:
    controller = "no broker is" if described.controller_id is None else f"broker {described.controller_id} is"
    print(f"Cluster {described.cluster_id or '(no id)'}, {controller} the controller.")
    rows = [
        (each.broker_id, str(each.address), each.rack, "fenced" if each.is_fenced else "") for each in described.brokers
    ]
    print_table(("broker", "address", "rack", "remark"), rows)
    count = sum(len(topic.partitions) for topic in topics.values())
    print(f"{plural(len(topics), 'topic')}, {plural(count, 'partition')}.")
    for title, partitions in (("without a leader", leaderless), ("with replicas behind", behind)):
        if not partitions:
            continue
        print(f"{plural(len(partitions), 'partition')} {title}:")
        some = [
            (key.topic, key.partition, each.leader, " ".join(map(str, each.replicas)), " ".join(map(str, each.isr)))
            for key, each in list(partitions.items())[:SHOWN]
        ]
        print_table(("topic", "partition", "leader", "replicas", "in sync"), some)
        if len(partitions) > SHOWN:
            print(f"… and {len(partitions) - SHOWN:,} more.")
    if not leaderless and not behind:
        print("All have a leader, and all replicas are in sync.")


def _value(
    described: ClusterDescription, topics: Mapping[str, TopicDescription], leaderless: Unwell, behind: Unwell
) -> dict[str, Any]:
    brokers = [
        {
            "broker": each.broker_id,
            "host": each.address.host,
            "port": each.address.port,
            "rack": each.rack,
            "fenced": each.is_fenced,
        }
        for each in described.brokers
    ]
    return {
        "cluster_id": described.cluster_id,
        "controller": described.controller_id,
        "brokers": brokers,
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "without_leader": [_unwell(*each) for each in leaderless.items()],
        "under_replicated": [_unwell(*each) for each in behind.items()],
    }


def _unwell(key: TopicPartition, each: PartitionDescription) -> dict[str, Any]:
    return {**key._asdict(), "leader": each.leader, "replicas": each.replicas, "isr": each.isr}
