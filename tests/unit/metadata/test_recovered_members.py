"""Who is in sync and eligible after a recovery.

Eligible leaders (KIP-966), power cuts, stale marks, and what would be lost.
"""

from __future__ import annotations

import msgspec
import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import BrokerFacts, decode_facts, encode_facts
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.metadata_copy import MetadataCopy, Row
from lowtide.metadata.records import PartitionRecord, encode
from lowtide.metadata.recovery import LONG_AGO, RecoveryPlan, plan_recovery
from lowtide.metadata.store import KeyValue
from lowtide.protocol.types import topic_id_text
from lowtide.replication.elections import elect

from .test_recovery import TOPIC_ID, facts, partition, planned, rows

POWER_LOST_BY_3 = {"unclean_starts/3": b"2"}
STALE_2 = {f"stale/2/{2:020d}": b'{"%s":[0]}' % topic_id_text(TOPIC_ID).encode()}


def below_the_minimum(**further: bytes) -> list[Row]:
    """Broker 3 is alone in sync, 2 is eligible; 1 left before them."""
    return rows(40, isr=(3,), elr=(2,), **further)


def given(
    ends: dict[int, int], *, lost_power: tuple[int, ...] = (), found: list[Row] | None = None, **fields: int
) -> list[BrokerFacts]:
    found = found or below_the_minimum()
    return [
        facts(broker_id, 40, end=end, found=found, may_lack_records=broker_id in lost_power, **fields)
        for broker_id, end in ends.items()
    ]


def after(plan: RecoveryPlan, *alive: int, unclean: tuple[int, ...] = ()) -> MetadataImage:
    """The image once these brokers have registered; those in `unclean` say that their machines stopped."""
    pairs = [KeyValue(key, value, 60, 60) for key, value in plan.values.items()]
    for number, broker_id in enumerate(alive, 70):
        pairs.append(KeyValue(keys.broker(broker_id), b'{"incarnation":"i","listeners":[]}', number, number))
        pairs += [KeyValue(keys.unclean_start(broker_id), b"3", number, number)] if broker_id in unclean else []
    return load_image(pairs, 90, prefix=b"")


def elected(image: MetadataImage) -> int:
    record = elect(image, TOPIC_ID, 0, image.topics["t"].partitions[0], min_insync_replicas=2)
    return -1 if record is None else record.leader


@pytest.mark.parametrize("registered", [False, True], ids=["not started since", "registered since"])
def test_an_eligible_leader_wins_where_the_machine_of_the_last_in_sync_replica_lost_its_power(
    *, registered: bool
) -> None:
    """Records that were acknowledged are in the eligible replica's log only."""
    found = below_the_minimum(**(POWER_LOST_BY_3 if registered else {}))
    plan = planned(*given({1: 55, 2: 60, 3: 45}, lost_power=() if registered else (3,), found=found))
    assert (partition(plan).isr, partition(plan).elr) == ((2,), ())
    assert not plan.losses
    assert elected(after(plan, 1, 3, unclean=(3,))) == -1
    assert elected(after(plan, 1, 2, 3, unclean=(3,))) == 2


@pytest.mark.parametrize("end", [45, 50])
def test_a_later_leader_epoch_does_not_make_a_log_whole_that_may_lack_records(end: int) -> None:
    """A follower may know an epoch in which nothing was written, and lose the records before it to a power cut."""
    found = below_the_minimum()
    logs = [
        facts(2, 40, end=60, epoch=4, found=found),
        facts(3, 40, end=end, epoch=5, found=found, high_watermark=60, may_lack_records=True),
    ]
    plan = planned(*logs, without=(1,))
    assert partition(plan).isr == (2,)
    assert not plan.losses


def test_without_a_whole_log_one_is_taken_that_reaches_what_was_committed() -> None:
    found = rows(40, isr=(2, 3))
    logs = [
        facts(2, 40, end=60, epoch=4, found=found, may_lack_records=True),
        facts(3, 40, end=50, epoch=5, found=found, high_watermark=60, may_lack_records=True),
    ]
    plan = planned(*logs, without=(1,))
    assert partition(plan).isr == (2,)
    assert not plan.losses


def test_an_eligible_leader_is_enough_where_the_last_in_sync_replica_is_gone() -> None:
    plan = planned(*given({1: 55, 2: 60}), without=(3,))
    assert partition(plan).isr == (2,)
    assert not plan.problems
    assert not plan.losses


def test_an_eligible_leader_stays_eligible_until_the_furthest_log_is_safe() -> None:
    """The machine of broker 3 may lose its power after the recovery: then 2 leads."""
    plan = planned(*given({1: 55, 2: 60, 3: 62}))
    record = partition(plan)
    assert (record.isr, record.elr, record.elr_epochs) == ((3,), (2,), (LONG_AGO,))
    assert elected(after(plan, 2, 3)) == 3
    assert elected(after(plan, 2, 3, unclean=(3,))) == 2


def test_what_is_furthest_after_a_power_cut_is_on_the_disk() -> None:
    plan = planned(*given({1: 55, 2: 60, 3: 62}, lost_power=(3,)))
    assert (partition(plan).isr, partition(plan).elr) == ((3,), ())
    assert elected(after(plan, 2, 3, unclean=(3,))) == 3


def test_an_eligible_leader_that_is_stale_or_ends_below_what_was_committed_is_eligible_no_more() -> None:
    stale = planned(*given({1: 55, 2: 60, 3: 62}, found=below_the_minimum(**STALE_2)))
    assert (partition(stale).isr, partition(stale).elr) == ((3,), ())
    short = planned(*given({1: 55, 2: 50, 3: 62}, high_watermark=52))
    assert (partition(short).isr, partition(short).elr) == ((3,), ())


@pytest.mark.parametrize("registered", [False, True], ids=["not started since", "registered since"])
def test_that_only_a_log_is_left_that_may_lack_records_has_to_be_accepted(*, registered: bool) -> None:
    found = below_the_minimum(**(POWER_LOST_BY_3 if registered else {}))
    plan = planned(*given({1: 55, 3: 45}, lost_power=() if registered else (3,), found=found), without=(2,))
    assert partition(plan).isr == (3,)
    (loss,) = plan.losses
    assert loss.startswith(
        "t-0: broker 2 had all that was committed, and no sound log of it is given; broker 3 may lack records"
    )
    assert "Its log ends at offset 45" in loss


def test_what_was_committed_and_is_in_no_log_has_to_be_accepted() -> None:
    """The noted high watermark outlived the records: the machines of all lost their power."""
    found = rows(40, isr=(1, 2))
    logs = [facts(1, 40, end=45, high_watermark=60, found=found), facts(2, 40, end=50, high_watermark=58, found=found)]
    plan = planned(*logs, facts(3, 40, end=70, high_watermark=90, found=found))
    assert partition(plan).isr == (2,)
    assert plan.losses == ("t-0: offsets 50 to 59 were committed, and no log that is given has them",)


def test_a_power_cut_of_all_machines_loses_what_nobody_has_and_is_no_loss_that_is_known() -> None:
    plan = planned(*given({1: 55, 2: 48, 3: 45}, lost_power=(1, 2, 3)))
    assert (partition(plan).isr, plan.losses) == ((2,), ())


def test_without_any_sound_log_everything_stays_as_it_was_and_who_may_lack_records_is_not_elected_cleanly() -> None:
    """Broker 3 registered after a power cut, and waited for 2, which has all."""
    found = below_the_minimum(**POWER_LOST_BY_3)
    plan = planned(facts(1, 40, found=found), without=(2, 3))
    record = partition(plan)
    assert (record.isr, record.elr, record.leader) == ((3,), (2,), -1)
    assert plan.problems == (
        (
            "t-0: of its in-sync replicas (3) and its eligible leaders (2) no sound log is given; it stays without a "
            "leader"
        ),
    )
    assert elected(after(plan, 1, 3)) == -1
    assert elected(after(plan, 1, 2, 3)) == 2


def test_a_file_of_an_earlier_version_is_read() -> None:
    """It says neither what was committed nor whether a machine stopped, and its metadata have no eligible leaders."""
    state = {
        "replicas": [1, 2, 3],
        "isr": [3],
        "isr_epochs": [20],
        "leader": 3,
        "leader_epoch": 4,
        "partition_epoch": 7,
    }
    key = keys.partition(TOPIC_ID, 0)
    found = [row if row[0] != key else (key, msgspec.json.encode(state), *row[2:]) for row in rows(40)]
    older = []
    for each in given({1: 55, 2: 60, 3: 45}, found=found):
        content = msgspec.json.decode(encode_facts(each))
        for directory in content["directories"]:
            del directory["may_lack_records"]
            for replica in directory["replicas"]:
                del replica["high_watermark"]
        older.append(decode_facts(msgspec.json.encode(content), "/f"))
    plan = planned(*older)
    assert (partition(plan).isr, partition(plan).elr, plan.losses) == ((3,), (), ())


def test_every_field_of_a_partition_is_carried_through_a_recovery() -> None:
    """But for those that a recovery decides. A field that is added to the record is tried without a change here."""
    decided = {"isr", "isr_epochs", "elr", "elr_epochs", "leader", "leader_epoch", "partition_epoch"}
    base = PartitionRecord((1, 2, 3), (1, 2, 3), (20, 20, 20), 1, 4, 7)
    carried = [field for field in PartitionRecord.__struct_fields__ if field not in decided]
    assert carried
    for field in carried:
        value = {int: 3, str: "x", bool: True}.get(type(getattr(base, field)), (1, 2, 3, 4))
        state = msgspec.structs.replace(base, **{field: value})
        key = keys.partition(TOPIC_ID, 0)
        found = [row if row[0] != key else (key, encode(state), *row[2:]) for row in rows(40)]
        plan = plan_recovery(
            [facts(broker_id, 40, found=found) for broker_id in (1, 2, 3)],
            {},
            without=(),
            history_id="N",
            raft_surplus=0,
        )
        assert getattr(partition(plan), field) == value, field


def test_a_copy_keeps_eligible_leaders() -> None:
    """What log directories write down are the values of the store, byte by byte."""
    row = next(row for row in below_the_minimum() if row[0] == keys.partition(TOPIC_ID, 0))
    assert given({2: 60})[0].read_copy().rows[row[0]] == MetadataCopy([row], 40).rows[row[0]]
