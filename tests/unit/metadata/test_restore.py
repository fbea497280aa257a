"""What a restore writes.

Which copy counts, on which stores it begins, and what a store holds when it was cut off anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import RecoveryError
from lowtide.metadata.image_change import load_image
from lowtide.metadata.metadata_copy import MetadataCopy, Row
from lowtide.metadata.records import HistoryRecord, PartitionRecord, SuspensionRecord, decode, encode
from lowtide.metadata.recovery import RecoveryPlan
from lowtide.metadata.recovery_writer import RECOVERY, bring_forward, read_rows
from lowtide.metadata.restore import UNDER_WAY, begin_restore, newest_of, plan_restore
from lowtide.metadata.store import Compare, Operation, Put, TransactionResult, UnavailableError
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.simulation.memory_store import MemoryDisk, MemoryStore
from tests.scenarios import played_by

from .test_recovery import PREFIX, TOPIC_ID, facts, rows


def backup(revision: int = 45, *, found: list[Row] | None = None, history: str = "H") -> MetadataCopy:
    return MetadataCopy(found or rows(revision, history=history), revision, history_id=history, cluster_id="C")


def of_history(history: str, previous: str, revision: int) -> list[Row]:
    value = encode(HistoryRecord(history, 0, previous, revision))
    return [row if row[0] != keys.HISTORY else (row[0], value, 1, 1) for row in rows(5)]


def restored(copy: MetadataCopy, *given, without=(), store=None) -> RecoveryPlan:
    return plan_restore(copy, given, store or {}, without=without, history_id="N", raft_surplus=-5)


def partition(plan: RecoveryPlan) -> PartitionRecord:
    return decode(b"", plan.values[keys.partition(TOPIC_ID, 0)], PartitionRecord)


def test_log_directories_that_have_seen_more_count_before_the_backup() -> None:
    """A topic that was created, and a configuration that was set, since the backup are not lost."""
    since = rows(50, **{"config/topic/late": b"{}"})
    plan = restored(backup(), facts(1, 40), facts(2, 50, found=since), facts(3, 40))
    assert (plan.source, plan.revision) == (2, 50)
    assert b"config/topic/late" in plan.values


def test_a_backup_that_has_seen_more_counts_before_log_directories_from_copies() -> None:
    """Directories from before the backup start on what it restores: the history names it, and up to where."""
    plan = restored(backup(), facts(1, 40, end=10), facts(2, 44, end=12), without=(3,))
    assert (plan.source, plan.revision) == (None, 45)
    assert plan.history == HistoryRecord("N", -5, "H", 45)
    assert partition(plan).isr == (2,), "of the logs that are left"


def test_with_nothing_but_the_backup_everything_but_the_records_is_restored() -> None:
    copy = backup()
    plan = restored(copy, without=(1, 2, 3))
    changed = {keys.HISTORY, keys.NEXT_PRODUCER_ID, keys.CONTROLLER_EPOCH, keys.partition(TOPIC_ID, 0)}
    assert {key: plan.values[key] for key in copy.rows if key not in changed} == {
        key: row[1] for key, row in copy.rows.items() if key not in changed
    }
    assert partition(plan).replicas == (1, 2, 3)
    assert len(plan.problems) == 1
    with pytest.raises(RecoveryError, match="what broker 1, 2, 3 knows is missing"):
        restored(copy)


def test_a_restore_since_the_backup_counts_before_it() -> None:
    found = of_history("N", "H", 90)
    broker_id, copy = newest_of(backup(), [facts(1, 5, found=found)])
    assert (broker_id, copy.history_id) == (1, "N")


def test_what_is_of_another_cluster_or_of_an_unknown_history_is_refused() -> None:
    with pytest.raises(RecoveryError, match="backup is of cluster D, the log directories of broker 1 of C"):
        newest_of(MetadataCopy(rows(40), 40, history_id="H", cluster_id="D"), [facts(1, 40)])
    with pytest.raises(RecoveryError, match="backup is of history X .* neither comes from the other"):
        newest_of(backup(history="X"), [facts(1, 40)])


def test_a_restore_begins_on_an_empty_store_only() -> None:
    full = {row[0]: row for row in rows(40)}
    with pytest.raises(RecoveryError, match=r"isn't empty, it has 14 keys, of which 1 are topics.*--replace"):
        begin_restore(backup(), full, replaces=False)
    assert begin_restore(backup(), full, replaces=True).compares == ()
    other = {keys.CLUSTER_ID: (keys.CLUSTER_ID, b"D", 1, 1)}
    for replaces in (False, True):
        with pytest.raises(RecoveryError, match="is of cluster C, and the metadata store of D"):
            begin_restore(backup(), other, replaces=replaces)
    recovering = {keys.SUSPENSION: (keys.SUSPENSION, encode(SuspensionRecord(RECOVERY.reason, -1)), 3, 3)}
    with pytest.raises(RecoveryError, match="isn't empty"):
        begin_restore(backup(), recovering, replaces=False)


class CutStore(MemoryStore):
    """Applies so many transactions, and no more."""

    left = 1 << 30

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        if self.left == 0:
            raise UnavailableError("cut")
        self.left -= 1
        return await super().transact(compares, operations, otherwise)


def large_backup() -> MetadataCopy:
    return backup(found=rows(45, **{f"config/topic/{number}": b"{}" for number in range(250)}))


@pytest.mark.parametrize("steps", range(6))
@played_by(run_simulation, 1)
async def test_a_restore_that_is_cut_off_anywhere_leaves_a_store_that_is_empty_or_refused_and_can_be_continued(
    loop: SimulatedLoop, /, steps: int
) -> None:
    disk = MemoryDisk()
    store = CutStore(disk, clock=SimulatedClock(loop), random=Random(1), loop=loop)
    copy = large_backup()

    async def restore() -> dict[bytes, bytes]:
        now, _ = await read_rows(store, PREFIX)
        plan = restored(copy, without=(1, 2, 3), store=now)
        await bring_forward(store, PREFIX, plan, begin_restore(copy, now, replaces=False))
        return dict(plan.values) | {keys.HISTORY: encode(plan.history)}

    store.left = steps
    if steps < 5:
        with pytest.raises(UnavailableError):
            await restore()
        image = load_image(disk.keys.values(), disk.revision, prefix=PREFIX)
        if disk.keys:
            assert image.suspension == UNDER_WAY, "on which no broker acts"
        store.left = 1 << 30
    expected = await restore()
    now, _ = await read_rows(store, PREFIX)
    assert {key: row[1] for key, row in now.items()} == expected
    await store.close()


@played_by(run_simulation, 1)
async def test_a_restore_does_not_begin_where_a_broker_began_meanwhile(loop: SimulatedLoop, /) -> None:
    store = MemoryStore(MemoryDisk(), clock=SimulatedClock(loop), random=Random(1), loop=loop)
    beginning = begin_restore(backup(), {}, replaces=False)
    await store.transact([], [Put(PREFIX + keys.CLUSTER_ID, b"C")])
    with pytest.raises(RecoveryError, match="something else began"):
        await bring_forward(store, PREFIX, restored(backup(), without=(1, 2, 3)), beginning)
    now, _ = await read_rows(store, PREFIX)
    assert list(now) == [keys.CLUSTER_ID]
    await store.close()
