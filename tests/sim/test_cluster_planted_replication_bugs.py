"""Bugs planted on purpose in leader epochs, the ISR, elections, fences, high watermarks, producers' sequences: each
must be found.

How many seeds each takes is counted by `make plants`; PLANT_SEEDS=n searches that many.

Not here is what another guard makes harmless:

- a leader keeps what a follower reported under an earlier registration: its next fetch replaces it, and
  `reported_log_start` compares;
- a change of an ISR doesn't compare the members' registrations in the store: the controller drops a member that isn't
  registered so;
- a follower serves by the word of a leader of an earlier epoch: no delete is acknowledged without its report in the
  present one.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import msgspec
import pytest

from lowtide.broker.guards import fetching
from lowtide.broker.partitions import alter_partition_manager, replica_fetcher
from lowtide.broker.partitions.deletes.delayed_delete import DelayedDeleteRecords
from lowtide.broker.partitions.fetch.fetch_targets import FetchTarget
from lowtide.metadata.changes import Step
from lowtide.metadata.session import MetadataSession
from lowtide.protocol.errors import ErrorCode
from lowtide.replication import alter_partition, elections, epoch_ends, follower, in_sync_replicas
from lowtide.replication.follower_reads import FollowerReads
from lowtide.replication.former_replicas import FormerReplicas
from lowtide.replication.leadership import Leadership
from lowtide.replication.partition import Partition
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.directory.log_truncation import LogTruncations
from lowtide.storage.log.offsets import LeaderEpochs
from lowtide.storage.log.producers.open_transactions import OpenTransactions
from lowtide.storage.log.producers.producer_state import ACCEPTED, DuplicateBatch, ProducerStateManager
from lowtide.storage.log.truncation import LogTruncation

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest


# Leader epochs and truncation


def truncates_to_the_high_watermark(patch: Patch) -> None:
    """A follower of a new epoch truncates to its own high watermark, as before KIP-101."""

    def first_truncation(log: Any) -> follower.Truncate | None:
        return follower.Truncate(log.high_watermark) if log.high_watermark < log.log_end_offset else None

    patch.setattr(replica_fetcher, "first_truncation", first_truncation)


def an_epoch_ends_one_offset_later(patch: Patch) -> None:
    """The end of an earlier leader epoch is off by one: a record of a lost leadership stays."""
    original = LeaderEpochs.end_offset_for

    def end_offset_for(self: Any, epoch: int, log_end_offset: int) -> tuple[int, int]:
        found, end = original(self, epoch, log_end_offset)
        return found, end + (0 <= end < log_end_offset)

    patch.setattr(LeaderEpochs, "end_offset_for", end_offset_for)


def epochs_are_not_compared(patch: Patch) -> None:
    """A follower that diverges is served as if it didn't."""
    patch.setattr(epoch_ends, "diverging_epoch", lambda *_: None)


def an_epoch_without_records_is_not_reported(patch: Patch) -> None:
    """A follower whose last epoch wrote nothing here receives the end of the log as its epoch's end."""
    original = epoch_ends.end_offset_for_epoch

    def end_offset_for_epoch(partition: Partition, leader_epoch: int) -> epoch_ends.EpochEnd:
        if 0 <= leader_epoch < partition.leader_epoch and leader_epoch > partition.log.leader_epochs.latest:
            return epoch_ends.EpochEnd(leader_epoch, partition.log.log_end_offset)
        return original(partition, leader_epoch)

    patch.setattr(epoch_ends, "end_offset_for_epoch", end_offset_for_epoch)


def a_cut_is_not_waited_for(patch: Patch) -> None:
    """Records follow a truncation before that is on the disk: a power cut mixes two histories."""
    original = LogTruncations._submit

    def submit(self: Any, settling: Any, barrier: Any) -> None:
        original(self, settling, msgspec.structs.replace(barrier, files=(), directories=()))

    patch.setattr(LogTruncations, "_submit", submit)


# Fetch sessions


def what_a_follower_ignores_is_known(patch: Patch) -> None:
    """A session takes for known what stands beside a diverging epoch, and what a follower has never reported."""

    def tell(self: Any, answer: Any) -> None:
        failed = answer.error_code != ErrorCode.NONE
        self.sent_high_watermark = -1 if failed else answer.high_watermark
        self.sent_log_start_offset = -1 if failed else answer.log_start_offset

    def ask(self: Any, *values: int) -> None:
        told = self.sent_high_watermark, self.sent_log_start_offset
        original(self, *values)
        self.sent_high_watermark, self.sent_log_start_offset = told

    original = FetchTarget.ask
    patch.setattr(FetchTarget, "tell", tell)
    patch.setattr(FetchTarget, "ask", ask)


# High watermark and ISR


def committed_one_offset_early(patch: Patch) -> None:
    """The high watermark is one above what the slowest member has."""
    original = in_sync_replicas.high_watermark

    def high_watermark(led: Any, *arguments: Any) -> int:
        return min(original(led, *arguments) + 1, led.log.log_end_offset)

    patch.setattr(in_sync_replicas, "high_watermark", high_watermark)


def all_is_committed_at_an_election(patch: Patch) -> None:
    """A new leader's high watermark begins at its log end."""
    original = Leadership.__init__

    def init(self: Any, **parts: Any) -> None:
        original(self, **parts)
        self.log.advance_high_watermark(self.log.log_end_offset)

    patch.setattr(Leadership, "__init__", init)


def who_is_too_slow_joins(patch: Patch) -> None:
    """A follower that has what is committed joins, though it isn't caught up and will be dropped for that."""
    original = in_sync_replicas.may_join

    def may_join(led: Any, broker_id: int, one: Any, image: Any, now_ms: int) -> bool:
        return original(led, broker_id, msgspec.structs.replace(one, caught_up_ms=now_ms), image, now_ms)

    patch.setattr(in_sync_replicas, "may_join", may_join)


def joins_below_the_epoch_start(patch: Patch) -> None:
    """A follower joins that has reached the high watermark, which a new leader doesn't know yet.

    (Nor is it caught up: that would do.)
    """
    original = in_sync_replicas.may_join

    def may_join(led: Any, broker_id: int, one: Any, image: Any, now_ms: int) -> bool:
        start, led.epoch_start_offset = led.epoch_start_offset, 0
        try:
            return original(led, broker_id, msgspec.structs.replace(one, caught_up_ms=now_ms), image, now_ms)
        finally:
            led.epoch_start_offset = start

    patch.setattr(in_sync_replicas, "may_join", may_join)


def a_fetch_counts_for_the_registration_that_is_known(patch: Patch) -> None:
    """A follower's fetch counts for the registration in the leader's image, as before KIP-903."""
    check, note = Leadership.check_fetch, Leadership.note_fetch

    def known(fetch: Any, image: Any) -> Any:
        epoch = image.broker_epoch(fetch.broker_id)
        return fetch if epoch is None else msgspec.structs.replace(fetch, broker_epoch=epoch)

    patch.setattr(Leadership, "check_fetch", lambda self, fetch, image: check(self, known(fetch, image), image))
    patch.setattr(
        Leadership, "note_fetch", lambda self, fetch, image, now_ms: note(self, known(fetch, image), image, now_ms)
    )


def isr_changes_do_not_compare_the_record(patch: Patch) -> None:
    """A leader that was deposed overwrites the record of its successor."""
    original = alter_partition.plan_alter_partition

    def plan(changes: Any) -> Step:
        step = original(changes)
        return Step(step.operations, tuple(each for each in step.compares if each.field != "modify"))

    patch.setattr(alter_partition_manager, "plan_alter_partition", plan)


# Elections and fences


def the_leader_epoch_stays(patch: Patch) -> None:
    """An election doesn't raise the leader epoch."""
    original = elections.elect

    def elect(image: Any, topic_id: Any, number: int, partition: Any, **options: Any) -> Any:
        record = original(image, topic_id, number, partition, **options)
        return None if record is None else msgspec.structs.replace(record, leader_epoch=partition.leader_epoch)

    _everywhere(patch, "elect", original, elect)


def any_live_replica_is_elected(patch: Patch) -> None:
    """Every election may be unclean."""
    original = elections._Voters.outcome
    patch.setattr(elections._Voters, "outcome", lambda self, _election: original(self, elections.Election.UNCLEAN))


def a_leader_that_has_restarted_stays(patch: Patch) -> None:
    """The registration of a leader isn't looked at: one that died and is back counts as the one that was elected."""

    def is_healthy(partition: Any, steady: Any) -> bool:
        return (
            partition.leader in partition.isr
            and partition.leader in steady
            and not partition.adding
            and not partition.removing
        )

    _everywhere(patch, "is_healthy", elections.is_healthy, is_healthy)


def leads_on_without_a_lease(patch: Patch) -> None:
    """A broker acts until it sees that its registration is gone, not only while its lease certainly lasts."""
    patch.setattr(MetadataSession, "fenced_from_ms", property(lambda _self: 1 << 60))


# Deletes


def a_delete_below_the_log_start_asks_nobody(patch: Patch) -> None:
    """Rule DR3: what is deleted on the leader already is acknowledged at once."""
    original = DelayedDeleteRecords._settle

    def settle(self: Any, row: Any, now_ms: int, *, may_act: bool) -> None:
        original(self, row, now_ms, may_act=may_act)
        partition = row.partition
        if not row.done and partition is not None and row.offset <= row.old_log_start_offset:
            row.done, row.low_watermark, row.log_start_offset = True, row.offset, partition.log.log_start_offset

    patch.setattr(DelayedDeleteRecords, "_settle", settle)


def leader_only_waits_for_no_disk(patch: Patch) -> None:
    """A LeaderOnly delete is answered when it is accepted."""
    original = DelayedDeleteRecords._settle

    def settle(self: Any, row: Any, now_ms: int, *, may_act: bool) -> None:
        original(self, row, now_ms, may_act=may_act)
        if not row.done and self.asked.leader_only:
            row.done, row.low_watermark, row.log_start_offset = True, 0, row.offset

    patch.setattr(DelayedDeleteRecords, "_settle", settle)


def a_timeout_is_a_success(patch: Patch) -> None:
    """The purgatory's deadline answers what the leader alone has deleted as done."""
    original = DelayedDeleteRecords.on_complete

    def on_complete(self: Any) -> None:
        for row in self._rows:
            if not row.done and row.partition is not None and row.partition.log.log_start_offset >= row.offset:
                row.done, row.low_watermark, row.log_start_offset = True, row.offset, row.partition.log.log_start_offset
        original(self)

    patch.setattr(DelayedDeleteRecords, "on_complete", on_complete)


def a_follower_that_hears_nothing_answers(patch: Patch) -> None:
    """Rule DR7: how old the last word of the leader is doesn't matter."""
    original = FollowerReads.may_serve

    def may_serve(self: Any, log: Any, leader_epoch: int, broker_epoch: int, now_ms: int, _limit_ms: int) -> bool:
        return original(self, log, leader_epoch, broker_epoch, now_ms, 1 << 62)

    patch.setattr(FollowerReads, "may_serve", may_serve)


def a_follower_of_a_stopping_broker_answers(patch: Patch) -> None:
    """Rule DR7: a broker that wants to stop serves under its registration as before, though no delete waits for it."""
    patch.setattr(fetching, "_serving_epoch", lambda metadata: metadata.broker_epoch)


def removed_replicas_are_forgotten(patch: Patch) -> None:
    """Rule DR3: no delete waits for a broker that may not know yet that its replica was removed."""
    patch.setattr(FormerReplicas, "awaited", lambda *_: {})


def a_removal_keeps_the_leader_epoch(patch: Patch) -> None:
    """A broker that is removed and re-added before it sees either joins with the log that it drops."""
    patch.setattr(elections, "_removes", lambda *_: False)


# Idempotent producers


def duplicates_are_appended(patch: Patch) -> None:
    """A batch that was appended before is appended again."""
    original = ProducerStateManager.check

    def check(self: Any, *arguments: Any, **options: Any) -> Any:
        found = original(self, *arguments, **options)
        return ACCEPTED if isinstance(found, DuplicateBatch) else found

    patch.setattr(ProducerStateManager, "check", check)


def followers_know_no_producers(patch: Patch) -> None:
    """Batches that a follower copies, or a start recovers, don't count: a new leader appends repeated ones."""
    original = ProducerStateManager.replay

    def replay(self: Any, header: Any, **options: Any) -> Any:
        return original(self, header, **options) if header.is_control else None

    patch.setattr(ProducerStateManager, "replay", replay)


def producers_survive_a_truncation(patch: Patch) -> None:
    """Batches that were cut off count as appended: the producer that repeats one is answered that it is there."""
    original = LogTruncation.barrier

    def barrier(self: Any, *, now_ms: int) -> Any:
        self._log.are_producers_stale = False
        return original(self, now_ms=now_ms)

    patch.setattr(LogTruncation, "barrier", barrier)


def any_sequence_is_taken(patch: Patch) -> None:
    """A gap between two batches of a producer is no error."""
    original = ProducerStateManager.check

    def check(self: Any, *arguments: Any, **options: Any) -> Any:
        found = original(self, *arguments, **options)
        return ACCEPTED if found is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER else found

    patch.setattr(ProducerStateManager, "check", check)


def only_the_last_batch_is_recalled(patch: Patch) -> None:
    """After a restart a producer's last batch is known, and not those before, which it may repeat."""
    patch.setattr(ProducerStateManager, "recall", lambda *_: None)


# Transactions


def stable_before_the_marker_is_committed(patch: Patch) -> None:
    """A transaction counts as decided when its marker is written."""

    def settle(self: Any, _high_watermark: int) -> None:
        self._undecided.clear()
        self.any = bool(self._open)

    patch.setattr(OpenTransactions, "settle", settle)


def any_coordinator_writes_markers(patch: Patch) -> None:
    """A coordinator that another has followed may still end transactions."""
    original = ProducerStateManager.check_marker

    def check_marker(self: Any, *arguments: Any, **options: Any) -> Any:
        found = original(self, *arguments, **options)
        return ACCEPTED if found is ErrorCode.TRANSACTION_COORDINATOR_FENCED else found

    patch.setattr(ProducerStateManager, "check_marker", check_marker)


def _everywhere(patch: Patch, name: str, original: object, planted: object) -> None:
    """Replaces a function in every module that has imported it."""
    for module in [each for key, each in sys.modules.items() if key.startswith("lowtide.")]:
        if getattr(module, name, None) is original:
            patch.setattr(module, name, planted)


AIMED_STRIKES: Final = 12

PARTITIONS: Final = ("partitions",)
TRANSACTIONS: Final = ("transactions",)
PIPELINES: Final = ("partitions", "several batches under way")

PLANTS: Final = [
    (truncates_to_the_high_watermark, "(P1|P2|R1):", PARTITIONS, 0),
    (an_epoch_ends_one_offset_later, "(P1|P6|R1|R2):", PARTITIONS, 0),
    (epochs_are_not_compared, "(P1|P2|R1|R2|L1):", PARTITIONS, 0),
    (an_epoch_without_records_is_not_reported, "(P1|P2|R1|R2):", PARTITIONS, 0),
    (a_cut_is_not_waited_for, "(P1|P2|R1|R2|S1):", PARTITIONS, 0),
    (what_a_follower_ignores_is_known, "L1: .* all replicas are in sync", PARTITIONS, 80),
    (committed_one_offset_early, "P2:", PARTITIONS, 0),
    (all_is_committed_at_an_election, "P2:", PARTITIONS, 0),
    (who_is_too_slow_joins, "L2:", PARTITIONS, 0),
    (joins_below_the_epoch_start, "P2:", PARTITIONS, 0),
    (a_fetch_counts_for_the_registration_that_is_known, "(P2|D8|DR3):", PARTITIONS, 0),
    (isr_changes_do_not_compare_the_record, "(D1|D8|P2|P3|P4|R1):", PARTITIONS, 100_950),
    (the_leader_epoch_stays, "P3:", PARTITIONS, 0),
    (any_live_replica_is_elected, "P4:", PARTITIONS, 0),
    (a_leader_that_has_restarted_stays, "L1:", PARTITIONS, 0),
    (leads_on_without_a_lease, "(D1|D2|R1|DR3):", PARTITIONS, 0),
    (a_delete_below_the_log_start_asks_nobody, "(D8|DR3): .* starts at", PARTITIONS, 0),
    (leader_only_waits_for_no_disk, "D2:", PARTITIONS, 0),
    (a_timeout_is_a_success, "(D3|D8|DR3):", PARTITIONS, 0),
    (a_follower_that_hears_nothing_answers, "D1:", PARTITIONS, 0),
    (a_follower_of_a_stopping_broker_answers, "D1:", PARTITIONS, 0),
    (removed_replicas_are_forgotten, "D1:", PARTITIONS, 0),
    (a_removal_keeps_the_leader_epoch, "(D8|P2):", PARTITIONS, 146),
    (duplicates_are_appended, "R5:", PARTITIONS, 0),
    (followers_know_no_producers, "(R1|R5):", PARTITIONS, 0),
    (producers_survive_a_truncation, "(R1|R2):", PIPELINES, 0),
    (any_sequence_is_taken, "(R5|R6):", PIPELINES, 0),
    (only_the_last_batch_is_recalled, "R1:", PIPELINES, 0),
    (stable_before_the_marker_is_committed, "T[123]:", TRANSACTIONS, 0),
    (any_coordinator_writes_markers, "T[1-6]:", TRANSACTIONS, 0),
]
"""Each with what it violates, what clients do, and the seed to begin with: one that finds it soon."""

AIMED: Final[dict[object, tuple[str, ...]]] = {
    an_epoch_without_records_is_not_reported: ("leaders die uncommitted", "kill", "leader move", "pause"),
    what_a_follower_ignores_is_known: ("leaders die uncommitted", "kill", "leader move", "pause"),
    a_cut_is_not_waited_for: ("leaders die uncommitted", "power cut", "power cut of all", "fast restart", "slow disk"),
    who_is_too_slow_joins: ("full disk",),
    a_fetch_counts_for_the_registration_that_is_known: ("fast restart", "link cut", "slow network", "power cut"),
    a_follower_that_hears_nothing_answers: ("cut off", "link cut"),
    a_follower_of_a_stopping_broker_answers: ("late shutdown",),
    removed_replicas_are_forgotten: ("late removal",),
    a_removal_keeps_the_leader_epoch: ("late removal",),
    producers_survive_a_truncation: ("leaders die uncommitted", "leader move", "leader flip", "pause", "kill"),
}
"""The faults that can show a bug that is rare among all others."""


def run(plant: tuple[Any, ...], seed: int) -> object:
    """One seed for one of these."""
    kinds = plant[2]
    aimed = AIMED.get(plant[0])
    return simulate_cluster(
        seed, kinds=kinds[:1], faults=aimed, strikes=aimed and AIMED_STRIKES, pipelines=kinds is PIPELINES
    )


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant[0].__name__)
def test_is_found(plant: tuple[Any, ...], monkeypatch: Patch) -> None:
    bug, expected, _, first_seed = plant
    bug(monkeypatch)
    find(expected, lambda seed: run(plant, seed), range(first_seed, first_seed + MAXIMUM_SEEDS))
