"""Moves of replicas carried out: a bounded number at once, within a throttle, with progress, until all are through.

The cluster moves by itself, so an end of the command (Ctrl-C, a lost connection) ends no move that has begun; the
others don't begin.
`lowtide cluster moves --wait` waits for the others, and lifts the throttle.

Source: KIP-73 for the throttle, as Kafka's `ReassignPartitionsCommand` sets it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from lowtide.admin.client import AdminClient
from lowtide.admin.configs import ConfigChange, ConfigOperation, ConfigResource, ResourceType
from lowtide.admin.errors import AdminError
from lowtide.admin.move_plan import MovePlan
from lowtide.cli.call import NetworkCall
from lowtide.cli.outcome import CommandError
from lowtide.cli.printing import progress, remark
from lowtide.protocol.types import BrokerId, TopicPartition

POLL_S: Final = 0.5
"""How often the cluster is asked what is still being moved."""

AT_ONCE: Final = 20
"""Partitions that are moved at once, unless the user says otherwise."""

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast is moved. `throttle` is in bytes a second, of each broker; None: as fast as it goes."""

    at_once: int = AT_ONCE
    throttle: int | None = None


async def carry_out(call: NetworkCall, plan: MovePlan, pace: Pace) -> dict[TopicPartition, AdminError | None]:
    """Move all, and return when that is done. What is refused is in the result; the others go on.

    Errors: CommandError for a throttle that can't be set, AdminError.
    """
    timeout_s = call.timeout_ms / 1000
    if pace.throttle is not None:
        await _set_throttle(call.client, throttle_of(plan, pace.throttle), timeout_s)
    outcomes: dict[TopicPartition, AdminError | None] = {}
    waiting, active = list(plan.after), set[TopicPartition]()
    try:
        with progress("moving", len(plan.after)) as bar:
            while waiting or active:
                begun, waiting = waiting[: pace.at_once - len(active)], waiting[max(0, pace.at_once - len(active)) :]
                if begun:
                    answers = await call.client.alter_reassignments(
                        {key: plan.after[key] for key in begun}, timeout=timeout_s
                    )
                    outcomes |= answers
                    refused = [key for key, error in answers.items() if error is not None]
                    active |= answers.keys() - refused
                    bar.advance(len(refused))
                done = active - (await call.client.list_reassignments(timeout=timeout_s)).keys()
                bar.advance(len(done))
                active -= done
                if active:
                    await asyncio.sleep(POLL_S)
    except BaseException:
        if active or pace.throttle is not None:
            remark("\nWhat has begun goes on. `lowtide cluster moves --wait` waits for it, and lifts the throttle.")
        raise
    if pace.throttle is not None:
        await lift_throttle(call.client, plan.after.keys(), timeout_s)
    return outcomes


async def wait_for_moves(call: NetworkCall) -> None:
    """Return when nothing is being moved any more, and no throttle is set. Errors: AdminError, CommandError."""
    timeout_s = call.timeout_ms / 1000
    left = total = len(await call.client.list_reassignments(timeout=timeout_s))
    with progress("moving", total) as bar:
        while left:
            await asyncio.sleep(POLL_S)
            now = len(await call.client.list_reassignments(timeout=timeout_s))
            bar.advance(max(0, left - now))
            left = now
    topics = await call.client.list_topics(include_internal=True, timeout=timeout_s)
    await lift_throttle(call.client, [TopicPartition(name, 0) for name in topics], timeout_s)


def throttle_of(plan: MovePlan, rate: int) -> dict[ConfigResource, list[ConfigChange]]:
    """What is set for a throttle: the rate of each broker that has a part in it, and the replicas that it holds for.

    Leaders are throttled for all that are there before, for any of them may lead; followers for those that come.
    """
    leaders, followers = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    brokers: set[BrokerId] = set()
    for key, after in plan.after.items():
        before = plan.before[key]
        brokers |= {*before, *after}
        leaders[key.topic] += [f"{key.partition}:{broker_id}" for broker_id in before]
        followers[key.topic] += [f"{key.partition}:{broker_id}" for broker_id in after if broker_id not in before]
    changes = {
        ConfigResource(ResourceType.TOPIC, topic): [
            ConfigChange(LEADER_REPLICAS, ",".join(leaders[topic])),
            ConfigChange(FOLLOWER_REPLICAS, ",".join(followers[topic])),
        ]
        for topic in leaders
    }
    rates = [ConfigChange(LEADER_RATE, str(rate)), ConfigChange(FOLLOWER_RATE, str(rate))]
    return changes | {ConfigResource(ResourceType.BROKER, str(broker_id)): rates for broker_id in sorted(brokers)}


async def _set_throttle(
    client: AdminClient, changes: Mapping[ConfigResource, list[ConfigChange]], timeout_s: float
) -> None:
    """Errors: CommandError where it can't be set for what is there; a broker that is away needs none."""
    for resource, error in (await client.alter_configs(changes, timeout=timeout_s)).items():
        if error is not None and resource.type is ResourceType.TOPIC:
            message = f"the throttle can't be set: {error}. Nothing was moved."
            raise CommandError(message)
        if error is not None:
            remark(f"{resource} has no throttle: {error}")


async def lift_throttle(client: AdminClient, moved: Collection[TopicPartition], timeout_s: float) -> None:
    """Remove the throttle of these topics and of all brokers. What can't be removed is reported."""
    described = await client.describe_cluster(timeout=timeout_s)
    of_topics = [ConfigChange(key, operation=ConfigOperation.DELETE) for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
    of_brokers = [ConfigChange(key, operation=ConfigOperation.DELETE) for key in (LEADER_RATE, FOLLOWER_RATE)]
    changes = {ConfigResource(ResourceType.TOPIC, name): of_topics for name in sorted({key.topic for key in moved})}
    changes |= {ConfigResource(ResourceType.BROKER, str(each.broker_id)): of_brokers for each in described.brokers}
    for resource, error in (await client.alter_configs(changes, timeout=timeout_s)).items():
        if error is not None:
            remark(f"{resource} keeps its throttle: {error}")
