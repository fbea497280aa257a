"""Three broker processes and etcd, killed and frozen one after the other or all at once, during producing, reading and
deleting.

Nothing acknowledged with acks=all is lost, no record below an acknowledged delete is served again by any broker, no
offset has two values, and brokers that could answer did so in time. `CLUSTER_ROUNDS=n` injects more faults, `SEEDS=n`
draws more rows of them for a closed cluster.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.scram import ITERATIONS_MIN, ScramMechanism, salted_password
from tests.etcd import missing

from .cluster_load import PartitionWork
from .cluster_processes import METADATA_VERSION, SESSION_TIMEOUT_S, ClusterProcesses
from .moving import reassign
from .security import CLIENT, Security

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROUNDS = int(os.environ.get("CLUSTER_ROUNDS", "1"))
TOPIC = "struck"
RULED = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
)
"""The first rules are created by a client without a login."""

DENIED_TOPIC = "denied"
_TOPIC, _CLUSTER, _ALL, _DENY, _ALLOW = 2, 4, 2, 2, 3
ANYBODY = "User:ANONYMOUS"
RULES = [
    (_TOPIC, TOPIC, ANYBODY, _ALL, _ALLOW),
    (_CLUSTER, "kafka-cluster", ANYBODY, _ALL, _ALLOW),
    (_TOPIC, DENIED_TOPIC, ANYBODY, _ALL, _DENY),
]
RULES_OF_CLIENT = [
    (_TOPIC, TOPIC, f"User:{CLIENT}", _ALL, _ALLOW),
    (_TOPIC, DENIED_TOPIC, f"User:{CLIENT}", _ALL, _DENY),
]
"""The listener where clients log in."""

Rule = tuple[int, str, str, int, int]
SEGMENTS = {"internal.segment.bytes": "20000", "index.interval.bytes": "500", "file.delete.delay.ms": "0"}


PASSWORD, SALT = "federhalter", b"a salt of sixteen"
SEEDS = int(os.environ.get("SEEDS", "1"))


class Scene:
    """A cluster, its load, and the roles of its brokers."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.work = PartitionWork(cluster, TOPIC)

    async def leader(self) -> int:
        row = await self.cluster.until_partition(TOPIC, lambda row: row.leader_id >= 0)
        return int(row.leader_id)

    async def follower(self) -> int:
        leader = await self.leader()
        return next(broker_id for broker_id in self.cluster.ids if broker_id != leader)

    async def controller(self) -> int:
        answer = await self.cluster.metadata(self.cluster.awake[0], TOPIC)
        assert answer.controller_id in self.cluster.ids
        return int(answer.controller_id)

    async def progress(self) -> None:
        """Waits until all kinds of work have progressed."""
        await self.work.until("produced", 20)
        await self.work.until("deleted", 3)
        await self.work.until("read", 5)


async def run_scene(
    tmp_path: Path,
    strikes: list[Callable[[Scene], Awaitable[None]]],
    *,
    ruled: bool = False,
    security: Security | None = None,
) -> None:
    """Runs each fault under load; at the end everything is read from every broker.

    `ruled`: brokers decide by access rules.
    """
    rules = RULES_OF_CLIENT if security is not None else RULES if ruled else []
    async with ClusterProcesses(tmp_path / "cluster", *(RULED if ruled else ()), security=security) as cluster:
        await cluster.create_topic(TOPIC, [[1, 2, 3]], configs=SEGMENTS)
        if rules:
            await create_rules(cluster, rules)
        scene = Scene(cluster)
        scene.work.start()
        try:
            await scene.progress()
            for strike in strikes * ROUNDS:
                await strike(scene)
                await scene.progress()
                await cluster.until_in_sync(TOPIC)
            await scene.work.until("read from a follower", 3)
        finally:
            await scene.work.stop()
        await scene.work.check()
        if rules:
            await check_rules(cluster, rules)
        cluster.check_no_faults()


async def create_rules(cluster: ClusterProcesses, rules: list[Rule]) -> None:
    """The rights that the load and the brokers need, and none for another topic."""
    rows = [
        AclCreation(
            resource_type=kind,
            resource_name=name,
            principal=principal,
            host="127.0.0.1",
            operation=operation,
            permission_type=permission,
        )
        for kind, name, principal, operation, permission in rules
    ]
    answer = await cluster.ask(cluster.awake[0], CreateAclsRequest(creations=rows), 3)
    assert [row.error_code for row in answer.results] == [0] * len(rules)


async def check_rules(cluster: ClusterProcesses, rules: list[Rule]) -> None:
    """Every broker has the rules and enforces them, whatever faults it had."""
    wanted = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    denied = MetadataRequest(topics=[MetadataRequestTopic(name=DENIED_TOPIC)], allow_auto_topic_creation=False)
    for broker_id in cluster.ids:
        found = await cluster.ask(broker_id, wanted, 3)
        rows = {
            (row.resource_type, row.resource_name, acl.principal, acl.operation, acl.permission_type)
            for row in found.resources
            for acl in row.acls
        }
        assert rows == set(rules)
        client = await cluster.connect(broker_id)
        (topic,) = (await client.request(denied, METADATA_VERSION)).topics
        client.close()
        assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def kill(scene: Scene, broker_id: int) -> None:
    """SIGKILL; the others continue without it; it returns."""
    await scene.cluster.kill(broker_id)
    await scene.progress()
    await scene.cluster.start(broker_id)


async def freeze(scene: Scene, broker_id: int) -> None:
    """SIGSTOP until its lease ends and the others continue without it; SIGCONT."""
    scene.cluster.freeze(broker_id)
    await scene.cluster.until_partition(
        TOPIC, lambda row: broker_id not in row.isr_nodes and row.leader_id not in (broker_id, -1)
    )
    await scene.progress()
    scene.cluster.thaw(broker_id)


@pytest.mark.slow
async def test_the_leader_is_killed(tmp_path: Path) -> None:
    async def strike(scene: Scene) -> None:
        await kill(scene, await scene.leader())

    await run_scene(tmp_path, [strike])


@pytest.mark.slowest
async def test_the_leader_is_frozen(tmp_path: Path) -> None:
    """After SIGCONT the old leader acknowledges nothing and shows no record that was deleted meanwhile."""

    async def strike(scene: Scene) -> None:
        await freeze(scene, await scene.leader())

    await run_scene(tmp_path, [strike], ruled=True)


@pytest.mark.slowest
async def test_a_follower_is_killed_and_frozen(tmp_path: Path) -> None:
    async def strike_dead(scene: Scene) -> None:
        await kill(scene, await scene.follower())

    async def strike_still(scene: Scene) -> None:
        await freeze(scene, await scene.follower())

    await run_scene(tmp_path, [strike_dead, strike_still])


@pytest.mark.slow
async def test_the_controller_is_killed_and_frozen(tmp_path: Path) -> None:
    async def strike_dead(scene: Scene) -> None:
        await kill(scene, await scene.controller())

    async def strike_still(scene: Scene) -> None:
        await freeze(scene, await scene.controller())

    await run_scene(tmp_path, [strike_dead, strike_still], ruled=True)


@pytest.mark.slow
async def test_etcd_is_killed_and_frozen(tmp_path: Path) -> None:
    """The store is gone for a moment, unnoticed by producers, then for longer than brokers can work without it."""

    async def strike_briefly(scene: Scene) -> None:
        await asyncio.to_thread(scene.cluster.etcd.kill)
        await asyncio.to_thread(scene.cluster.etcd.start)

    async def strike_long(scene: Scene) -> None:
        scene.cluster.etcd.freeze()
        try:
            await asyncio.sleep(2 * SESSION_TIMEOUT_S)  # for the whole time, because no event happens then
        finally:
            scene.cluster.etcd.thaw()

    await run_scene(tmp_path, [strike_briefly, strike_long])


async def test_all_brokers_are_killed_at_once(tmp_path: Path) -> None:
    """And again when they have just returned. Page caches survive them, so no record may be missing."""

    async def strike(scene: Scene) -> None:
        await scene.cluster.kill(*scene.cluster.ids)
        await scene.cluster.start(*scene.cluster.ids)

    await run_scene(tmp_path, [strike, strike], ruled=True)


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 3])
async def test_all_brokers_are_killed_right_after_a_topic_was_created(tmp_path: Path, replicas: int) -> None:
    """A replica that has never had a record is not taken for a lost one."""
    partitions = 40
    async with ClusterProcesses(tmp_path) as cluster:
        await cluster.create_topic(TOPIC, [cluster.ids[:replicas]] * partitions)
        await cluster.kill(*cluster.ids)
        await cluster.start(*cluster.ids)
        for number in range(partitions):
            await cluster.until_in_sync(TOPIC, number)


@pytest.mark.slow
async def test_brokers_are_killed_while_a_replica_is_added(tmp_path: Path) -> None:
    """Kills the leader, the controller and the new broker, which is frozen so that the reassignment can't end first."""

    def strike_at(role: Callable[[Scene], Awaitable[int]] | None) -> Callable[[Scene], Awaitable[None]]:
        async def strike(scene: Scene) -> None:
            cluster, asked = scene.cluster, {await scene.leader(), await scene.controller()}
            added = next(broker_id for broker_id in cluster.ids if broker_id not in asked)
            others = [broker_id for broker_id in cluster.ids if broker_id != added]
            cluster.freeze(added)
            await cluster.until_partition(TOPIC, lambda row: added not in row.isr_nodes)
            await reassign(cluster, TOPIC, others)
            await cluster.until_partition(TOPIC, lambda row: sorted(row.replica_nodes) == others)
            await reassign(cluster, TOPIC, [*others, added])
            victim = added if role is None else await role(scene)
            await cluster.restart(
                victim
            )  # Two are in sync, as many as there must be, so nothing progresses while one is away.
            if victim != added:
                cluster.thaw(added)
            await cluster.until_partition(TOPIC, lambda row: set(row.isr_nodes) == set(cluster.ids))

        return strike

    await run_scene(tmp_path, [strike_at(Scene.leader), strike_at(Scene.controller), strike_at(None)])


@pytest.mark.slow
async def test_a_broker_is_stopped_in_order(tmp_path: Path) -> None:
    """It hands its leadership over before it ends: producers do not wait for a lease."""

    async def strike(scene: Scene) -> None:
        leader = await scene.leader()
        assert await scene.cluster.terminate(leader) == 0
        row = await scene.cluster.until_partition(TOPIC, lambda row: row.leader_id not in (leader, -1))
        assert leader not in row.isr_nodes
        await scene.progress()
        await scene.cluster.start(leader)

    await run_scene(tmp_path, [strike])


@pytest.mark.parametrize("seed", range(1, 1 + SEEDS))
@pytest.mark.slowest
async def test_a_closed_cluster_is_killed(tmp_path: Path, seed: int) -> None:
    """TLS and SCRAM for clients and between brokers, access rules, and an etcd with certificates: brokers and etcd are
    killed.

    Whose login is acknowledged right before may log in at every broker afterwards; no login is refused meanwhile.
    """
    drawn, added = random.Random(seed), list[str]()

    async def strike(scene: Scene) -> None:
        added.append(user := f"user-{len(added)}")
        await add_user(scene.cluster, user)
        kind = drawn.choice(("leader", "follower", "controller", "all", "etcd"))
        if kind == "etcd":
            await asyncio.to_thread(scene.cluster.etcd.kill)
            await asyncio.to_thread(scene.cluster.etcd.start)
        elif kind == "all":
            await scene.cluster.kill(*scene.cluster.ids)
            await scene.cluster.start(*scene.cluster.ids)
        else:
            await kill(scene, await getattr(scene, kind)())
        for broker_id in scene.cluster.ids:
            (await scene.cluster.connect(broker_id, user, PASSWORD)).close()

    await run_scene(tmp_path, [strike, strike, strike], security=Security(tmp_path / "security"))


async def add_user(cluster: ClusterProcesses, name: str) -> None:
    salted = salted_password(ScramMechanism.SHA_512, PASSWORD, SALT, ITERATIONS_MIN)
    change = ScramCredentialUpsertion(
        name=name, mechanism=ScramMechanism.SHA_512, iterations=ITERATIONS_MIN, salt=SALT, salted_password=salted
    )
    answer = await cluster.ask(cluster.awake[0], AlterUserScramCredentialsRequest(deletions=[], upsertions=[change]), 0)
    assert answer.results[0].error_code == ErrorCode.NONE
