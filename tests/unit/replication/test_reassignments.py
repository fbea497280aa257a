"""Reassignments and elections that clients request: the writes, the refusals, and the result of a changed request."""

from __future__ import annotations

import pytest

from lowtide.metadata import keys
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage, unknown_partition
from lowtide.metadata.records import NO_LEADER, PartitionRecord, decode
from lowtide.metadata.store import Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.controller import ControllerSettings, plan_controller_work
from lowtide.replication.elections import Election
from lowtide.replication.reassignments import Reassignment, plan_reassignments
from lowtide.replication.requested_elections import plan_elections

TOPIC_ID = b"T" * 16
ALIVE = (1, 2, 3, 4, 5)


def image_of(
    partition: PartitionImage, alive: tuple[int, ...] = ALIVE, configs: dict[str, str] | None = None
) -> MetadataImage:
    topic = TopicImage("t", TOPIC_ID, (partition,), configs or {}, 500)
    brokers = {broker_id: BrokerImage(broker_id, 10 * broker_id, ()) for broker_id in alive}
    return MetadataImage(revision=1000, brokers=brokers, topics={"t": topic}, topic_names={TOPIC_ID: "t"})


def partition(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    leader: int,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionImage:
    return PartitionImage(replicas, isr, tuple(10 * member for member in isr), leader, 5, 7, 900, adding, removing)


def reassigned(
    image: MetadataImage, replicas: tuple[int, ...] | None, *, unclean: bool = False, may_change_factor: bool = True
) -> PartitionRecord | ErrorCode | None:
    """The record that is written; None if there is none."""
    settings = ControllerSettings(elects_unclean=unclean)
    planned = plan_reassignments(image, [Reassignment("t", 0, replicas)], settings, may_change_factor=may_change_factor)
    (outcome,) = planned.outcomes
    if outcome is not None:
        assert planned.plan.is_empty
        return outcome.error_code
    for step in planned.plan.steps:
        (operation,) = step.operations
        assert step.compares[0].argument == 900, "the revision of the decision"
        return decode(operation.key, operation.value, PartitionRecord)
    return None


def shape(record: PartitionRecord | ErrorCode | None) -> tuple[object, ...]:
    assert isinstance(record, PartitionRecord), record
    return record.replicas, record.adding, record.removing, record.isr, record.leader


def test_the_new_replicas_come_first_and_the_old_ones_stay_behind_them() -> None:
    """As in KIP-455: no replica leaves before all new ones are in sync."""
    before = partition((1, 2, 3), (1, 2, 3), 1)
    assert shape(reassigned(image_of(before), (5, 4, 3))) == ((5, 4, 3, 1, 2), (4, 5), (1, 2), (1, 2, 3), 1)
    assert shape(reassigned(image_of(before), (1, 2, 3, 4))) == ((1, 2, 3, 4), (4,), (), (1, 2, 3), 1)
    assert shape(reassigned(image_of(before), (3, 2))) == ((3, 2), (), (), (2, 3), 3), (
        "a target that is in sync already is applied at once"
    )
    assert shape(reassigned(image_of(before), (3, 1, 2))) == ((3, 1, 2), (), (), (1, 2, 3), 1)
    assert reassigned(image_of(before), (1, 2, 3)) is None


def test_a_new_request_replaces_the_one_under_way() -> None:
    """A replica that was being added and is no longer requested is removed.

    A cancellation then restores the state before all of it.
    """
    moving = partition((4, 2, 3, 1), (1, 2, 3, 4), 1, (4,), (1,))
    second = reassigned(image_of(moving), (5, 2, 3))
    assert shape(second) == ((5, 2, 3, 1), (5,), (1,), (1, 2, 3), 1)
    after = partition((5, 2, 3, 1), (1, 2, 3), 1, (5,), (1,))
    assert shape(reassigned(image_of(after), None)) == ((2, 3, 1), (), (), (1, 2, 3), 1)
    assert shape(reassigned(image_of(moving), (4, 5))) == ((4, 5, 2, 3, 1), (4, 5), (1, 2, 3), (1, 2, 3, 4), 1)
    assert shape(reassigned(image_of(moving), (1, 2, 3))) == ((1, 2, 3), (), (), (1, 2, 3), 1), (
        "back to the initial replicas"
    )


def test_the_only_live_replica_stays_until_another_is_in_sync() -> None:
    """A replica that was being added, and became leader as the only live one, is not removed by a new request."""
    moving = partition((4, 1), (1, 4), 4, (4,), (1,))
    after = reassigned(image_of(moving, (4, 5)), (5, 1))
    assert shape(after) == ((5, 1, 4), (4, 5), (4,), (4,), 4)
    cancelled = reassigned(image_of(partition((5, 1, 4), (4,), 4, (4, 5), (4,)), (4, 5)), None)
    assert cancelled == ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no replica from before is in sync"


def test_cancelling() -> None:
    """A replica that was being added is removed, also as leader.

    An unclean election happens only where it is allowed.
    """
    moving = partition((4, 2, 1), (2, 4), 4, (4,), (1,))
    assert shape(reassigned(image_of(moving), None)) == ((2, 1), (), (), (2,), 2)
    only_new = partition((4, 1, 2), (4,), 4, (4,), (1, 2))
    assert reassigned(image_of(only_new), None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert shape(reassigned(image_of(only_new), None, unclean=True)) == ((1, 2), (), (), (1,), 1)
    assert reassigned(image_of(only_new, (4,)), None, unclean=True) == ErrorCode.INVALID_REPLICA_ASSIGNMENT, (
        "no replica could lead"
    )
    of_topic = image_of(only_new, configs={"unclean.leader.election.enable": "true"})
    assert shape(reassigned(of_topic, None)) == ((1, 2), (), (), (1,), 1)


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refusals(replicas: tuple[int, ...] | None, code: ErrorCode) -> None:
    """Kafka's codes."""
    assert reassigned(image_of(partition((1, 2), (1, 2), 1)), replicas) == code


def test_a_replica_that_exists_already_need_not_be_live() -> None:
    """A partition can be moved away from one dead broker while another of its brokers is dead."""
    before = partition((1, 2, 3), (1,), 1)
    assert shape(reassigned(image_of(before, (1, 4)), (1, 2, 4))) == ((1, 2, 4, 3), (4,), (3,), (1,), 1)


def test_the_replication_factor_can_be_kept() -> None:
    """During a reassignment it is the target's (KIP-860)."""
    moving = image_of(partition((4, 2, 1), (1, 2), 1, (4,), (1,)))
    assert reassigned(moving, (3, 2, 1), may_change_factor=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert isinstance(reassigned(moving, (3, 2), may_change_factor=False), PartitionRecord)


def test_of_two_requests_for_one_partition_the_last_counts() -> None:
    """Each is answered."""
    image = image_of(partition((1, 2), (1, 2), 1))
    wanted = [Reassignment("t", 0, (1, 3)), Reassignment("t", 0, (1, 4)), Reassignment("t", 0, ())]
    planned = plan_reassignments(image, wanted, ControllerSettings())
    assert [None if each is None else each.error_code for each in planned.outcomes] == [
        None,
        None,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    (step,) = planned.plan.steps
    assert b'"replicas":[1,4,2]' in step.operations[0].value


def elected(image: MetadataImage, election: Election) -> tuple[int, ...] | ErrorCode:
    """Leader and ISR, or the code."""
    planned = plan_elections(image, [("t", 0), ("t", 0)], election, ControllerSettings())
    first, second = planned.outcomes
    assert first == second
    if first is not None:
        assert planned.plan.is_empty
        return first.error_code
    (step,) = planned.plan.steps
    record = decode(step.operations[0].key, step.operations[0].value, PartitionRecord)
    return (record.leader, *record.isr)


@pytest.mark.parametrize(
    ("state", "alive", "election", "outcome"),
    [
        (partition((1, 2), (1, 2), 2), (1, 2), Election.PREFERRED, (1, 1, 2)),
        (partition((1, 2), (1, 2), 1), (1, 2), Election.PREFERRED, ErrorCode.ELECTION_NOT_NEEDED),
        (partition((1, 2), (2,), 2), (1, 2), Election.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (partition((1, 2), (1, 2), 2), (2,), Election.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (partition((1, 2), (1,), NO_LEADER), (2,), Election.UNCLEAN, (2, 2)),
        (partition((1, 2), (1,), 1), (1, 2), Election.UNCLEAN, ErrorCode.ELECTION_NOT_NEEDED),
        (partition((1, 2), (1,), NO_LEADER), (3,), Election.UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_requested_elections(
    state: PartitionImage, alive: tuple[int, ...], election: Election, outcome: tuple[int, ...] | ErrorCode
) -> None:
    """A partition that is named twice gets one election and two answers."""
    assert elected(image_of(state, alive), election) == outcome


def test_what_cannot_be_read_is_not_changed() -> None:
    """A record that was written from nothing would begin again at the first leader epoch."""
    image = image_of(unknown_partition(900))
    assert reassigned(image, (1, 2, 3)) is ErrorCode.INVALID_REQUEST
    assert reassigned(image, None) is ErrorCode.INVALID_REQUEST
    for election in (Election.PREFERRED, Election.UNCLEAN):
        planned = plan_elections(image, [("t", 0)], election, ControllerSettings(elects_unclean=True))
        assert planned.plan.is_empty
        assert planned.outcomes[0] is not None
        assert planned.outcomes[0].error_code is ErrorCode.INVALID_REQUEST
    work = plan_controller_work(image, ControllerSettings(elects_unclean=True, rebalances=True), rebalance=True)
    assert not any(
        isinstance(operation, Put) and operation.key.startswith(keys.PARTITIONS)
        for step in work.steps
        for operation in step.operations
    )
