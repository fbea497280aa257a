"""The plan of a recovery from the brokers' facts: ISRs, epochs, and cases that it refuses to decide."""

from __future__ import annotations

import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import BrokerFacts, RecoveryError, decode_facts, encode_facts, facts_of
from lowtide.metadata.image_change import load_image
from lowtide.metadata.metadata_copy import MetadataCopy, Row, encode_copy
from lowtide.metadata.records import (
    AclRecord,
    BrokerRecord,
    HistoryRecord,
    PartitionRecord,
    RegistrationRecord,
    TopicRecord,
    decode,
    encode,
)
from lowtide.metadata.recovery import EPOCH_JUMP, LONG_AGO, PRODUCER_IDS_JUMP, is_needed, plan_recovery
from lowtide.metadata.recovery_writer import bring_forward, read_rows
from lowtide.metadata.store import KeyValue, Put
from lowtide.protocol.types import topic_id_text
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.simulation.memory_store import MemoryDisk, MemoryStore
from lowtide.storage.directory.directory_survey import SurveyedDirectory, SurveyedReplica
from tests.scenarios import played_by

TOPIC_ID = b"T" * 16
PREFIX = b"/lowtide/"


def rows(
    revision: int,
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    elr: tuple[int, ...] = (),
    leader_epoch: int = 4,
    history: str = "H",
    replicas: tuple[int, ...] = (1, 2, 3),
    **further: bytes,
) -> list[Row]:
    state = PartitionRecord(
        replicas, isr, (20,) * len(isr), isr[0], leader_epoch, 7, elr=elr, elr_epochs=(20,) * len(elr)
    )
    values = {
        keys.CLUSTER_ID: b"C",
        keys.HISTORY: encode(HistoryRecord(history)),
        keys.topic("t"): encode(TopicRecord(topic_id_text(TOPIC_ID), 1)),
        keys.topic_id(TOPIC_ID): b"t",
        keys.partition(TOPIC_ID, 0): encode(state),
        keys.topic_config("t"): b'{"retention.ms":"-1"}',
        keys.NEXT_PRODUCER_ID: b"5000",
        keys.CONTROLLER_EPOCH: b"3",
    }
    for broker_id in (1, 2, 3):
        values[keys.known_broker(broker_id)] = encode(BrokerRecord("i", ()))
        values[keys.registration(broker_id)] = encode(RegistrationRecord(2, 2))
    values |= {key.encode(): value for key, value in further.items()}
    return [(key, value, 10, min(revision, 30)) for key, value in values.items()]


def copy_of(found: list[Row], revision: int) -> bytes:
    history = next(decode(row[0], row[1], HistoryRecord) for row in found if row[0] == keys.HISTORY)
    return b"".join(encode_copy(MetadataCopy(found, revision, history_id=history.history_id, cluster_id="C")))


def facts(
    broker_id: int,
    revision: int,
    *,
    start: int = 0,
    end: int = 10,
    epoch: int = 4,
    number: int | None = 2,
    found: list[Row] | None = None,
    high_watermark: int = 0,
    may_lack_records: bool = False,
) -> BrokerFacts:
    replica = SurveyedReplica("t", 0, topic_id_text(TOPIC_ID), start, end, epoch, high_watermark)
    directory = SurveyedDirectory(f"/disk{broker_id}", "C", broker_id, number, (replica,), may_lack_records)
    return facts_of([directory], [copy_of(found or rows(revision), revision)])


def planned(*given: BrokerFacts, store: list[Row] | None = None, without: tuple[int, ...] = ()):
    now = {row[0]: row for row in store or []}
    return plan_recovery(given, now, without=without, history_id="N", raft_surplus=-5)


def partition(plan) -> PartitionRecord:
    return decode(b"", plan.values[keys.partition(TOPIC_ID, 0)], PartitionRecord)


def test_rules_of_access_control_are_kept() -> None:
    """A cluster that was closed is not open after a recovery."""
    key, value = b"acls/1", encode(AclRecord(2, "t", 3, "User:a", "*", 3, 2))
    plan = plan_recovery(
        [facts(1, 50, found=rows(50, **{key.decode(): value}))], {}, without=(2, 3), history_id="N", raft_surplus=0
    )
    assert plan.values[key] == value


def test_the_newest_copy_counts_and_epochs_are_above_all_known_ones() -> None:
    newest = facts(2, 50, epoch=9, found=rows(50, isr=(2, 3), leader_epoch=6))
    plan = planned(facts(1, 40), newest, facts(3, 45, epoch=9), store=rows(30, leader_epoch=12))
    record = partition(plan)
    assert (plan.source, plan.revision) == (2, 50)
    assert (record.isr, record.isr_epochs, record.leader) == ((2, 3), (LONG_AGO, LONG_AGO), -1)
    assert record.leader_epoch == 12 + EPOCH_JUMP
    assert record.partition_epoch == 8
    assert plan.history == HistoryRecord("N", -5, "H", 50)
    assert plan.values[keys.NEXT_PRODUCER_ID] == b"%d" % (5000 + PRODUCER_IDS_JUMP)
    assert plan.values[keys.topic_config("t")] == b'{"retention.ms":"-1"}'
    assert keys.HISTORY not in plan.values
    assert not plan.problems


@pytest.mark.parametrize(
    ("first", "second", "isr"),
    [
        ({"end": 10}, {"end": 12}, (2,)),
        ({"end": 12, "epoch": 3}, {"end": 11, "epoch": 4}, (2,)),
        ({"end": 10, "start": 5}, {"end": 10}, (1,)),
        ({}, {}, (1, 2)),
    ],
)
def test_the_isr_is_the_furthest_replicas_by_epoch_and_end_that_have_the_deletes(
    first: dict[str, int], second: dict[str, int], isr: tuple[int, ...]
) -> None:
    """Even if the copy is slightly behind, no replica is elected that lacks records or deletes of another one."""
    plan = planned(facts(1, 40, **first), facts(2, 40, **second), facts(3, 40, end=1))
    assert partition(plan).isr == isr


def test_a_longer_log_that_was_not_in_sync_does_not_count() -> None:
    found = rows(40, isr=(1, 2))
    plan = planned(facts(1, 40, found=found), facts(2, 40, found=found), facts(3, 40, end=99, epoch=4, found=found))
    assert partition(plan).isr == (1, 2)


def test_a_directory_that_was_restored_from_a_backup_does_not_count() -> None:
    """Its registration is behind (rule DR8). A directory that is marked as stale does not count either."""
    plan = planned(facts(1, 40, end=99, number=1), facts(2, 40), facts(3, 40))
    assert partition(plan).isr == (2, 3)
    mark = {f"stale/1/{2:020d}": b'{"%s":[0]}' % topic_id_text(TOPIC_ID).encode()}
    found = rows(40, **mark)
    plan = planned(facts(1, 40, end=99, found=found), facts(2, 40, found=found), facts(3, 40, found=found))
    assert partition(plan).isr == (2, 3)


def test_without_any_in_sync_log_a_partition_stays_without_a_leader_and_it_is_reported() -> None:
    found = rows(40, isr=(1,))
    plan = planned(facts(2, 40, found=found), facts(3, 40, found=found), without=(1,))
    assert partition(plan).isr == (1,)
    assert partition(plan).leader == -1
    assert len(plan.problems) == 1
    assert "t-0: of its in-sync replicas (1) no sound log is given" in plan.problems[0]


def test_a_stale_replica_that_is_the_only_one_in_sync_stays_stale() -> None:
    """Otherwise a broker whose disk was emptied would be elected after the recovery, with an empty log."""
    mark = {f"stale/1/{2:020d}": b'{"%s":[0]}' % topic_id_text(TOPIC_ID).encode()}
    found = rows(40, isr=(1,), **mark)
    plan = planned(facts(1, 40, end=0, found=found), facts(2, 40, found=found), facts(3, 40, found=found))
    assert partition(plan).isr == (1,)
    image = load_image([KeyValue(key, value, 60, 60) for key, value in plan.values.items()], 60, prefix=b"")
    assert image.is_stale(1, TOPIC_ID, 0, LONG_AGO)
    assert not image.is_stale(2, TOPIC_ID, 0, LONG_AGO)


def test_registrations_are_those_of_the_directories() -> None:
    """A broker with sound directories is not treated as one that lost records, and no number is assigned twice."""
    older = {keys.registration(1).decode(): encode(RegistrationRecord(9, 2))}
    plan = planned(facts(1, 40, number=4), facts(2, 40), facts(3, 40), store=rows(30, **older))
    assert decode(b"", plan.values[keys.registration(1)], RegistrationRecord) == RegistrationRecord(9, 4)
    assert decode(b"", plan.values[keys.registration(2)], RegistrationRecord) == RegistrationRecord(2, 2)


def test_what_cannot_be_decided_is_refused() -> None:
    with pytest.raises(RecoveryError, match="what broker 2, 3 knows is missing"):
        planned(facts(1, 40))
    with pytest.raises(RecoveryError, match="a broker is given twice"):
        planned(facts(1, 40), facts(1, 41))
    with pytest.raises(
        RecoveryError, match=r"of different histories.*H of broker 1, 3, up to revision 41, with 1 topics"
    ) as refused:
        planned(facts(1, 40), facts(2, 40, found=rows(40, history="X")), facts(3, 41))
    assert "That is X (broker 2)" in str(refused.value)
    with pytest.raises(RecoveryError, match="no copy of the metadata"):
        facts_of([SurveyedDirectory("/d", "C", 1, 1, ())], [b"garbage"])
    for content in (b"{}", b'{"format":"\xff"}', b"[" * 100_000):
        with pytest.raises(RecoveryError, match="/f is no file of"):
            decode_facts(content, "/f")


def test_a_damaged_export_is_refused() -> None:
    """Protects acknowledged records: by the ends of logs in these files a restore chooses the leader."""
    whole = facts(1, 40, end=77)
    content = encode_facts(whole)
    assert decode_facts(content, "/f") == whole
    for position in range(len(content)):
        for mask in (1, 4, 128):
            damaged = bytearray(content)
            damaged[position] ^= mask
            try:
                found = decode_facts(bytes(damaged), "/f")
            except RecoveryError as error:
                assert str(error).startswith("/f ")
            else:
                assert found == whole, position


def test_of_two_histories_the_later_one_counts() -> None:
    """The recovery could not reach a broker that ran only on the earlier history."""
    later = [
        row if row[0] != keys.HISTORY else (row[0], encode(HistoryRecord("N", 0, "H", 90)), 1, 1) for row in rows(5)
    ]
    plan = planned(facts(1, 80), facts(2, 5, found=later), facts(3, 5, found=later))
    assert (plan.source, plan.history.previous_id) == (2, "N")


def test_facts_are_read_back_from_their_file() -> None:
    given = facts(1, 40)
    assert decode_facts(encode_facts(given), "/f") == given


@played_by(run_simulation, 1)
async def test_a_recovery_is_written_whole_under_a_suspension_and_is_then_not_repeated(loop: SimulatedLoop, /) -> None:
    disk = MemoryDisk()
    store = MemoryStore(disk, clock=SimulatedClock(loop), random=Random(1), loop=loop)
    await store.transact([], [Put(PREFIX + keys.topic_config("gone"), b"{}"), Put(PREFIX + keys.CLUSTER_ID, b"C")])
    given = [facts(broker_id, 40) for broker_id in (1, 2, 3)]
    now, revision = await read_rows(store, PREFIX)
    assert is_needed(given, now, revision, None) is not None
    plan = plan_recovery(given, now, without=(), history_id="N", raft_surplus=0)
    await bring_forward(store, PREFIX, plan)
    image = load_image(disk.keys.values(), disk.revision, prefix=PREFIX)
    assert (image.history, image.suspension, image.cluster_id) == (plan.history, "", "C")
    assert list(image.topics) == ["t"]
    assert PREFIX + keys.topic_config("gone") not in disk.keys
    now, revision = await read_rows(store, PREFIX)
    assert is_needed(given, now, revision, None) is None
    await store.close()
