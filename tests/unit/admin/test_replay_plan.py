"""A replay repeats committed erasures only, in requests that a broker accepts, in the topics that had the records."""

from __future__ import annotations

import random
from uuid import UUID

import msgspec
import pytest

from lowtide.admin.cluster_view import ClusterView, PartitionDescription, TopicDescription
from lowtide.admin.replay_plan import LedgerPlace, located, replay_plan
from lowtide.protocol.erasure_ledger_records import LedgerEntry, NamedRun, SelectorKind
from lowtide.protocol.messages.find_records import NAMED_MAX
from lowtide.protocol.types import TopicId, TopicPartition

from .ledger_rows import ERASURE, PLACE, TIME_MS, TOPIC_ID, clean, named

HERE = LedgerPlace(*PLACE)
OTHER_ID = bytes(reversed(TOPIC_ID))


def renamed(entry: LedgerEntry, topic_id: TopicId) -> LedgerEntry:
    return LedgerEntry(msgspec.structs.replace(entry.key, topic_id=topic_id), entry.value)


def view(**topics: TopicId) -> ClusterView:
    partition = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
    described = {
        name: TopicDescription(name=name, topic_id=topic_id, is_internal=False, partitions={0: partition})
        for name, topic_id in topics.items()
    }
    return ClusterView(cluster_id="c", controller_id=1, brokers={}, topics=described, errors={})


def test_what_committed_searches_name_is_repeated_once():
    """A repeated search names the same records again; without a commit it is not known whether they were erased."""
    late = NamedRun(first_offset=950, leader_epoch=3, timestamps=[7])
    plan = replay_plan([named(), named(searched_to=990), named(searched_to=991, committed_ms=-1, records=[late])])
    [step] = plan.steps
    assert (step.erasure_id, step.kind, step.commitment) == (ERASURE, SelectorKind.KEYS, b"")
    assert step.runs == {
        HERE: [
            NamedRun(first_offset=103, leader_epoch=2, timestamps=[TIME_MS + 103]),
            NamedRun(first_offset=107, leader_epoch=2, timestamps=[TIME_MS + 107, TIME_MS + 108]),
        ]
    }
    assert (plan.counts, plan.uncommitted) == ({(ERASURE, HERE): 3}, 1)


def test_each_commitment_and_each_kind_is_repeated():
    """Protects receipts: whoever has one of the nonces finds their commitment in the ledger again."""
    plan = replay_plan([named(commitment=b"a" * 32), named(searched_to=990, commitment=b"b" * 32, kind=2)])
    assert [(each.commitment[:1], each.kind) for each in plan.steps] == [(b"a", 0), (b"b", 2)]
    assert plan.counts == {(ERASURE, HERE): 3}


def test_a_long_list_has_several_parts():
    count = 2 * NAMED_MAX + 5
    runs = [NamedRun(first_offset=0, leader_epoch=1, timestamps=list(range(count)))]
    steps = replay_plan([named(records=runs)]).steps
    assert [sum(len(run.timestamps) for run in each.runs[HERE]) for each in steps] == [NAMED_MAX, NAMED_MAX, 5]
    assert [each.runs[HERE][0].first_offset for each in steps] == [0, NAMED_MAX, 2 * NAMED_MAX]


def test_any_records_are_named_exactly_once_in_all_parts():
    choice = random.Random(7)
    for _ in range(50):
        names = {(choice.randrange(40), choice.randrange(3), choice.randrange(3)) for _ in range(60)}
        runs = [NamedRun(first_offset=offset, leader_epoch=epoch, timestamps=[time]) for offset, epoch, time in names]
        [step] = replay_plan([named(records=runs)]).steps
        found = [
            (offset, run.leader_epoch, time)
            for run in step.runs[HERE]
            for offset, time in enumerate(run.timestamps, run.first_offset)
        ]
        assert sorted(found) == sorted(names)


def test_only_an_erased_beginning_is_one():
    """Where records were erased by key, those below the log start were deleted before, and nobody had them erased."""
    plan = replay_plan([named(), clean(1), clean(2, erasures_end=-1)])
    assert plan.beginnings == {(ERASURE, HERE): 100}


def test_invalid_values_are_refused():
    with pytest.raises(ValueError, match="negative offset -4"):
        replay_plan([named(records=[NamedRun(first_offset=-4, leader_epoch=0, timestamps=[1])])])
    with pytest.raises(ValueError, match="9 is not a valid SelectorKind"):
        replay_plan([named(kind=9)])


def test_a_topic_is_found_by_id_then_by_name():
    plan = replay_plan([named()])
    assert located(plan, view(flights=OTHER_ID, other=TOPIC_ID)) == {HERE: TopicPartition("other", 0)}
    assert located(plan, view(flights=OTHER_ID)) == {HERE: TopicPartition("flights", 0)}
    assert located(plan, view(other=OTHER_ID)) == {}


def test_an_earlier_topic_of_the_name_is_gone():
    """The export names both, so the cluster had deleted the earlier one: nothing of it is in the later one."""
    plan = replay_plan([named(), renamed(named(), OTHER_ID)])
    assert located(plan, view(flights=OTHER_ID)) == {LedgerPlace(OTHER_ID, 0): TopicPartition("flights", 0)}


def test_a_partition_that_the_topic_lacks_is_gone():
    entry = named()
    moved = LedgerEntry(msgspec.structs.replace(entry.key, partition=3, erasure_id=UUID(int=4).bytes), entry.value)
    assert located(replay_plan([moved]), view(flights=TOPIC_ID)) == {}
