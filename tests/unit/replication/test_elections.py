"""Elections beyond a failed broker: brokers that stop, or lost a directory or a log; unclean and preferred leaders.

Reassignments.
"""

from __future__ import annotations

import time

import msgspec
import pytest

from lowtide.metadata.broker_image import StaleMark
from lowtide.metadata.changes import STEP_PARTITIONS
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import BrokerImage, ImageDelta, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import NO_LEADER, FeaturesRecord, PartitionRecord, decode
from lowtide.replication.controller import ControllerSettings, ControllerWork, plan_controller_work
from lowtide.replication.elections import Assignment, Election, elect, is_healthy, is_relieved, led_uncleanly

TOPIC_ID = b"T" * 16
AGREED = FeaturesRecord(log_start_reporting=1)


def image_of(
    brokers: dict[int, int],
    *,
    stopping: tuple[int, ...] = (),
    offline: tuple[int, ...] = (),
    stale: dict[int, int] | None = None,
    partitions: tuple[PartitionImage, ...] = (),
    configs: dict[str, str] | None = None,
) -> MetadataImage:
    """Brokers by registration.

    Those in `offline` lost the directory of partition 0; `stale`: the revision of a mark on it.
    """
    topic = TopicImage("t", TOPIC_ID, partitions, configs or {}, 500)
    return MetadataImage(
        revision=1000,
        controller_id=1,
        controller_revision=5,
        brokers={
            each: BrokerImage(each, epoch, (), in_controlled_shutdown=each in stopping)
            for each, epoch in brokers.items()
        },
        topics={"t": topic} if partitions else {},
        topic_names={TOPIC_ID: "t"} if partitions else {},
        offline_replicas={each: {TOPIC_ID: frozenset({0})} for each in offline},
        stale_marks={each: (StaleMark(1, mark, {TOPIC_ID: frozenset({0})}),) for each, mark in (stale or {}).items()},
        features=AGREED,
    )


def partition(
    isr: tuple[int, ...] = (1, 2, 3), leader: int = 1, *, replicas: tuple[int, ...] = (1, 2, 3), adding=(), removing=()
) -> PartitionImage:
    """Members joined under the epoch of ten times their id; leader epoch 5, partition epoch 7."""
    return PartitionImage(replicas, isr, tuple(10 * member for member in isr), leader, 5, 7, 900, adding, removing)


ALIVE = {1: 10, 2: 20, 3: 30}


def decide(image: MetadataImage, before: PartitionImage, **options: object) -> PartitionRecord | None:
    return elect(image, TOPIC_ID, 0, before, **options)


@pytest.mark.parametrize(
    ("image", "before", "leader", "isr", "leader_epoch"),
    [
        pytest.param(image_of(ALIVE, stopping=(1,)), partition(), 2, (2, 3), 6, id="leader-stops"),
        pytest.param(image_of(ALIVE, stopping=(2,)), partition(), 1, (1, 3), 5, id="follower-stops"),
        pytest.param(
            image_of(ALIVE, stopping=(2, 3)), partition((2, 3), NO_LEADER), 2, (2, 3), 6, id="only-stopping-ones-left"
        ),
        pytest.param(image_of(ALIVE, offline=(1,)), partition(), 2, (2, 3), 6, id="directory-of-the-leader-fails"),
        pytest.param(image_of(ALIVE, offline=(3,)), partition(), 1, (1, 2), 5, id="directory-of-a-follower-fails"),
        pytest.param(
            image_of(ALIVE, offline=(1,)), partition((1,)), NO_LEADER, (1,), 6, id="directory-of-the-last-member-fails"
        ),
        pytest.param(
            image_of({1: 11, 2: 21}, stale={1: 11}), partition((1, 2)), 2, (2,), 6, id="a-stale-one-is-passed-over"
        ),
        pytest.param(
            image_of({1: 11}, stale={1: 11}), partition((1,)), NO_LEADER, (1,), 6, id="a-stale-one-is-never-elected"
        ),
        pytest.param(
            image_of({1: 11}, stale={1: 10}), partition((1,)), 1, (1,), 6, id="it-joined-again-after-the-mark"
        ),
        pytest.param(
            image_of({1: 11, 2: 21}, stopping=(1,)),
            partition((1, 2), NO_LEADER),
            2,
            (2,),
            6,
            id="returned-but-stopping",
        ),
        pytest.param(
            image_of({1: 11}, stopping=(1,)), partition((1, 2), NO_LEADER), 1, (1,), 6, id="stopping-but-the-only-one"
        ),
    ],
)
def test_clean_elections(
    image: MetadataImage, before: PartitionImage, leader: int, isr: tuple[int, ...], leader_epoch: int
) -> None:
    """Leaders move first, a replica that can't serve leaves a larger ISR, and one without its records never leads."""
    after = decide(image, before)
    assert after is not None
    assert (after.leader, after.isr, after.leader_epoch) == (leader, isr, leader_epoch)
    settled = PartitionImage(
        after.replicas, after.isr, after.isr_epochs, after.leader, after.leader_epoch, after.partition_epoch, 901
    )
    assert decide(image, settled) is None, "decided once"


@pytest.mark.parametrize(
    ("image", "before"),
    [
        pytest.param(image_of({1: 10}, stopping=(1,)), partition((1,)), id="the-only-member-stops"),
        pytest.param(image_of(ALIVE, stopping=(1, 2, 3)), partition(), id="all-stop"),
        pytest.param(image_of({1: 11}, stale={1: 11}), partition((1,), NO_LEADER), id="stale-and-alone"),
    ],
)
def test_partitions_that_are_not_changed(image: MetadataImage, before: PartitionImage) -> None:
    """A stopping broker stays leader where no other can lead: its partitions are available as long as it runs."""
    assert decide(image, before) is None


def test_unclean_elections_only_where_they_are_allowed() -> None:
    """A replica out of sync, or one that lost its records, leads alone."""
    image, before = image_of({3: 30}), partition((1, 2), NO_LEADER)
    assert decide(image, before) is None
    after = decide(image, before, election=Election.UNCLEAN)
    assert after is not None
    assert (after.leader, after.isr, after.isr_epochs, after.leader_epoch) == (3, (3,), (30,), 6)
    stale = image_of({1: 11}, stale={1: 11})
    after = decide(stale, partition((1,), NO_LEADER), election=Election.UNCLEAN)
    assert after is not None
    assert after.leader == 1
    assert decide(image_of({3: 30}, offline=(3,)), before, election=Election.UNCLEAN) is None
    clean = decide(image_of({2: 20, 3: 30}), partition((1, 2)), election=Election.UNCLEAN)
    assert clean is not None
    assert clean.leader == 2, "not while a member of the ISR can lead"


def test_the_topic_s_key_for_unclean_elections_overrides_the_broker_s() -> None:
    """As in Kafka."""
    before = (partition((1, 2), NO_LEADER),)
    for configs, by_default, elected in (
        ({}, False, False),
        ({}, True, True),
        ({"true": ""}, False, True),
        ({"false": ""}, True, False),
    ):
        of_topic = {"unclean.leader.election.enable": text for text in configs}  # noqa: B035
        image = image_of({3: 30}, partitions=before, configs=of_topic)
        assert plan_controller_work(image, ControllerSettings(elects_unclean=by_default)).is_empty != elected


def test_preferred_elections() -> None:
    """The first replica leads if it is in sync and does not stop; otherwise nothing changes."""
    after = decide(image_of(ALIVE), partition(leader=2), election=Election.PREFERRED)
    assert after is not None
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1, 2, 3), 6)
    assert decide(image_of(ALIVE), partition((2, 3), leader=2), election=Election.PREFERRED) is None
    stops = decide(image_of(ALIVE, stopping=(1,)), partition(leader=2), election=Election.PREFERRED)
    assert stops is not None
    assert (stops.leader, stops.isr) == (2, (2, 3))


def test_a_reassignment_is_complete_when_its_whole_target_is_in_sync() -> None:
    """Until then the partition has the old and the new replicas.

    Then the old ones are removed, even if one of them was the leader.
    """
    brokers = {**ALIVE, 4: 40}
    moving = {"replicas": (4, 2, 3, 1), "adding": (4,), "removing": (1,)}
    assert decide(image_of(brokers), partition(**moving)) is None
    after = decide(image_of(brokers), partition((1, 2, 3, 4), **moving))
    assert after is not None
    assert (after.replicas, after.adding, after.removing, after.isr) == ((4, 2, 3), (), (), (2, 3, 4))
    assert (after.leader, after.leader_epoch) == (4, 6)
    stays = decide(image_of(brokers), partition((1, 2, 3, 4), 2, **moving))
    assert stays is not None
    assert (stays.leader, stays.leader_epoch) == (2, 6), "the leader stays, and refuses what the removed one fetches"
    assert decide(image_of({1: 10, 2: 20, 4: 40}), partition((1, 2, 4), **moving)) is None, (
        "not while one of the target is down"
    )


def test_a_new_assignment_that_is_in_sync_is_applied_at_once() -> None:
    """Another order, or fewer replicas."""
    after = decide(image_of(ALIVE), partition(), assignment=Assignment((3, 2, 1), (), (1,)))
    assert after is not None
    assert (after.replicas, after.isr, after.leader, after.removing) == ((3, 2), (2, 3), 3, ())


@pytest.mark.parametrize(
    ("assignment", "leader_epoch"),
    [
        (Assignment((1, 3, 2)), 5),
        (Assignment((1, 2, 3, 4), (4,), ()), 5),
        (Assignment((1, 2, 3), (), (3,)), 6),
        (Assignment((1, 2)), 6),
    ],
)
def test_the_leader_epoch_grows_with_a_removal_alone(assignment: Assignment, leader_epoch: int) -> None:
    """A replica removed and added again, before its broker saw either, would join with a log that it will drop."""
    after = decide(image_of({**ALIVE, 4: 40}), partition(), assignment=assignment)
    assert after is not None
    assert (after.leader, after.leader_epoch) == (1, leader_epoch)


def test_a_broker_may_stop_when_others_can_replace_it() -> None:
    """Partitions that only it has stay with it."""
    state = partition(), partition((1,))
    assert not is_relieved(image_of(ALIVE, stopping=(1,), partitions=state), 1)
    assert is_relieved(image_of(ALIVE, stopping=(1,), partitions=(partition((2, 3), 2), partition((1,)))), 1)
    assert is_relieved(image_of(ALIVE, stopping=(1, 2, 3), partitions=state), 1), "no broker is left to take over"


def test_the_controller_examines_unhealthy_partitions() -> None:
    """A change of a healthy partition is no work.

    A change that completes a reassignment is, and after the plan nothing is due.
    """
    work = ControllerWork(1, ControllerSettings)
    well = image_of(ALIVE, partitions=(partition(), partition()))
    assert work.plan(well).is_empty
    shrunk = image_of(ALIVE, partitions=(partition((1, 2)), well.topics["t"].partitions[1]))
    assert not work.on_image(well, shrunk, ImageDelta(topics_changed=(shrunk.topics["t"],)))
    brokers = {**ALIVE, 4: 40}
    moved = partition((1, 2, 3, 4), replicas=(4, 2, 3, 1), adding=(4,), removing=(1,))
    joined = image_of(brokers, partitions=(moved, well.topics["t"].partitions[1]))
    assert work.on_image(shrunk, joined, ImageDelta(topics_changed=(joined.topics["t"],)))
    plan = work.plan(joined)
    assert [operation.key[-6:] for step in plan.steps for operation in step.operations] == [b"000000"]
    assert work.is_due, "until an image shows that it is done"
    assert work.plan(well).is_empty
    assert not work.is_due


def test_partitions_without_a_leader_are_first_in_a_plan() -> None:
    """A thousand partitions of which every third was led by the broker that died.

    A leader costs as many transactions as those need.

    None of these is about other partitions too: of those leaders drop the dead broker themselves, and a step conflicts
    that does it later.
    """
    led = [partition(leader=number % 3 + 1) for number in range(999)]
    plan = plan_controller_work(image_of({2: 20, 3: 30}, partitions=tuple(led)))
    leaders = [
        decode(b"", operation.value, PartitionRecord).leader_epoch
        for step in plan.steps
        for operation in step.operations
    ]
    assert leaders == [6] * 333 + [5] * 666
    assert [len(step.operations) for step in plan.steps] == [*[STEP_PARTITIONS] * 3, 33, *[STEP_PARTITIONS] * 6, 66]


def test_every_broker_event_and_setting_is_work() -> None:
    """A broker that is not controller has no work; when it becomes controller it examines everything."""
    image = image_of(ALIVE, partitions=(partition(),))
    for delta in (
        ImageDelta(brokers_changed=(2,)),
        ImageDelta(controller_changed=True),
        ImageDelta(broker_configs_changed=("",)),
    ):
        work = ControllerWork(1, ControllerSettings)
        assert work.plan(image).is_empty
        assert work.on_image(image, image, delta)
    other = ControllerWork(2, ControllerSettings)
    assert not other.on_image(image, image, ImageDelta(brokers_changed=(2,)))


def test_preferred_leaders_return_after_the_interval() -> None:
    """Not before, not while it is disabled, and only if there is work."""
    settings = ControllerSettings(rebalance_interval_ms=1000)
    work = ControllerWork(1, lambda: settings)
    image = image_of(ALIVE, partitions=(partition(leader=2),))
    assert work.plan(image).is_empty
    assert not work.on_tick(image, 0)
    assert not work.on_tick(image, 999)
    assert work.on_tick(image, 1000)
    (step,) = work.plan(image).steps
    assert b'"leader":1' in step.operations[0].value
    balanced = image_of(ALIVE, partitions=(partition(),))
    assert work.plan(balanced).is_empty
    assert not work.on_tick(balanced, 2000)
    assert not work.on_tick(image, 2500)
    off = ControllerWork(1, lambda: ControllerSettings(rebalances=False))
    assert not any(off.on_tick(image, now) for now in (0, 10**9))


def test_marks_are_removed_when_no_membership_is_that_old() -> None:
    """Not before: they prevent the election of the replica."""
    needed = image_of({2: 21}, stale={1: 11}, partitions=(partition((1,), NO_LEADER),))
    assert plan_controller_work(needed).is_empty
    joined = image_of({1: 11}, stale={1: 10}, partitions=(partition((1,)),))
    keys = [operation.key for step in plan_controller_work(joined).steps for operation in step.operations]
    assert b"stale/1/00000000000000000001" in keys


def test_log_start_reporting_is_agreed_on_when_all_support_it() -> None:
    """One broker of an older level keeps it off; once on it stays on."""
    image = MetadataImage(revision=9, brokers={1: BrokerImage(1, 10, ()), 2: BrokerImage(2, 20, (), metadata_level=0)})
    assert plan_controller_work(image).is_empty
    image = MetadataImage(revision=9, brokers={1: BrokerImage(1, 10, ()), 2: BrokerImage(2, 20, ())})
    (step,) = plan_controller_work(image).steps
    assert step.operations[0].value == b'{"log_start_reporting":1,"eligible_leaders":0,"levels":{},"required_level":0}'
    assert {compare.key for compare in step.compares} == {b"features", b"brokers/1", b"brokers/2"}


def test_a_failure_with_three_thousand_partitions_is_planned_quickly() -> None:
    """The bound fails only for a quadratic scan; measured it takes 33 ms."""
    partitions = tuple(
        PartitionImage(order, order, tuple(10 * member for member in order), order[0], 5, 7, 900)
        for number in range(3000)
        for order in [tuple(1 + (number + step) % 3 for step in range(3))]
    )
    image = image_of({1: 10, 2: 20}, partitions=partitions)
    begun = time.thread_time()
    plan = plan_controller_work(image)
    assert time.thread_time() - begun < 1
    assert sum(len(step.operations) for step in plan.steps) == 3000
    assert len(plan.steps) == 30


def test_configs_are_no_topic() -> None:
    """A changed default for all brokers makes the controller examine every partition.

    It may allow unclean elections.
    """
    work = ControllerWork(1, lambda: ControllerSettings(elects_unclean=True))
    image = image_of({3: 30}, partitions=(partition((1, 2), NO_LEADER),))
    changed = MetadataImage(
        revision=1001,
        controller_id=1,
        brokers=image.brokers,
        topics=image.topics,
        topic_names=image.topic_names,
        features=AGREED,
        broker_configs={"": ConfigImage({"unclean.leader.election.enable": "true"}, 1001)},
    )
    assert work.on_image(image, changed, ImageDelta(broker_configs_changed=("",)))
    assert not work.plan(changed).is_empty


@pytest.mark.parametrize(
    ("was", "now", "leader"),
    [
        pytest.param(partition((1,), NO_LEADER), partition((2,), 2), 2, id="the-only-member-is-gone"),
        pytest.param(partition((1,), 1), partition((3,), 3), 3, id="at-once"),
        pytest.param(partition((1, 2), 1), partition((2,), 2), None, id="a-member-leads"),
        pytest.param(partition((1,), 1), partition((1,), NO_LEADER), None, id="no-leader"),
        pytest.param(partition((1,), 1), partition((1, 2), 1), None, id="a-member-joins"),
        pytest.param(partition((1,), NO_LEADER), partition((1,), 1), None, id="the-last-member-is-back"),
    ],
)
def test_a_leader_that_was_not_in_sync_is_found(was: PartitionImage, now: PartitionImage, leader: int | None) -> None:
    """Also if the configuration that allows it comes with the same image; a re-created topic is a different one."""
    well = partition()
    old, new = image_of(ALIVE, partitions=(well, was)), image_of(ALIVE, partitions=(well, now), configs={"a": "b"})
    expected = {} if leader is None else {("t", 1): leader}
    assert led_uncleanly(old, ImageDelta(topics_changed=tuple(new.topics.values()))) == expected
    other = msgspec.structs.replace(new.topics["t"], topic_id=b"U" * 16)
    assert led_uncleanly(old, ImageDelta(topics_changed=(other,))) == {}


def test_the_result_of_an_unclean_election_is_recognized() -> None:
    """The result of the election itself is checked, so the log line cannot miss it."""
    image = image_of({2: 20, 3: 30}, partitions=(partition((1,), 1),))
    record = decide(image, image.topics["t"].partitions[0], election=Election.UNCLEAN)
    assert record is not None
    after = partition(record.isr, record.leader)
    changed = tuple(image_of({2: 20, 3: 30}, partitions=(after,)).topics.values())
    assert led_uncleanly(image, ImageDelta(topics_changed=changed)) == {("t", 0): record.leader}


def test_replicas_that_are_added_stay_when_all_are_in_sync() -> None:
    """A reassignment that only adds is complete then, too."""
    brokers = {**ALIVE, 4: 40}
    growing = {"replicas": (1, 2, 3, 4), "adding": (4,)}
    assert decide(image_of(brokers), partition(**growing)) is None
    after = decide(image_of(brokers), partition((1, 2, 3, 4), **growing))
    assert after is not None
    assert (after.replicas, after.adding, after.removing, after.isr) == ((1, 2, 3, 4), (), (), (1, 2, 3, 4))


def test_a_reassignment_never_leaves_a_partition_without_replicas() -> None:
    assert decide(image_of(ALIVE), partition(removing=(1, 2, 3))) is None


@pytest.mark.parametrize(
    ("state", "well"),
    [
        (partition(), True),
        (partition((2, 3)), False),
        (partition((1, 2), NO_LEADER), False),
        (partition(adding=(3,)), False),
        (partition(removing=(3,)), False),
        (partition((1, 4)), False),
    ],
)
def test_a_glance_shows_which_partitions_are_well(state: PartitionImage, well: bool) -> None:
    assert is_healthy(state, ALIVE) == well
    assert not is_healthy(state, {**ALIVE, 1: 11, 2: 21, 3: 31}), "others have registered"


def test_a_member_of_the_in_sync_set_goes_before_others_wherever_it_stands() -> None:
    """Of those that have returned, and of those that lack records, where an unclean election is allowed."""
    returned = decide(image_of({2: 21, 3: 31}), partition((3,), NO_LEADER))
    assert returned is not None
    assert (returned.leader, returned.isr) == (3, (3,))
    stale = decide(image_of({1: 11, 3: 31}, stale={3: 31}), partition((3,), NO_LEADER), election=Election.UNCLEAN)
    assert stale is not None
    assert (stale.leader, stale.isr) == (3, (3,))


def test_new_topics_and_partitions_are_not_led_uncleanly() -> None:
    was, now = partition((1,), 1), partition((3,), 3)
    old = image_of(ALIVE, partitions=(was,))
    grown = image_of(ALIVE, partitions=(now, partition((3,), 3), partition((3,), 3))).topics["t"]
    new = msgspec.structs.replace(grown, name="new", topic_id=b"N" * 16)
    assert led_uncleanly(old, ImageDelta(topics_changed=(new, grown))) == {("t", 0): 3}


def test_a_broker_is_not_relieved_by_one_that_has_registered_again() -> None:
    """That one isn't in sync until the leader says so."""
    state = (partition((1, 2)),)
    assert not is_relieved(image_of(ALIVE, stopping=(1,), partitions=state), 1)
    assert is_relieved(image_of({1: 10, 2: 21, 3: 30}, stopping=(1,), partitions=state), 1)
