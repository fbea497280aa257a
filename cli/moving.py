"""Carries out moves of replicas: a limited number at once, within a throttle, until all are done; and files of moves.

The cluster moves replicas itself. When the command ends early (Ctrl-C, a lost connection), moves in progress continue,
and the others do not begin. `lowtide cluster moves --wait` waits for them, and removes the throttle.

A file has the form of Kafka's `kafka-reassign-partitions`:

    {"version": 1, "partitions": [{"topic": "flights", "partition": 0, "replicas": [4, 2, 3]}]}

`log_dirs` may be "any", as Kafka's tool prints it; replicas do not move between log directories here.

Source: KIP-73 for the throttle, as Kafka's `ReassignPartitionsCommand` sets it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from lowtide.admin.client import AdminClient
from lowtide.admin.configs import ConfigChange, ConfigOperation, ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.move_plan import MovePlan
from lowtide.cli.call import NetworkCall
from lowtide.cli.outcome import CommandError, misused
from lowtide.cli.printing import progress, remark
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.json_text import decode_json

POLL_S: Final = 0.5
"""The interval of requests for the moves in progress."""

AT_ONCE: Final = 20
"""How many partitions move at once by default."""

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


async def carry_out(
    call: NetworkCall, plan: MovePlan, at_once: int, throttle: int | None
) -> dict[TopicPartition, AdminError | None]:
    """Moves all, and returns the outcomes when that is done. A refused partition does not stop the others.

    `throttle` is in bytes a second of each broker. Errors: CommandError if the throttle can't be set; AdminError.
    """
    if throttle is not None:
        await _set_throttle(call.client, throttle_of(plan, throttle))
    outcomes: dict[TopicPartition, AdminError | None] = {}
    waiting, active = list(plan.after), set[TopicPartition]()
    try:
        with progress("moving", len(plan.after)) as bar:
            while waiting or active:
                begun, waiting = waiting[: at_once - len(active)], waiting[max(0, at_once - len(active)) :]
                if begun:
                    answers = await call.client.alter_reassignments({key: plan.after[key] for key in begun})
                    outcomes |= answers
                    refused = [key for key, error in answers.items() if error is not None]
                    active |= answers.keys() - refused
                    bar.advance(len(refused))
                done = active - (await call.client.list_reassignments()).keys()
                bar.advance(len(done))
                active -= done
                if active:
                    await asyncio.sleep(POLL_S)
    except BaseException:
        if active or throttle is not None:
            remark(
                "\nMoves in progress continue. `lowtide cluster moves --wait` waits for them, and removes the throttle."
            )
        raise
    if throttle is not None:
        await lift_throttle(call.client, plan.after.keys())
    return outcomes


async def wait_for_moves(call: NetworkCall) -> None:
    """Waits until all moves are done, and removes the throttle. Errors: AdminError, CommandError."""
    left = total = len(await call.client.list_reassignments())
    with progress("moving", total) as bar:
        while left:
            await asyncio.sleep(POLL_S)
            now = len(await call.client.list_reassignments())
            bar.advance(max(0, left - now))
            left = now
    topics = await call.client.list_topics(include_internal=True)
    await lift_throttle(call.client, [TopicPartition(name, 0) for name in topics])


def throttle_of(plan: MovePlan, rate: int) -> dict[ConfigResource, list[ConfigChange]]:
    """Returns the configuration of a throttle: the rate of each broker involved, and the throttled replicas.

    All old replicas are throttled as leaders, since any of them may lead; new ones are throttled as followers.
    """
    leaders, followers = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    brokers: set[BrokerId] = set()
    for key, after in plan.after.items():
        before = plan.before[key]
        brokers |= {*before, *after}
        leaders[key.topic] += [f"{key.partition}:{broker_id}" for broker_id in before]
        followers[key.topic] += [f"{key.partition}:{broker_id}" for broker_id in after if broker_id not in before]
    changes = {
        ConfigResource(ConfigResourceType.TOPIC, topic): [
            ConfigChange(LEADER_REPLICAS, ",".join(leaders[topic])),
            ConfigChange(FOLLOWER_REPLICAS, ",".join(followers[topic])),
        ]
        for topic in leaders
    }
    rates = [ConfigChange(LEADER_RATE, str(rate)), ConfigChange(FOLLOWER_RATE, str(rate))]
    return changes | {ConfigResource(ConfigResourceType.BROKER, str(broker_id)): rates for broker_id in sorted(brokers)}


async def _set_throttle(client: AdminClient, changes: Mapping[ConfigResource, list[ConfigChange]]) -> None:
    """Sets the throttle. Errors: CommandError if a topic refuses it. A broker that is away needs no throttle."""
    for resource, error in (await client.alter_configs(changes)).items():
        if error is not None and resource.type is ConfigResourceType.TOPIC:
            raise CommandError(f"the throttle can't be set: {error}. Nothing was moved.")
        if error is not None:
            remark(f"{resource} has no throttle: {error}")


async def lift_throttle(client: AdminClient, moved: Collection[TopicPartition]) -> None:
    """Removes the throttle of these topics and of all brokers. Prints what can't be removed."""
    described = await client.describe_cluster()
    of_topics = [ConfigChange(key, operation=ConfigOperation.DELETE) for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
    of_brokers = [ConfigChange(key, operation=ConfigOperation.DELETE) for key in (LEADER_RATE, FOLLOWER_RATE)]
    changes = {
        ConfigResource(ConfigResourceType.TOPIC, name): of_topics for name in sorted({key.topic for key in moved})
    }
    changes |= {
        ConfigResource(ConfigResourceType.BROKER, str(each.broker_id)): of_brokers for each in described.brokers
    }
    for resource, error in (await client.alter_configs(changes)).items():
        if error is not None:
            remark(f"{resource} keeps its throttle: {error}")


# ---------------------------------------------------------------------- files
class _Row(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int
    replicas: list[int]
    log_dirs: list[str] = []


class _Moves(msgspec.Struct, forbid_unknown_fields=True):
    partitions: list[_Row]
    version: int = 1


def read_move_file(path: str, files: FileSystem) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Reads the replicas in a file. Errors: CommandError for an unreadable or invalid file."""
    try:
        moves = decode_json(files.read_bytes(path), _Moves)
    except OSError as error:
        raise misused(f"{path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise misused(f"{path} is not a file of moves: {error}.") from None
    found: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for row in moves.partitions:
        key = TopicPartition(row.topic, row.partition)
        if key in found:
            raise misused(f"{path} contains {key} twice.")
        if not row.replicas or len(set(row.replicas)) < len(row.replicas) or min(row.replicas) < 0:
            raise misused(f"{path}: the replicas of {key} are {row.replicas}: they must be broker ids, each once.")
        if set(row.log_dirs) - {"any"}:
            raise misused(f"{path}: log_dirs of {key} is {row.log_dirs}: it must be any.")
        found[key] = tuple(row.replicas)
    return found


def move_file(replicas: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> bytes:
    """Returns the content of a file with these replicas."""
    rows = [_Row(key.topic, key.partition, list(each), ["any"] * len(each)) for key, each in replicas.items()]
    return msgspec.json.format(msgspec.json.encode(_Moves(rows)), indent=2) + b"\n"
