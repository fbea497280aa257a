"""`lowtide verify-deletes` finds every anomaly that is planted in a fake Kafka cluster, and none in a harmless one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse
from lowtide.runtime.random import Random
from lowtide.verification.faults import FaultResult
from lowtide.verification.judge import AnomalyKind
from lowtide.verification.report import RunVerdict, report_lines, report_value, verdict_of
from lowtide.verification.run import RunPlan, RunResult, VerificationRun
from tests.unit.admin.scripted import HANG_UP, ScriptedCluster, simulated

from .fake_kafka import FakeKafka, FakePartition, FakeReplica, deleted_row, records_of

PLAN = RunPlan(
    prefix="verify",
    duration_s=9.0,
    topics=1,
    partitions=1,
    replication_factor=3,
    round_s=3.0,
    recovery_s=5.0,
)

Act = Callable[[FakeKafka], None]
Change = Callable[[FakePartition, Any, FakeReplica, Callable[[], Any]], Any]


def verified(act: Act, *, lowtide: bool = False, before: Act | None = None) -> RunResult:
    """Runs the checker. `act` is done by each fault command, `before` when the topics are there."""

    async def main(cluster: ScriptedCluster) -> RunResult:
        fake = FakeKafka(cluster, lowtide=lowtide)

        async def fault(_: int) -> FaultResult:
            act(fake)
            return FaultResult(0)

        faults: Callable[[int], Awaitable[FaultResult]] = fault
        async with cluster.client() as client:
            run = VerificationRun(client, PLAN, cluster.clock, Random(5), faults)
            result = await run.prepare()
            if before is not None:
                before(fake)
            await run.run(result)
            result.remaining_topics = await run.clean_up()
        assert not cluster.topics, "the topics are deleted at the end"
        return result

    return simulated(main)


def nothing(_: FakeKafka) -> None:
    pass


class Plant(NamedTuple):
    """An anomaly: by a fault, or in the answers of one API."""

    name: str
    kind: AnomalyKind
    act: Act = nothing
    api: ApiKey | None = None
    change: Change | None = None
    lowtide: bool = False


# ---------------------------------------------------------------------- what faults do
def all_logs_start_at_0(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.log_start = 0


def the_leader_starts_at_0(fake: FakeKafka) -> None:
    fake.leader.log_start = 0


def a_follower_starts_at_0(fake: FakeKafka) -> None:
    fake.follower.log_start = 0


def the_last_deleted_record_returns(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.log_start = max(replica.log_start - 1, 0)


def a_follower_starts_at_0_for_a_moment(fake: FakeKafka) -> None:
    follower, start = fake.follower, fake.follower.log_start
    follower.log_start = 0
    fake.later(0.5, lambda: setattr(follower, "log_start", max(start, follower.log_start)))


def another_leader_starts_at_0(fake: FakeKafka) -> None:
    broker = next(each for each in fake.state.replicas if each != fake.state.leader)
    fake.partition.replicas[broker].log_start = 0
    fake.lead(broker)


def the_leader_says_0(fake: FakeKafka) -> None:
    fake.leader.told_log_start = 0


def a_follower_says_0(fake: FakeKafka) -> None:
    fake.follower.told_log_start = 0


def more_is_deleted(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.log_start = len(replica.records)


def a_follower_deletes_more(fake: FakeKafka) -> None:
    fake.follower.log_start = len(fake.follower.records)


def live_offset(fake: FakeKafka, place: int = 1) -> int:
    """An offset above all deletes; they leave some records."""
    return min(fake.partition.deleted + place, len(fake.leader.records) - 2)


def a_live_record_is_gone(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.records[live_offset(fake)] = None


def a_live_record_is_gone_from_a_follower(fake: FakeKafka) -> None:
    fake.follower.records[live_offset(fake)] = None


def the_first_record_above_the_delete_is_gone(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.records[fake.partition.deleted] = None


def the_end_is_lost(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        del replica.records[-3:]


def a_follower_returns_nothing(fake: FakeKafka) -> None:
    fake.follower.is_stuck = True


def a_follower_lost_its_end(fake: FakeKafka) -> None:
    fake.follower.records[-3:] = []
    fake.follower.is_stuck = True


def two_records_change_places(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.records[-1], replica.records[-2] = replica.records[-2], replica.records[-1]


def a_follower_has_another_record(fake: FakeKafka) -> None:
    fake.follower.records[-1] = fake.follower.records[-2]


def the_last_record_is_there_twice(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.records.append(replica.records[-1])


def a_record_of_another_appears(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.records.append((b"key", b"what nobody sent"))


def a_byte_changes(fake: FakeKafka) -> None:
    key, value = fake.leader.records[-1] or (b"", b"")
    assert value is not None
    fake.leader.records[-1] = (key, value[:-1] + b"?")


def erased_records_return(fake: FakeKafka) -> None:
    for replica in fake.partition.each():
        replica.erased.clear()


def erased_records_return_at_a_follower(fake: FakeKafka) -> None:
    fake.follower.erased.clear()


# ---------------------------------------------------------------------- what answers do
def low_watermark_below(_: FakePartition, asked: Any, __: FakeReplica, honest: Callable[[], Any]) -> Any:
    honest()
    return deleted_row(asked.offset - 1)


def nothing_is_deleted(_: FakePartition, asked: Any, __: FakeReplica, ___: Callable[[], Any]) -> Any:
    return deleted_row(asked.offset)


def a_follower_is_forgotten(
    partition: FakePartition, asked: Any, leader: FakeReplica, honest: Callable[[], Any]
) -> Any:
    follower = next(each for each in partition.each() if each is not leader)
    start = follower.log_start
    honest()
    follower.log_start = start
    return deleted_row(asked.offset)


def low_watermark_above(partition: FakePartition, asked: Any, __: FakeReplica, honest: Callable[[], Any]) -> Any:
    honest()
    return deleted_row(partition.deleted + 7 if asked.offset == partition.deleted else partition.deleted)


def refused_and_deleted(_: FakePartition, __: Any, ___: FakeReplica, honest: Callable[[], Any]) -> Any:
    honest()
    return deleted_row(-1, ErrorCode.POLICY_VIOLATION)


def more_than_asked(partition: FakePartition, asked: Any, __: FakeReplica, honest: Callable[[], Any]) -> Any:
    row = honest()
    for replica in partition.each():
        replica.log_start = min(replica.log_start + 2, len(replica.records))
    return row


def refused_and_written(_: FakePartition, data: Any, __: FakeReplica, honest: Callable[[], Any]) -> Any:
    honest()
    return PartitionProduceResponse(index=data.index, error_code=ErrorCode.NOT_ENOUGH_REPLICAS, base_offset=-1)


def acknowledged_and_not_written(_: FakePartition, data: Any, leader: FakeReplica, __: Callable[[], Any]) -> Any:
    return PartitionProduceResponse(index=data.index, error_code=0, base_offset=len(leader.records))


def acknowledged_in_front(_: FakePartition, __: Any, ___: FakeReplica, honest: Callable[[], Any]) -> Any:
    row = honest()
    row.base_offset = max(row.base_offset - 1, 0)
    return row


def written_twice(partition: FakePartition, data: Any, _: FakeReplica, honest: Callable[[], Any]) -> Any:
    row = honest()
    for replica in partition.each():
        replica.records += records_of(data)
    return row


K = AnomalyKind
DELETES, PRODUCES = ApiKey.DELETE_RECORDS, ApiKey.PRODUCE
PLANTS = (
    Plant("all logs start at 0 after a crash", K.RETURNED, all_logs_start_at_0),
    Plant("the leader's log starts at 0", K.RETURNED, the_leader_starts_at_0),
    Plant("a follower's log starts at 0", K.RETURNED, a_follower_starts_at_0),
    Plant("the last deleted record returns", K.RETURNED, the_last_deleted_record_returns),
    Plant("a follower serves deleted records for a moment", K.RETURNED, a_follower_starts_at_0_for_a_moment),
    Plant("a leader is elected whose log starts at 0", K.RETURNED, another_leader_starts_at_0),
    Plant("the leader says that its log starts at 0", K.LOG_START_FELL, the_leader_says_0),
    Plant("a follower says that its log starts at 0", K.LOG_START_FELL, a_follower_says_0),
    Plant("a low watermark below the request", K.NOT_DELETED, api=DELETES, change=low_watermark_below),
    Plant("a delete is acknowledged and not done", K.NOT_DELETED, api=DELETES, change=nothing_is_deleted),
    Plant("a delete is not done by a follower", K.NOT_DELETED, api=DELETES, change=a_follower_is_forgotten),
    Plant("a low watermark above the request", K.OVER_DELETED, api=DELETES, change=low_watermark_above),
    Plant("a refused delete is done", K.OVER_DELETED, api=DELETES, change=refused_and_deleted),
    Plant("a delete takes more than it was told", K.OVER_DELETED, api=DELETES, change=more_than_asked),
    Plant("a crash deletes everything", K.OVER_DELETED, more_is_deleted),
    Plant("a follower deletes everything", K.LOST, a_follower_deletes_more),
    Plant("a gap in the live records", K.LOST, a_live_record_is_gone),
    Plant("a gap in the live records of a follower", K.LOST, a_live_record_is_gone_from_a_follower),
    Plant("a gap right above the delete", K.LOST, the_first_record_above_the_delete_is_gone),
    Plant("a follower in sync returns nothing", K.LOST, a_follower_returns_nothing),
    Plant("a follower in sync lost its end", K.LOST, a_follower_lost_its_end),
    Plant("the end of the log is lost, and used again", K.OFFSET_REUSED, the_end_is_lost),
    Plant(
        "a produce is acknowledged and not written", K.OFFSET_REUSED, api=PRODUCES, change=acknowledged_and_not_written
    ),
    Plant("a produce is acknowledged at a used offset", K.OFFSET_REUSED, api=PRODUCES, change=acknowledged_in_front),
    Plant("two records change places", K.OFFSET_REUSED, two_records_change_places),
    Plant("a follower has another record at an offset", K.OFFSET_REUSED, a_follower_has_another_record),
    Plant("a record is there twice after a crash", K.DUPLICATED, the_last_record_is_there_twice),
    Plant("a produce is written twice", K.DUPLICATED, api=PRODUCES, change=written_twice),
    Plant("a record that nobody sent", K.NOT_SENT, a_record_of_another_appears),
    Plant("a byte of a record changes", K.NOT_SENT, a_byte_changes),
    Plant("a refused produce is written", K.NOT_SENT, api=PRODUCES, change=refused_and_written),
    Plant("erased records return", K.ERASED_FOUND, erased_records_return, lowtide=True),
    Plant("a follower serves erased records", K.ERASED_FOUND, erased_records_return_at_a_follower, lowtide=True),
)


def changing(plant: Plant) -> Act:
    """Lets the answers of an API be falsified, some time after the beginning."""

    def before(fake: FakeKafka) -> None:
        if plant.api is not None and plant.change is not None:
            api, change = plant.api, plant.change
            fake.later(1.5, lambda: fake.on_row.__setitem__(api, change))
            fake.later(5.0, fake.on_row.clear)

    return before


def plants() -> Iterator[Any]:
    """One of each kind is in every run of the tests."""
    kinds = set[AnomalyKind]()
    for plant in PLANTS:
        yield pytest.param(plant, id=plant.name, marks=[pytest.mark.slow] if plant.kind in kinds else [])
        kinds.add(plant.kind)


@pytest.mark.parametrize("plant", list(plants()))
def test_a_planted_anomaly_is_found(plant: Plant) -> None:
    result = verified(plant.act, lowtide=plant.lowtide, before=changing(plant))
    kinds = {seen.anomaly.kind for seen in result.history.anomalies.values()}
    assert plant.kind in kinds, "\n".join(report_lines(result, 5))
    assert verdict_of(result) is RunVerdict.BROKEN
    found = next(seen for seen in result.history.anomalies.values() if seen.anomaly.kind is plant.kind)
    assert found.operations, "an anomaly is shown with the operations around it"
    assert any(line.startswith(f"  {plant.kind}: verify-0:0, ") for line in report_lines(result, 5))
    assert report_value(result, 5)["verdict"] == "broken"


# ---------------------------------------------------------------------- harmless clusters
def the_leader_changes(fake: FakeKafka) -> None:
    fake.lead(fake.state.leader % 3 + 1)


def unanswered(_: FakePartition, __: Any, ___: FakeReplica, honest: Callable[[], Any]) -> Any:
    honest()
    return HANG_UP


def lost(_: FakePartition, __: Any, ___: FakeReplica, ____: Callable[[], Any]) -> Any:
    return HANG_UP


def timed_out_and_done(_: FakePartition, __: Any, ___: FakeReplica, honest: Callable[[], Any]) -> Any:
    honest()
    return deleted_row(-1, ErrorCode.REQUEST_TIMED_OUT)


def refused_delete(_: FakePartition, __: Any, ___: FakeReplica, ____: Callable[[], Any]) -> Any:
    return deleted_row(-1, ErrorCode.OFFSET_OUT_OF_RANGE)


def a_follower_is_away(fake: FakeKafka) -> None:
    follower = fake.follower
    follower.is_stuck, fake.state.isr = True, (fake.state.leader,)

    def back() -> None:
        follower.is_stuck, fake.state.isr = False, fake.state.replicas

    fake.later(1.5, back)


HARMLESS = (
    Plant("no fault", K.LOST),
    Plant("elections", K.LOST, the_leader_changes),
    Plant("a follower is away", K.LOST, a_follower_is_away),
    Plant("deletes are done, their answers lost", K.LOST, api=DELETES, change=unanswered),
    Plant("deletes are lost", K.LOST, api=DELETES, change=lost),
    Plant("deletes time out and are done", K.LOST, api=DELETES, change=timed_out_and_done),
    Plant("deletes are refused", K.LOST, api=DELETES, change=refused_delete),
    Plant("records are written, the answers lost", K.LOST, api=PRODUCES, change=unanswered),
    Plant("records are lost before they are written", K.LOST, api=PRODUCES, change=lost),
    Plant("fetches are lost", K.LOST, api=ApiKey.FETCH, change=lost),
    Plant("keys are erased", K.LOST, the_leader_changes, lowtide=True),
)
QUICK_HARMLESS = (0, 2, 3, len(HARMLESS) - 1)
"""One of no fault, of a replica, of a request and of an erasure are in every run of the tests."""


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, id=plant.name, marks=[] if number in QUICK_HARMLESS else [pytest.mark.slow])
        for number, plant in enumerate(HARMLESS)
    ],
)
def test_a_harmless_cluster_has_no_anomaly(plant: Plant) -> None:
    result = verified(plant.act, lowtide=plant.lowtide, before=changing(plant))
    assert not result.history.anomalies, "\n".join(report_lines(result, 5))
    assert verdict_of(result) is RunVerdict.KEPT
    assert result.surveys[-1].led, "each replica leads once"
