"""Bugs planted on purpose in coordinators of groups and transactions, and in the transactions of logs: each must be
found.

Each was found within 60 seeds from 0 on; PLANT_SEEDS=n searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from lowtide.broker.coordinator.classic import classic_groups, rebalancing
from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.rebalancing import Rebalancing
from lowtide.broker.coordinator.groups.committed_offsets import CommittedOffsets
from lowtide.broker.coordinator.groups.consumed import ConsumedEnd
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.groups.pending_offsets import PendingOffsets
from lowtide.broker.coordinator.runtime import coordinator_runtime as runtime
from lowtide.broker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from lowtide.broker.coordinator.runtime.shard_loader import ShardLoader
from lowtide.broker.coordinator.transactions.marker_sender import MarkerSender
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.broker.coordinator.transactions.transaction_state import ENDING
from lowtide.broker.coordinator.transactions.transaction_verifier import TransactionVerifier
from lowtide.broker.partitions import commit_waits
from lowtide.broker.pending import Pending
from lowtide.broker.retention import consumption
from lowtide.protocol.errors import ErrorCode
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.log.offsets import LogOffsets
from lowtide.storage.log.producers.transaction_index import TransactionIndex
from lowtide.storage.log.producers.verifications import Verifications

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest


# Both coordinators


def answered_before_committed(patch: Patch) -> None:
    """A response does not wait for the records behind it."""
    patch.setattr(
        CoordinatorRuntime, "_wait", lambda self, shard, _end, then: self._continue(shard, then, ErrorCode.NONE)
    )


def answered_before_the_flush(patch: Patch) -> None:
    """A response waits for the other replicas, but not for the coordinator's own disk, though flush.messages is 1."""
    for module in (commit_waits, runtime):
        patch.setattr(module, "committed_end", lambda log: log.high_watermark)


def loaded_without_the_last_record(patch: Patch) -> None:
    """A new coordinator stops reading one record too early."""
    load, apply = ShardLoader.load, ShardLoader._apply_record
    ends: dict[Any, int] = {}

    def load_less(self: Any, shard: Any, **calls: Any) -> None:
        ends[shard] = shard.partition.log.log_end_offset
        load(self, shard, **calls)

    def apply_less(self: Any, shard: Any, record: Any, producer_id: Any) -> None:
        if record.offset < ends[shard] - 1:
            apply(self, shard, record, producer_id)

    patch.setattr(ShardLoader, "load", load_less)
    patch.setattr(ShardLoader, "_apply_record", apply_less)


# Groups


def two_members_get_the_same(patch: Patch) -> None:
    """Every member receives the leader's assignment."""
    original = rebalancing.synced

    def synced(group: Any, member: Any) -> Any:
        return original(group, group.members.get(group.leader_id, member))

    patch.setattr(rebalancing, "synced", synced)
    patch.setattr(classic_groups, "synced", synced)


def the_generation_stays(patch: Patch) -> None:
    """A rebalance assigns partitions again within a generation."""
    original = ClassicGroup.begin_generation

    def begin(self: Any, wall_ms: int) -> None:
        self.generation_id -= self.generation_id > 1
        original(self, wall_ms)

    patch.setattr(ClassicGroup, "begin_generation", begin)


def any_generation_commits(patch: Patch) -> None:
    """A member of an earlier generation may commit."""
    original = classic_groups.check_commit

    def check(group: Any, member_id: str, instance: Any, generation_id: int, **options: bool) -> ErrorCode:
        return original(
            group, member_id, instance, group.generation_id if generation_id >= 0 else generation_id, **options
        )

    patch.setattr(classic_groups, "check_commit", check)


def silence_is_borne_after_a_load(patch: Patch) -> None:
    """A new coordinator waits for members that never return."""
    original = Groups.on_loaded

    def on_loaded(self: Any, effects: Any) -> None:
        patch.setattr(Rebalancing, "extend_session", lambda *_: None)
        try:
            original(self, effects)
        finally:
            patch.setattr(Rebalancing, "extend_session", extend)

    extend = Rebalancing.extend_session
    patch.setattr(Groups, "on_loaded", on_loaded)


def who_does_not_join_is_waited_for(patch: Patch) -> None:
    """A rebalance does not end at its timeout."""
    original = Rebalancing.on_join_timeout

    def on_join_timeout(self: Any, group: Any, effects: Any) -> None:
        if group.initial_delay is not None:
            original(self, group, effects)

    patch.setattr(Rebalancing, "on_join_timeout", on_join_timeout)


def offsets_told_before_committed(patch: Patch) -> None:
    """An offset is returned that another coordinator may not have."""

    def when_readable(_self: Any, _shard: Any, _group_id: str, answer: Any) -> Any:
        pending: Pending[Any] = Pending()
        pending.complete(answer(ErrorCode.NONE))
        return pending

    patch.setattr(GroupCoordinator, "when_readable", when_readable)


def the_fastest_group_counts(patch: Patch) -> None:
    """Records are deleted that only one group has consumed."""

    def fastest(self: Any, other: Any) -> Any:
        return max(self, other)

    patch.setattr(ConsumedEnd, "__and__", fastest)


def doubts_are_overlooked(patch: Patch) -> None:
    """Records are deleted though a coordinator has not reported what its groups have consumed."""
    original = consumption._take

    def take(*arguments: Any) -> None:
        original(*arguments)

    patch.setattr(consumption, "_take", take)


# Transactions


def pending_offsets_are_told(patch: Patch) -> None:
    """An offset counts as soon as it is written in a transaction, though that may be aborted."""

    def apply_pending(self: Any, _producer_id: int, key: Any, value: Any, _offset: int) -> None:
        self.apply(key, value)

    patch.setattr(CommittedOffsets, "apply_pending", apply_pending)


def unstable_offsets_are_told(patch: Patch) -> None:
    """A request for stable offsets receives those from before a transaction that is being committed."""
    patch.setattr(PendingOffsets, "has", lambda *_: False)


def offsets_of_aborted_ones_count(patch: Patch) -> None:
    """Offsets in a transaction are kept for any end of it."""
    original = CommittedOffsets.end_transaction
    patch.setattr(
        CommittedOffsets, "end_transaction", lambda self, producer_id, **_: original(self, producer_id, is_commit=True)
    )


def markers_before_the_end_is_committed(patch: Patch) -> None:
    """Markers are written for an end that another coordinator may not have; it may then decide differently."""
    original = Transactions._keep

    def keep(self: Any, state: Any, effects: Any, then: Any) -> None:
        original(self, state, effects, then)
        if state.state in ENDING and state.partitions:
            self._ports.send_markers(state)

    patch.setattr(Transactions, "_keep", keep)


def told_once(patch: Patch) -> None:
    """A partition whose marker cannot be written is left out."""
    original = MarkerSender._on_answer

    def on_answer(self: Any, telling: Any, key: Any, error: ErrorCode) -> None:
        original(self, telling, key, ErrorCode.NONE if error != ErrorCode.TRANSACTION_COORDINATOR_FENCED else error)

    patch.setattr(MarkerSender, "_on_answer", on_answer)


def ends_are_not_gone_on_with(patch: Patch) -> None:
    """A new coordinator does not complete a transaction that was ending."""
    original = Transactions.on_loaded

    def on_loaded(self: Any, effects: Any) -> None:
        hidden = {name: state for name, state in self.transactions.items() if state.state in ENDING}
        for name in hidden:
            del self.transactions[name]
        original(self, effects)
        self.transactions.update(hidden)

    patch.setattr(Transactions, "on_loaded", on_loaded)


def open_for_ever(patch: Patch) -> None:
    """A transaction that exceeds its timeout is not ended."""
    patch.setattr(Transactions, "_watch", lambda *_: None)


def any_epoch_ends(patch: Patch) -> None:
    """Fencing is not checked: a replaced producer may end its successor's transaction."""
    original = Transactions.end

    def end(self: Any, transactional_id: str, identity: Any, **values: Any) -> None:
        known = self.transactions.get(transactional_id)
        original(
            self, transactional_id, identity if known is None else (known.producer_id, known.producer_epoch), **values
        )

    patch.setattr(Transactions, "end", end)


def an_old_guard_is_used_again(patch: Patch) -> None:
    """A write that is verified again keeps the guard that the previous transaction's marker has removed (KIP-890)."""

    def on_marker(self: Any, producer_id: int, _epoch: int) -> None:
        self._of.pop(producer_id, None)

    patch.setattr(Verifications, "on_marker", on_marker)
    patch.setattr(TransactionVerifier, "_ask_again", TransactionVerifier._gather)


def what_is_loaded_counts_before_it_is_committed(patch: Patch) -> None:
    """A new coordinator answers from records that the next one may not have."""
    original = Transactions.on_loaded

    def on_loaded(self: Any, effects: Any) -> None:
        original(self, effects)
        self._uncommitted._on_settled()

    patch.setattr(Transactions, "on_loaded", on_loaded)


def aborts_are_not_indexed(patch: Patch) -> None:
    """Readers do not receive the aborted transactions."""
    patch.setattr(TransactionIndex, "note", lambda *_: None)


def open_ones_are_stable(patch: Patch) -> None:
    """The last stable offset ignores transactions."""
    patch.setattr(LogOffsets, "last_stable_offset", property(lambda self: self.high_watermark))


PLANTS = [
    (answered_before_committed, "G3:", "groups", 1),
    (answered_before_the_flush, "G3:", "groups", 14),
    (loaded_without_the_last_record, "G3:", "groups", 100),
    (loaded_without_the_last_record, "T4:", "transactions", 0),
    (two_members_get_the_same, "G1:", "groups", 0),
    (the_generation_stays, "G1:", "groups", 0),
    (any_generation_commits, "G4:", "groups", 4),
    (silence_is_borne_after_a_load, "L1: .* all members of group", "groups", 0),
    (who_does_not_join_is_waited_for, "D13:", "groups", 2),
    (offsets_told_before_committed, "G3:", "groups", 1),
    (the_fastest_group_counts, "D7:", "groups", 0),
    (doubts_are_overlooked, "D7:", "groups", 2),
    (pending_offsets_are_told, "T7:", "transactions", 0),
    (unstable_offsets_are_told, "T7:", "transactions", 54),
    (offsets_of_aborted_ones_count, "T7:", "transactions", 0),
    (markers_before_the_end_is_committed, "T2:", "transactions", 30),
    (told_once, "T4:", "transactions", 7),
    (ends_are_not_gone_on_with, "T4:", "transactions", 1),
    (open_for_ever, "T4:", "transactions", 0),
    (any_epoch_ends, "T5:", "transactions", 0),
    (aborts_are_not_indexed, "T1:", "transactions", 0),
    (open_ones_are_stable, "T3:", "transactions", 0),
    (answered_before_committed, "T5:", "transactions", 139),
    (what_is_loaded_counts_before_it_is_committed, "T2:", "transactions", 8),
    (an_old_guard_is_used_again, "T8:", "transactions", 0),
]
"""Each with what it violates, what clients do, and the seed to begin with: one that finds it soon."""

AIMED: Final[dict[object, tuple[str, ...]]] = {
    answered_before_the_flush: ("power cut", "power cut of all", "slow disk"),
    what_is_loaded_counts_before_it_is_committed: ("leaders die uncommitted", "kill", "pause", "leader move"),
}
"""Faults that can show a rare bug: unflushed records, and records that only the leader has."""


@pytest.mark.parametrize(
    ("plant", "expected", "kind", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_is_found(
    plant: Callable[[Patch], None], expected: str, kind: str, first_seed: int, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    find(
        expected,
        lambda seed: simulate_cluster(seed, kinds=(kind,), faults=AIMED.get(plant)),
        range(first_seed, first_seed + MAXIMUM_SEEDS),
    )
