"""The metadata store is restored from a backup, with all brokers up, some or none, and recovered: no acknowledged record or delete is lost.

Bugs planted on purpose in the guards against it: the simulator must find each.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from lowtide.broker.lifecycle import broker as lifecycle
from lowtide.metadata import recovery
from lowtide.metadata.metadata_copy import MetadataCopy
from lowtide.metadata.store_guard import StoreGuard
from lowtide.simulation.cluster_simulation import ClusterSimulation, simulate_cluster
from lowtide.simulation.shared_store import StoreLink

SEEDS = int(os.environ.get("RESTORE_SEEDS", "30"))
PLANT_SEEDS = int(os.environ.get("PLANT_SEEDS", "60"))

Patch = pytest.MonkeyPatch


def simulate(seed: int) -> ClusterSimulation:
    return simulate_cluster(seed, faults=("store restored",), strikes=1, kinds=("partitions",))


@pytest.mark.seeds
def test_no_promise_is_broken_by_a_store_that_is_put_back() -> None:
    ways: Counter[str] = Counter()
    for seed in range(SEEDS):
        cluster = simulate(seed)
        assert cluster.effects["store put back"] == 1
        text = cluster.chronicle.text()
        ways.update(way for way in ("all up", "some up", "none up", "from a snapshot", "by its files") if way in text)
    assert len(ways) == 5, ways


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

    def oldest(facts: list[recovery.BrokerFacts]) -> tuple[int, MetadataCopy]:
        copies = [(each.read_copy().revision, each.broker_id, each) for each in facts]
        _, broker_id, found = min(copies, key=lambda entry: entry[:2])
        return broker_id, found.read_copy()

    patch.setattr(recovery, "newest_copy", oldest)


def recovers_every_replica_as_in_sync(patch: Patch) -> None:
    """Every replica counts as in sync, and the shortest log is preferred."""

    def recovered(_image: Any, _topic_id: Any, _number: int, state: Any, _now: Any, logs: Any) -> Any:
        shortest = min(logs, key=lambda broker_id: (logs[broker_id].leader_epoch, logs[broker_id].log_end_offset))
        epoch = max(log.leader_epoch for log in logs.values()) + recovery.EPOCH_JUMP
        record = recovery.PartitionRecord(state.replicas, (shortest,), (1,), -1, epoch, state.partition_epoch + 1)
        return record, (0, logs[shortest].log_end_offset)

    patch.setattr(recovery, "_recovered", recovered)


PLANTED = [
    acts_on_whatever_is_there,
    does_not_ask_for_the_raft_log,
    directories_remember_nothing,
    recovers_from_the_oldest_copy,
    recovers_every_replica_as_in_sync,
]


@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_a_planted_bug_is_found(plant: Any, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(PLANT_SEEDS):
        try:
            simulate(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it was found
            return
    pytest.fail(f"not found in {PLANT_SEEDS} seeds")
