"""Restores the metadata store to a backup, with all brokers up, some or none; then an operator brings it forward.

Or it is lost after brokers failed one by one, the last ones by power cuts: fewer members are in sync than there should
be, and eligible leaders (KIP-966) decide what is left. Then it is recreated from log directories, with or without a
backup.

Checked in addition: no broker acts on such a store, neither leading nor answering success; no folder of a log
disappears; and once the metadata are brought forward every acknowledged record is there, as at the end of every run.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.lifecycle.metadata_copies import COPY_FILE
from lowtide.metadata import broker_facts, keys, recovery
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.metadata_copy import MetadataCopy, Row, rows_of
from lowtide.metadata.recovery_writer import RECOVERY, bring_forward, read_rows, until_nobody_is_registered
from lowtide.metadata.restore import begin_restore, plan_restore
from lowtide.metadata.store import Put, Revision
from lowtide.metadata.store_guard import WITNESS_INTERVAL_MS
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import PREFIX, StoreSnapshot
from lowtide.storage.directory.directory_survey import survey
from lowtide.storage.folder_names import parse_folder_name

REFUSED_WITHIN_S: Final = 6.0
"""A session of a second, some attempts to reach the store, and a start."""

QUIET_S: Final = 2.0

SHRINKS_WITHIN_S: Final = (1.2, 3.0)
"""A session of a second, and the remaining brokers change ISRs."""

EMPTY: Final = StoreSnapshot({}, 1)


async def store_restored(cluster: ClusterWorld) -> None:
    """Takes a backup, restores it, and brings it forward."""
    shared, random = cluster.shared, cluster.random
    for machine in cluster.machines:
        cluster.start(machine)
    for machine in cluster.machines:
        await cluster.until_up(machine)
    if not all(machine.state is State.UP for machine in cluster.machines):
        return  # One that sees nothing of what comes has nothing to know such a store by.
    # The length of the raft log shows only the first restore to one that was away.
    who = random.choice(("all", "none") if shared.restores else ("all", "some", "none"))
    away = [] if who == "all" else random.sample(cluster.machines, len(cluster.machines) if who == "none" else 1)
    snapshot = shared.snapshot()
    cluster.note(f"a backup of the store is taken, at revision {snapshot.revision}")
    if who == "some":
        for machine in away:
            cluster.kill(machine)  # It knows nothing of what comes now.
    await cluster.sleep(0.0, 1.0)
    # Every broker has seen something that the backup lacks.
    await shared.store.transact(
        [], [Put(PREFIX + b"config/group/simulated", b'{"consumer.session.timeout.ms":"45000"}')]
    )
    await cluster.sleep(0.5, 3.0)
    copied = who != "some" and random.random() < 0.5  # noqa: PLR2004
    if copied:
        await asyncio.sleep(
            2 * WITNESS_INTERVAL_MS / 1000
        )  # Nothing shows that such a store went back but what it should hold.
    cluster.excuse_all()
    for machine in away:
        cluster.kill(machine)
    cluster.invariants.leave_store()
    before = shared.image
    shared.stop()
    await cluster.sleep(0.01, 0.5)
    folders = {machine.broker_id: _folders(cluster, machine) for machine in cluster.machines}
    cluster.note(
        f"the store is put back to revision {snapshot.revision} {'by its files' if copied else 'from a snapshot'}, "
        f"{who} up"
    )
    shared.restore(snapshot, copied=copied)
    shared.start()
    for machine in random.sample(away, len(away)):
        cluster.start(machine)
        await cluster.sleep(0.0, 1.0)
    await _check_refused(cluster, folders)
    cluster.effects["store put back"] += 1
    await _bring_forward(cluster, before)
    for machine in cluster.shuffled():
        cluster.start(machine)
    cluster.pardon_all(after_s=3.0)


async def store_lost(cluster: ClusterWorld) -> None:
    """Takes a backup, loses brokers one by one and then the store, and recreates it."""
    shared, random = cluster.shared, cluster.random
    for machine in cluster.machines:
        cluster.start(machine)
    for machine in cluster.machines:
        await cluster.until_up(machine)
    backup = shared.snapshot()
    cluster.excuse_all()
    await cluster.sleep(0.5, 2.0)
    for left, machine in zip(reversed(range(len(cluster.machines))), cluster.shuffled(), strict=True):
        cluster.kill(machine, power=random.random() < (0.2 if left else 0.7))
        await cluster.sleep(*(SHRINKS_WITHIN_S if random.random() < 0.8 else (0.0, 0.2)))  # noqa: PLR2004
    cluster.invariants.leave_store()
    before = shared.image
    below = [state for topic in before.topics.values() for state in topic.partitions if state.elr]
    cluster.effects["store lost with eligible leaders"] += bool(below)
    shared.stop()
    shared.restore(EMPTY)
    shared.start()
    cluster.note("the store is lost")
    cluster.effects["store lost"] += 1
    await _bring_forward(cluster, before, backup if random.random() < 0.5 else None)  # noqa: PLR2004
    for machine in cluster.shuffled():
        cluster.start(machine)
        await cluster.sleep(0.0, 1.0)
    cluster.pardon_all(after_s=3.0)


async def _check_refused(cluster: ClusterWorld, folders: dict[int, set[str]]) -> None:
    await asyncio.sleep(REFUSED_WITHIN_S)
    before = _acknowledged(cluster)
    for _ in range(int(QUIET_S / 0.1)):
        await asyncio.sleep(0.1)
        for machine in cluster.machines:
            broker = machine.broker
            if machine.state is State.UP and broker is not None and not broker._session.is_fenced:  # type: ignore[union-attr]  # noqa: SLF001
                cluster.chronicle.violate(f"{machine.host} acts on a store that was put back")
    if _acknowledged(cluster) != before:
        cluster.chronicle.violate("something was acknowledged on a store that was put back")
    for machine in cluster.machines:
        gone = folders[machine.broker_id] - _folders(cluster, machine)
        if gone:
            cluster.chronicle.violate(f"{machine.host} has removed {sorted(gone)} for metadata that were put back")


async def _bring_forward(cluster: ClusterWorld, before: MetadataImage, backup: StoreSnapshot | None = None) -> None:
    """Follows docs/etcd.md, or with a backup docs/backup.md. `before` is the store's earlier content."""
    for machine in cluster.machines:
        cluster.kill(machine)
    facts = [_facts(cluster, machine) for machine in cluster.machines]
    store = cluster.shared.store
    await until_nobody_is_registered(store, PREFIX)
    rows, revision = await read_rows(store, PREFIX)
    reason = recovery.is_needed(facts, rows, revision, cluster.shared.raft_surplus)
    if reason is None:
        cluster.chronicle.violate("the store was put back, and nothing shows it")
    history_id = f"history {cluster.shared.restores}"
    if backup is None:
        plan = recovery.plan_recovery(facts, rows, without=(), history_id=history_id, raft_surplus=-1_000_000)
        beginning = RECOVERY
    else:
        copy = _copy(rows_of(backup.keys.values(), PREFIX), backup.revision)
        plan = plan_restore(copy, facts, rows, without=(), history_id=history_id, raft_surplus=-1_000_000)
        beginning = begin_restore(copy, rows, replaces=False)
    _check_losses(cluster, plan, before)
    await bring_forward(store, PREFIX, plan, beginning)
    cluster.note(f"the metadata are brought forward to what broker {plan.source} knows")
    disk = cluster.shared.disk
    cluster.shared.image = load_image(disk.keys.values(), disk.revision, prefix=PREFIX)
    cluster.invariants.follow_store()


def _copy(found: list[Row], revision: Revision) -> MetadataCopy:
    rows = {row[0]: row for row in found}
    return MetadataCopy(
        found,
        revision,
        history_id=broker_facts.history_of(rows).history_id,
        cluster_id=rows[keys.CLUSTER_ID][1].decode(),
    )


def _check_losses(cluster: ClusterWorld, plan: recovery.RecoveryPlan, before: MetadataImage) -> None:
    """Checks that an operator must accept a loss only where records were lost, or complete replicas may lack some."""
    for each in plan.partitions:
        topic, promises = before.topics.get(each.topic), cluster.invariants.promises
        if not each.loss or topic is None or promises.committed(topic.topic_id, each.partition).is_void:
            continue
        if not promises.all_may_lack_records(topic.partitions[each.partition]):
            cluster.chronicle.violate(f"a recovery says that records are lost, and some replica has them: {each.loss}")


def _facts(cluster: ClusterWorld, machine: Machine) -> broker_facts.BrokerFacts:
    filesystem = machine.filesystem
    copies = [
        filesystem.read_bytes(f"{path}/{COPY_FILE}")
        for path in cluster.directories
        if filesystem.exists(f"{path}/{COPY_FILE}")
    ]
    found = broker_facts.facts_of([survey(filesystem, path) for path in cluster.directories], copies)
    return broker_facts.decode_facts(broker_facts.encode_facts(found), machine.host)


def _folders(cluster: ClusterWorld, machine: Machine) -> set[str]:
    """Returns the folders of logs, without those being removed, which are renamed."""
    names = [name for path in cluster.directories for name in machine.filesystem.listdir(path)]
    return {name for name in names if parse_folder_name(name) is not None}


def _acknowledged(cluster: ClusterWorld) -> int:
    """Returns the number of acknowledged records and deletes."""
    return sum(load.counts["produced"] + load.counts["deleted"] for load in cluster.loads)
