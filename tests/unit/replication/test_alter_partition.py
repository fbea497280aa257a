"""The transaction that changes ISRs: what it writes, and on what it relies."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES
from lowtide.metadata.records import PartitionRecord, decode
from lowtide.metadata.store import ABSENT, MAX_TRANSACTION_OPERATIONS, Compare, Put
from lowtide.replication.alter_partition import BATCH_PARTITIONS, plan_alter_partition, take_batch
from lowtide.replication.eligible_leaders import IsrProposal
from lowtide.replication.leadership import Leadership

from .leaders import LAG_MS, SELF, TOPIC_ID, FakeLog, image_of, partition_of

IMAGE = image_of(10, {1: 1, 2: 2, 3: 3})


def change(
    number: int = 0, isr: tuple[int, ...] = (1, 2), epochs: tuple[int, ...] = (1, 2), **more: Any
) -> tuple[Leadership, IsrProposal]:
    base = partition_of((1,), (1,), revision=10 + number, adding=(3,), removing=(2,))
    leadership = Leadership(
        broker_id=SELF,
        topic_id=TOPIC_ID,
        number=number,
        log=FakeLog(),
        state=base,
        image=IMAGE,
        lag_time_max_ms=LAG_MS,
        now_ms=0,
    )
    return leadership, IsrProposal(base, 10, isr, epochs, **more)


def test_it_writes_the_isr_and_the_eligible_leaders_and_nothing_else() -> None:
    leadership, proposal = change(4, (1, 2), (1, 2), elr=(3,), elr_epochs=(30,))
    step = plan_alter_partition([(leadership, proposal)])
    (put,) = step.operations
    assert isinstance(put, Put)
    assert put.key == keys.partition(TOPIC_ID, 4)
    base = proposal.base
    assert decode(put.key, put.value, PartitionRecord) == PartitionRecord(
        replicas=base.replicas,
        isr=(1, 2),
        isr_epochs=(1, 2),
        leader=base.leader,
        leader_epoch=base.leader_epoch,
        partition_epoch=base.partition_epoch + 1,
        adding=(3,),
        removing=(2,),
        elr=(3,),
        elr_epochs=(30,),
    )


def test_it_relies_on_the_record_and_on_the_other_members_registrations() -> None:
    step = plan_alter_partition([change(4, (1, 2, 3), (1, 20, 30))])
    assert set(step.compares) == {
        Compare(keys.partition(TOPIC_ID, 4), "modify", "==", 14),
        Compare(keys.broker(2), "create", "==", 20),
        Compare(keys.shutdown(2), "create", "==", ABSENT),
        Compare(keys.broker(3), "create", "==", 30),
        Compare(keys.shutdown(3), "create", "==", ABSENT),
    }


def test_several_partitions_share_what_they_rely_on() -> None:
    step = plan_alter_partition([change(number) for number in range(3)])
    assert [operation.key for operation in step.operations] == [keys.partition(TOPIC_ID, number) for number in range(3)]
    assert len(step.compares) == 3 + 2


def test_so_many_changes_go_together() -> None:
    assert take_batch([change(number) for number in range(3)]) == 3
    assert take_batch([change(number) for number in range(BATCH_PARTITIONS + 5)]) == BATCH_PARTITIONS
    assert take_batch([]) == 0


def test_changes_that_rely_on_different_registrations_do_not_go_together() -> None:
    """One of them is too late, and would take the other along."""
    assert take_batch([change(0), change(1), change(2, epochs=(1, 22)), change(3)]) == 2
    assert take_batch([change(0), change(1, (1, 3), (1, 3)), change(2)]) == 3, "other brokers"


@pytest.mark.parametrize(("others", "fitting"), [([4] * 12 + [8], 13), ([4] * 14, 13), ([5] * BATCH_PARTITIONS, 11)])
def test_a_transaction_compares_no_more_than_the_store_takes(others: list[int], fitting: int) -> None:
    """A change compares its own record, and for each other member two keys.

    13 records and 112 keys fill a transaction to the last.
    """
    changes = []
    for number, count in enumerate(others):
        members = (1, *range(100 * number + 100, 100 * number + 100 + count))
        changes.append(change(number, members, members))
    assert take_batch(changes) == fitting
    compares = [len(plan_alter_partition(changes[:count]).compares) + FENCES for count in (fitting, fitting + 1)]
    assert compares[0] <= MAX_TRANSACTION_OPERATIONS
    assert fitting == len(changes) or compares[1] > MAX_TRANSACTION_OPERATIONS


def test_one_change_is_always_taken() -> None:
    members = (1, *range(100, 100 + MAX_TRANSACTION_OPERATIONS))
    assert take_batch([change(0, members, members), change(1)]) == 1
