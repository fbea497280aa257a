"""Eligible leader replicas (KIP-966): who stays eligible, who is elected, and what waits while there are any.

Members joined under ten times their id; a broker with another epoch has registered again. Brokers that aren't alive are
known.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.metadata.broker_image import StaleMark
from lowtide.metadata.image import BrokerImage, ImageDelta, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import ELIGIBLE_LEADERS_LEVEL, ERASURES_LEVEL, NO_LEADER, FeaturesRecord, PartitionRecord
from lowtide.protocol.types import UNKNOWN_OFFSET
from lowtide.replication import in_sync_replicas
from lowtide.replication.alter_partition import plan_alter_partition
from lowtide.replication.controller import ControllerSettings, min_insync_replicas, plan_controller_work
from lowtide.replication.elections import Assignment, Election, elect, led_uncleanly
from lowtide.replication.eligible_leaders import eligible_leaders
from lowtide.replication.leadership import FollowerFetch

from .leaders import FakeLog, leads, partition_of

TOPIC_ID = b"T" * 16
REPLICAS = (1, 2, 3)
ALIVE = {1: 10, 2: 20, 3: 30}


def image_of(
    alive: dict[int, int],
    *,
    unclean: dict[int, int] | None = None,
    stale: dict[int, int] | None = None,
    known: tuple[int, ...] = REPLICAS,
    agreed: bool = True,
    partitions: tuple[PartitionImage, ...] = (),
) -> MetadataImage:
    """`unclean`: the registration of the last start after a power cut; `stale`: the revision of a mark."""
    return MetadataImage(
        revision=1000,
        controller_id=1,
        controller_revision=5,
        brokers={each: BrokerImage(each, epoch, ()) for each, epoch in alive.items()},
        known_brokers={each: BrokerImage(each, 10 * each, ()) for each in known},
        topics={"t": TopicImage("t", TOPIC_ID, partitions, {"min.insync.replicas": "2"}, 500)} if partitions else {},
        topic_names={TOPIC_ID: "t"} if partitions else {},
        stale_marks={each: (StaleMark(1, mark, {TOPIC_ID: frozenset({0})}),) for each, mark in (stale or {}).items()},
        features=FeaturesRecord(1, int(agreed)),
        unclean_starts=unclean or {},
    )


def partition(isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = ()) -> PartitionImage:
    epochs = tuple(10 * member for member in isr)
    return PartitionImage(
        REPLICAS, isr, epochs, leader, 5, 7, 900, elr=elr, elr_epochs=tuple(10 * member for member in elr)
    )


def decide(image: MetadataImage, before: PartitionImage, **options: object) -> PartitionRecord | None:
    return elect(image, TOPIC_ID, 0, before, **({"min_insync_replicas": 2} | options))


def settled(record: PartitionRecord) -> PartitionImage:
    fields = {name: getattr(record, name) for name in PartitionRecord.__struct_fields__}
    return PartitionImage(**fields, modify_revision=901)


@pytest.mark.parametrize(
    ("image", "before", "leader", "isr", "elr"),
    [
        pytest.param(
            image_of({1: 10}), partition(REPLICAS, 1), 1, (1,), (2, 3), id="who-left-below-the-minimum-stays-eligible"
        ),
        pytest.param(
            image_of({1: 10, 2: 20}), partition(REPLICAS, 1), 1, (1, 2), (), id="none-while-enough-are-in-sync"
        ),
        pytest.param(
            image_of({2: 20}),
            partition((1,), 1, (2, 3)),
            2,
            (2,),
            (1, 3),
            id="an-eligible-one-leads-when-the-last-is-dead",
        ),
        pytest.param(
            image_of({1: 11, 2: 20}, unclean={1: 11}),
            partition((1,), 1, (2, 3)),
            2,
            (2,),
            (3,),
            id="the-last-lost-its-power-and-is-back",
        ),
        pytest.param(
            image_of({1: 11, 2: 21}, unclean={2: 21}),
            partition((1,), NO_LEADER, (2,)),
            1,
            (1,),
            (),
            id="it-returned-with-all-that-it-had",
        ),
        pytest.param(
            image_of({1: 11}, unclean={1: 11}),
            partition((1,), 1, (2, 3)),
            NO_LEADER,
            (1,),
            (2, 3),
            id="others-have-all-so-they-lead",
        ),
        pytest.param(
            image_of({1: 11}, unclean={1: 11}),
            partition((1, 2), 1),
            NO_LEADER,
            (1, 2),
            (),
            id="another-member-that-has-all-is-waited-for",
        ),
        pytest.param(
            image_of({1: 11}, unclean={1: 11, 2: 21}),
            partition((1, 2), 1),
            1,
            (1,),
            (),
            id="all-have-lost-something-so-the-first-leads",
        ),
        pytest.param(
            image_of({1: 11}, unclean={1: 11}, stale={2: 25}),
            partition((1, 2), 1),
            1,
            (1,),
            (),
            id="no-one-waits-for-a-lost-directory",
        ),
        pytest.param(
            image_of({1: 11}, unclean={1: 11}, known=(1, 3)),
            partition((1, 2), 1),
            1,
            (1,),
            (),
            id="nor-who-was-unregistered",
        ),
        pytest.param(
            image_of({3: 30}, stale={3: 35}),
            partition((1,), 1, (3,)),
            NO_LEADER,
            (1,),
            (),
            id="a-stale-one-isnt-eligible",
        ),
        pytest.param(
            image_of({1: 11}, unclean={1: 11}, agreed=False),
            partition((1, 2), 1),
            1,
            (1,),
            (),
            id="nothing-is-waited-for-before-all-agree",
        ),
    ],
)
def test_elections(
    image: MetadataImage, before: PartitionImage, leader: int, isr: tuple[int, ...], elr: tuple[int, ...]
) -> None:
    after = decide(image, before)
    assert after is not None
    assert (after.leader, after.isr, after.elr) == (leader, isr, elr)
    assert after.elr_epochs == tuple(10 * member for member in elr)
    assert decide(image, settled(after)) is None, "it is well then"


def test_an_unclean_election_ends_what_others_are_eligible_by() -> None:
    """Their logs are no longer a part of the leader's."""
    image, before = image_of({3: 30}), partition((1,), 1, (2,))
    assert decide(image, before).leader == NO_LEADER
    after = decide(image, before, election=Election.UNCLEAN)
    assert after is not None
    assert (after.leader, after.isr, after.elr) == (3, (3,), ())


def test_a_replica_that_is_removed_is_not_eligible() -> None:
    after = decide(image_of({1: 10, 2: 20, 3: 30}), partition((1,), 1, (2, 3)), assignment=Assignment((1, 2)))
    assert after is not None
    assert (after.replicas, after.isr, after.elr) == ((1, 2), (1,), (2,))


def test_the_election_of_an_eligible_leader_is_clean() -> None:
    before = partition((1,), 1, (2,))
    old, new = (
        image_of(ALIVE, partitions=(state,))
        for state in (before, msgspec.structs.replace(before, leader=2, isr=(2,), elr=()))
    )
    assert led_uncleanly(old, ImageDelta(topics_changed=tuple(new.topics.values()))) == {}
    outside = msgspec.structs.replace(before, leader=3, isr=(3,), elr=())
    changed = tuple(image_of(ALIVE, partitions=(outside,)).topics.values())
    assert led_uncleanly(old, ImageDelta(topics_changed=changed)) != {}


def test_the_controller_knows_the_minimum_of_the_topic_or_of_the_cluster() -> None:
    plain, strict = (TopicImage("t", TOPIC_ID, (), configs, 5) for configs in ({}, {"min.insync.replicas": "3"}))
    settings = ControllerSettings(min_insync_replicas=2)
    assert [min_insync_replicas(topic, settings) for topic in (plain, strict)] == [2, 3]
    step = plan_controller_work(image_of({1: 10}, partitions=(partition(REPLICAS, 1),))).steps[0]
    assert any(b'"elr":[2,3]' in (operation.value or b"") for operation in step.operations)


def test_a_mark_is_kept_while_an_eligible_leader_is_older() -> None:
    """Without it the replica would be elected that lost its directory."""

    def sweeps(elr: tuple[int, ...]) -> bool:
        image = image_of(ALIVE, stale={3: 35}, partitions=(partition((1, 2), 1, elr),))
        operations = [operation.key for step in plan_controller_work(image).steps for operation in step.operations]
        return any(key.startswith(b"stale/3") for key in operations)

    assert (sweeps(()), sweeps((3,))) == (True, False)


def test_what_all_brokers_can_do_is_agreed_on_once() -> None:
    brokers = {1: BrokerImage(1, 10, (), metadata_level=ELIGIBLE_LEADERS_LEVEL), 2: BrokerImage(2, 20, ())}
    image = MetadataImage(revision=9, brokers=brokers, features=FeaturesRecord(1))
    assert plan_controller_work(image).is_empty
    brokers[2] = msgspec.structs.replace(brokers[2], metadata_level=ELIGIBLE_LEADERS_LEVEL)
    (step,) = plan_controller_work(image).steps
    assert step.operations[0].value == b'{"log_start_reporting":1,"eligible_leaders":1,"levels":{},"required_level":0}'
    brokers[3] = BrokerImage(3, 30, ())
    assert plan_controller_work(msgspec.structs.replace(image, features=FeaturesRecord(1, 1))).is_empty, (
        "it isn't taken back"
    )


def test_erasures_need_a_level_that_no_broker_may_lack_afterwards() -> None:
    brokers = {each: BrokerImage(each, 10 * each, (), metadata_level=ERASURES_LEVEL) for each in (1, 2)}
    image = MetadataImage(revision=9, brokers=brokers, features=FeaturesRecord(1, 1))
    (step,) = plan_controller_work(image).steps
    assert b'"required_level":5' in (step.operations[0].value or b"")
    brokers[2] = msgspec.structs.replace(brokers[2], metadata_level=ERASURES_LEVEL - 1)
    assert plan_controller_work(image).is_empty
    agreed = msgspec.structs.replace(image, features=FeaturesRecord(1, 1, required_level=ERASURES_LEVEL))
    assert agreed.erases_records
    assert plan_controller_work(agreed).is_empty, "it isn't taken back"


# The leader


def test_a_leader_that_drops_a_member_below_the_minimum_keeps_it_eligible() -> None:
    log = FakeLog(log_end_offset=5, min_insync_replicas=2)
    leadership = leads(log, partition_of((1, 2), (10, 20)), image_of({1: 10, 3: 30}))
    proposal = in_sync_replicas.next_proposal(leadership, image_of({1: 10, 3: 30}), 60_000)
    assert proposal is not None
    assert (proposal.isr, proposal.elr, proposal.elr_epochs) == ((1,), (2,), (20,))
    step = plan_alter_partition([(leadership, proposal)])
    assert b'"elr":[2],"elr_epochs":[20]' in (step.operations[0].value or b"")


def test_while_others_are_eligible_nothing_is_committed_and_no_delete_is_acknowledged() -> None:
    """Also where the minimum was lowered: then the leader first takes their eligibility away."""
    image = image_of(ALIVE)
    log = FakeLog(log_end_offset=5, min_insync_replicas=1)
    state = partition_of((1,), (10,), elr=(2,), elr_epochs=(20,))
    leadership = leads(log, state, image)
    for follower in leadership.followers.values():
        follower.noted_fetch_ms = -(1 << 60)
    assert in_sync_replicas.high_watermark(leadership, image, 0) == log.high_watermark == 0
    assert leadership.low_watermark(image, 0) == UNKNOWN_OFFSET
    proposal = in_sync_replicas.next_proposal(leadership, image, 0)
    assert proposal is not None
    assert (proposal.isr, proposal.elr) == ((1,), ())
    leadership.follow(msgspec.structs.replace(state, elr=(), elr_epochs=(), modify_revision=11))
    assert in_sync_replicas.high_watermark(leadership, image, 0) == 5
    assert leadership.low_watermark(image, 0) == 0
    assert in_sync_replicas.next_proposal(leadership, image, 0) is None


def test_a_member_that_returns_ends_the_eligibility_of_the_others() -> None:
    image, log = image_of(ALIVE), FakeLog(log_end_offset=5, min_insync_replicas=2)
    leadership = leads(log, partition_of((1,), (10,), elr=(2, 3), elr_epochs=(20, 30)), image)
    leadership.epoch_start_offset = 0
    leadership.note_fetch(FollowerFetch(2, 20, 5, 0, 5, last_fetched_epoch=5), image, 0)
    leadership.followers[3].noted_fetch_ms = -(1 << 60)
    proposal = in_sync_replicas.next_proposal(leadership, image, 0)
    assert proposal is not None
    assert (proposal.isr, proposal.elr) == ((1, 2), ())


@given(
    st.sets(st.sampled_from(REPLICAS), min_size=1),
    st.sets(st.sampled_from(REPLICAS)),
    st.dictionaries(st.sampled_from(REPLICAS), st.integers(1, 40)),
    st.integers(1, 3),
    st.data(),
)
def test_who_is_eligible_was_in_sync_or_eligible_and_lost_nothing(
    members: set[int], eligible: set[int], unclean: dict[int, int], least: int, data: st.DataObject
) -> None:
    before = partition(tuple(sorted(members)), NO_LEADER, tuple(sorted(eligible - members)))
    isr = tuple(sorted(data.draw(st.sets(st.sampled_from(REPLICAS), min_size=1))))
    found = eligible_leaders(image_of(ALIVE, unclean=unclean), TOPIC_ID, 0, before, isr, REPLICAS, least)
    assert not set(found) & set(isr)
    assert found.items() <= before.members.items()
    assert not found or len(isr) < least
    assert all(epoch >= unclean.get(member, 0) for member, epoch in found.items())


def test_a_leader_proposes_nothing_while_the_same_replicas_stay_eligible() -> None:
    """The ISR stays as it is, too small, and who is eligible beside it does as well: there is nothing to write."""
    log = FakeLog(log_end_offset=9, min_insync_replicas=2)
    leadership = leads(log, partition_of((1,), (10,), elr=(2,), elr_epochs=(20,)), image_of({1: 10}))
    assert in_sync_replicas.next_proposal(leadership, image_of({1: 10}), 1) is None
    lost = in_sync_replicas.next_proposal(leadership, image_of({1: 10}, unclean={2: 21}), 1)
    assert lost is not None
    assert (lost.isr, lost.elr) == ((1,), ())


def test_who_is_eligible_no_more_is_taken_off_the_record() -> None:
    """Even if nothing else of the partition changes."""
    assert decide(image_of({1: 10}), partition((1,), 1, (2, 3))) is None
    after = decide(image_of({1: 10}, unclean={3: 31}), partition((1,), 1, (2, 3)))
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.elr_epochs, after.leader_epoch) == (1, (1,), (2,), (20,), 5)


@pytest.mark.parametrize(
    "unclean", [{}, {1: 11, 2: 21, 3: 31}], ids=["all have what is committed", "all may lack records"]
)
def test_a_member_goes_before_an_eligible_replica(unclean: dict[int, int]) -> None:
    """It is the last of the replicas, and all have returned."""
    after = decide(image_of({1: 11, 2: 21, 3: 31}, unclean=unclean), partition((3,), NO_LEADER, (1, 2)))
    assert after is not None
    assert (after.leader, after.isr) == (3, (3,))
