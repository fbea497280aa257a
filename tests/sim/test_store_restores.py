"""The metadata store is restored from a backup, with all brokers up, some or none, and recovered: no acknowledged
record or delete is lost.

Or it is lost after brokers have gone one by one, the last ones with their power, and made again of log directories and
a backup.

Bugs planted on purpose in the guards against it: the simulator must find each.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lowtide.broker.lifecycle import broker as lifecycle
from lowtide.metadata import recovery
from lowtide.metadata.broker_facts import BrokerFacts
from lowtide.metadata.image import PartitionImage
from lowtide.metadata.metadata_copy import MetadataCopy
from lowtide.metadata.recovered_members import Choice, choose_members
from lowtide.metadata.store_guard import StoreGuard
from lowtide.simulation.cluster_simulation import ClusterSimulation, simulate_cluster
from lowtide.simulation.shared_store import StoreLink

SEEDS = int(os.environ.get("RESTORE_SEEDS", "30"))
PLANT_SEEDS = int(os.environ.get("PLANT_SEEDS", "60"))

Patch = pytest.MonkeyPatch


def simulate(seed: int) -> ClusterSimulation:
    return simulate_cluster(seed, faults=("store restored",), strikes=1, kinds=("partitions",))


def simulate_loss(seed: int) -> ClusterSimulation:
    return simulate_cluster(seed, faults=("store lost",), strikes=1, kinds=("partitions",), unclean=False)


@pytest.mark.seeds
def test_no_promise_is_broken_by_a_store_that_is_put_back() -> None:
    ways: Counter[str] = Counter()
    for seed in range(SEEDS):
        cluster = simulate(seed)
        assert cluster.effects["store put back"] == 1
        text = cluster.chronicle.text()
        ways.update(way for way in ("all up", "some up", "none up", "from a snapshot", "by its files") if way in text)
    assert len(ways) == 5, ways


@pytest.mark.seeds
def test_no_promise_is_broken_by_a_store_that_is_lost_with_the_power_of_machines() -> None:
    """Too few replicas are in sync then, and eligible leaders have what the last one has lost."""
    effects: Counter[str] = Counter()
    for seed in range(SEEDS):
        effects += Counter(simulate_loss(seed).effects)
    assert effects["store lost"] == SEEDS
    assert effects["store lost with eligible leaders"] > SEEDS // 5


async def nothing(*_: Any) -> None:
    """Stands for a check."""


def acts_on_whatever_is_there(patch: Patch) -> None:
    """No state is compared, at a start or on a new connection."""
    is_seen_by_connections(patch)
    patch.setattr(StoreGuard, "check", nothing)
    patch.setattr(StoreGuard, "check_connection", nothing)


def is_seen_by_connections(patch: Patch) -> None:
    patch.setattr(StoreLink, "_check_connection", lambda _self: None)
    patch.setattr(StoreLink, "_check_revision", lambda _self, _outcome: None)


def does_not_ask_for_the_raft_log(patch: Patch) -> None:
    """Without the raft log, a broker that was down when the backup was made cannot detect the restore."""
    patch.setattr(StoreLink, "_check_connection", lambda _self: None)
    patch.setattr(StoreGuard, "_check_surplus", nothing)


def directories_remember_nothing(patch: Patch) -> None:
    """Without the copies, a store whose files were restored cannot be detected after all brokers were down."""
    patch.setattr(lifecycle, "read_copies", lambda *_: {})


def recovers_from_the_oldest_copy(patch: Patch) -> None:
    """A replica that was in sync once may lack acknowledged records."""

    def oldest(facts: list[BrokerFacts]) -> tuple[int, MetadataCopy]:
        copies = [(each.read_copy().revision, each.broker_id, each) for each in facts]
        _, broker_id, found = min(copies, key=lambda entry: entry[:2])
        return broker_id, found.read_copy()

    patch.setattr(recovery, "newest_copy", oldest)


def recovers_every_replica_as_in_sync(patch: Patch) -> None:
    """Every replica counts as in sync, and the shortest log is preferred."""

    def chosen(_image: Any, _topic: Any, _number: int, logs: Any) -> Choice:
        shortest = min(logs, key=lambda broker_id: logs[broker_id].end)
        return Choice((shortest,), (), 0, logs[shortest].end[1])

    patch.setattr(recovery, "choose_members", chosen)


def with_state(change: Callable[[PartitionImage], PartitionImage]) -> Callable[..., Choice]:
    """Chooses as if the partition's state were another one."""

    def chosen(image: Any, topic: Any, number: int, logs: Any) -> Choice:
        partitions = tuple(change(state) for state in topic.partitions)
        return choose_members(image, msgspec.structs.replace(topic, partitions=partitions), number, logs)

    return chosen


def forgets_eligible_leaders(patch: Patch) -> None:
    """A complete replica that is not in sync is truncated to a log that has lost its end."""
    patch.setattr(
        recovery, "choose_members", with_state(lambda state: msgspec.structs.replace(state, elr=(), elr_epochs=()))
    )


def prefers_whoever_was_in_sync(patch: Patch) -> None:
    """Eligible leaders are kept as eligible, and their logs are not compared with those of the members in sync."""

    def chosen(image: Any, topic: Any, number: int, logs: Any) -> Choice:
        state = topic.partitions[number]
        alone = {broker_id: log for broker_id, log in logs.items() if broker_id in state.isr}
        return choose_members(image, topic, number, alone or logs)._replace(elr=state.elr)

    patch.setattr(recovery, "choose_members", chosen)


PLANTED = [
    (acts_on_whatever_is_there, simulate),
    (does_not_ask_for_the_raft_log, simulate),
    (directories_remember_nothing, simulate),
    (recovers_from_the_oldest_copy, simulate),
    (recovers_every_replica_as_in_sync, simulate),
    (recovers_every_replica_as_in_sync, simulate_loss),
    (forgets_eligible_leaders, simulate_loss),
    (prefers_whoever_was_in_sync, simulate_loss),
]


@pytest.mark.parametrize(("plant", "run"), PLANTED, ids=[f"{plant.__name__}-{run.__name__}" for plant, run in PLANTED])
@pytest.mark.slowest
def test_a_planted_bug_is_found(plant: Any, run: Any, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(PLANT_SEEDS):
        try:
            run(seed)
        except Exception as error:
            print(f"seed {seed}: {str(error)[:200]}")
            return
    pytest.fail(f"not found in {PLANT_SEEDS} seeds")
