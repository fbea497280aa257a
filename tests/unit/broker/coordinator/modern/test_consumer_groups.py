"""Consumer groups: joining, revocation before reassignment, leaving, fencing, and the state of a new coordinator."""

from __future__ import annotations

import gc

import msgspec
import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup, ConsumerGroupState
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.metadata.config_image import ConfigImage
from lowtide.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS

SESSION_MS = 45_000


def test_the_first_member_gets_everything_in_epoch_2():
    world = ConsumerWorld()
    response = world.enter("a")
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert world.assigned(response) == {world.ids(): {0, 1, 2, 3}}
    assert world.group.state is ConsumerGroupState.STABLE
    world.check_reload()


def test_an_idle_group_holds_no_image():
    """An image has all topics. If idle groups kept images, thousands of changes would leave thousands of images."""
    world = ConsumerWorld()
    epoch = world.enter("a").member_epoch
    world.beat("a", epoch)
    old = world.cluster.image
    assert gc.is_tracked(old)
    assert not any(isinstance(holder, ConsumerGroup) for holder in gc.get_referrers(old))
    assert world.group.checked_image
    world.cluster.set_topic("other", 1)
    assert world.beat("a", epoch).response.member_epoch == epoch
    world.cluster.set_topic("t", 5)
    assert world.beat("a", epoch).response.member_epoch == epoch + 1


def test_a_member_of_version_0_gets_its_id():
    world = ConsumerWorld()
    response = world.enter("", version=0)
    assert len(response.member_id) == 36
    assert response.member_id in world.group.members


def test_a_partition_is_assigned_after_its_revocation():
    world = ConsumerWorld()
    world.enter("a")
    second = world.enter("b")
    assert (second.member_epoch, world.assigned(second)) == (3, {})
    assert world.group.state is ConsumerGroupState.RECONCILING
    asked = world.beat("a", 2, owned={"t": {0, 1, 2, 3}}).response
    kept = world.assigned(asked)
    assert asked.member_epoch == 2
    assert kept is not None
    assert len(kept[world.ids()]) == 2
    assert world.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    waiting = world.beat("b", 3, owned={}).response
    assert waiting.assignment is None
    assert world.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    done = world.beat("a", 2, owned={"t": kept[world.ids()]}).response
    assert (done.member_epoch, done.assignment) == (3, None)
    given = world.assigned(world.beat("b", 3, owned={}).response)
    assert given == {world.ids(): {0, 1, 2, 3} - kept[world.ids()]}
    assert world.group.state is ConsumerGroupState.STABLE
    world.check_reload()


def test_a_member_that_does_not_report_its_partitions_may_still_own_them():
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    assert world.beat("a", 2).response.member_epoch == 2


def test_a_member_that_revokes_nothing_is_removed_after_its_rebalance_timeout():
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    world.pass_time(REBALANCE_MS - 1)
    assert world.beat("a", 2, owned={"t": {0, 1, 2, 3}}).error == ErrorCode.NONE
    world.beat("b", 3, owned={})
    world.pass_time(1)
    assert world.beat("a", 2, owned={"t": {0, 1, 2, 3}}).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.assigned(world.beat("b", 3, owned={}).response) == {world.ids(): {0, 1, 2, 3}}
    world.check_reload()


def test_a_silent_member_is_removed_after_its_session():
    world = ConsumerWorld()
    world.enter("a")
    world.pass_time(SESSION_MS - 1)
    assert world.beat("a", 2).error == ErrorCode.NONE
    world.pass_time(SESSION_MS)
    assert world.beat("a", 2).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.state is ConsumerGroupState.EMPTY


def test_a_group_with_its_own_timeouts_returns_them_at_the_next_heartbeat():
    """A change while it has members applies from then on, and only to this group."""
    world = ConsumerWorld()
    world.enter("a")
    configs = {GROUP: ConfigImage({"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "9000"})}
    world.cluster.image = msgspec.structs.replace(world.cluster.image, group_configs=configs)
    assert world.beat("a", 2).response.heartbeat_interval_ms == 9_000
    assert world.enter("b", group="other").heartbeat_interval_ms == 5_000
    world.pass_time(SESSION_MS)
    assert (set(world.groups.by_id["other"].members), set(world.group.members)) == (set(), {"a"})
    world.pass_time(60_000 - SESSION_MS)
    assert not world.group.members


def test_a_silent_member_whose_removal_fails_is_removed_later():
    world = ConsumerWorld()
    world.enter("a")
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_time(SESSION_MS)
    assert "a" in world.group.members
    world.append_fails = None
    world.pass_time(500)
    assert not world.group.members


def test_a_leaving_member_whose_removal_fails_is_removed_after_its_session():
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    world.settle("a", "b")
    world.append_fails = ErrorCode.KAFKA_STORAGE_ERROR
    assert world.beat("b", -1).error == ErrorCode.NOT_COORDINATOR
    world.append_fails = None
    for _ in range(4):
        world.pass_time(SESSION_MS // 2)
        world.settle("a", rounds=1)
    assert list(world.group.members) == ["a"]


def test_a_leaving_member_is_removed_at_once():
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    left = world.beat("a", -1).response
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -1)
    assert world.beat("a", -1).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.assigned(world.beat("b", 3, owned={}).response) == {world.ids(): {0, 1, 2, 3}}
    world.check_reload()


@pytest.mark.parametrize(
    ("epoch", "owned"), [(1, {}), (9, {}), (2, None), (2, {"t": {3}})], ids=["older", "newer", "silent", "too much"]
)
def test_a_wrong_epoch_is_fenced(epoch, owned):
    """The member is in epoch 3 and has 0 and 1, or 2 and 3; without partitions its last response may be lost."""
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    world.settle("a", "b")
    member = world.group.members["a"]
    if owned and 3 in member.assigned[world.ids()]:
        owned = {"t": {0}}
    world.beat("a", 3, owned=dict(member.assigned))
    assert world.beat("a", epoch, owned=owned).error == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_whose_last_answer_was_lost_continues():
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    kept = world.group.members["a"].assigned
    assert world.beat("a", 2, owned=dict(kept)).response.member_epoch == 3
    again = world.beat("a", 2, owned=dict(kept))
    assert (again.error, again.response.member_epoch) == (ErrorCode.NONE, 3)


def test_a_member_that_joins_again_gets_its_target():
    """A fenced client joins again under its id."""
    world = ConsumerWorld()
    world.enter("a")
    response = world.enter("a")
    assert (response.member_epoch, world.assigned(response)) == (2, {world.ids(): {0, 1, 2, 3}})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group": " "}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": {"t": {0}}}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "nope"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": "a("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 4}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
    ids=lambda value: str(value),
)
def test_what_a_join_must_have(change, error):
    world = ConsumerWorld()
    asked = {
        "member_id": "a",
        "epoch": 0,
        "owned": {},
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": ["t"],
        **change,
    }
    answer = world.beat(asked.pop("member_id"), asked.pop("epoch"), **asked)
    assert answer.error == error
    assert answer.response.error_message
    assert not world.log


def test_a_full_group_admits_no_member():
    world = ConsumerWorld(GroupSettings(consumer_max_size=1))
    world.enter("a")
    answer = world.beat("b", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    assert answer.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("a", 2).error == ErrorCode.NONE


def test_a_static_member_returns_under_another_id_with_its_partitions():
    world = ConsumerWorld()
    first = world.enter("a", instance_id="one")
    refused = world.beat("b", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"], instance_id="one")
    assert refused.error == ErrorCode.UNRELEASED_INSTANCE_ID
    left = world.beat("a", -2, instance_id="one").response
    assert left.member_epoch == -2
    assert world.group.group_epoch == 2
    back = world.enter("b", instance_id="one")
    assert (back.member_epoch, world.assigned(back)) == (first.member_epoch, world.assigned(first))
    assert list(world.group.members) == ["b"]
    assert world.beat("a", 2, instance_id="one").error == ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("a", -1, instance_id="one").error == ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("a", 2, instance_id="two").error == ErrorCode.UNKNOWN_MEMBER_ID
    world.check_reload()


def test_a_static_member_that_left_temporarily_is_removed_after_its_session():
    world = ConsumerWorld()
    world.enter("a", instance_id="one")
    world.beat("a", -2, instance_id="one")
    world.pass_time(SESSION_MS)
    assert not world.group.members
    assert not world.group.static_members


def test_a_topic_that_grows_is_noticed_at_a_heartbeat():
    world = ConsumerWorld()
    world.enter("a")
    world.cluster.set_topic("t", 6)
    response = world.beat("a", 2, owned={"t": {0, 1, 2, 3}}).response
    assert (response.member_epoch, world.assigned(response)) == (3, {world.ids(): {0, 1, 2, 3, 4, 5}})


def test_a_topic_that_is_created_later_is_noticed():
    world = ConsumerWorld(topics={})
    assert world.assigned(world.enter("a", "new")) == {}
    world.cluster.set_topic("new", 1)
    assert world.assigned(world.beat("a", 2, owned={}).response) == {world.ids("new"): {0}}
    world.check_reload()


def test_a_topic_that_is_deleted_is_revoked():
    world = ConsumerWorld(topics={"t": 2, "u": 1})
    world.enter("a", "t", "u")
    old = world.ids("u")
    world.cluster.set_topic("u", 0)
    asked = world.beat("a", 2, owned={"t": {0, 1}, old: {0}}).response
    assert world.assigned(asked) == {world.ids(): {0, 1}}
    assert world.beat("a", 2, owned={"t": {0, 1}}).response.member_epoch == 3
    world.cluster.set_topic("u", 1)
    again = world.beat("a", 3, owned={"t": {0, 1}}).response
    assert world.assigned(again) == {world.ids(): {0, 1}, world.ids("u"): {0}}
    assert world.ids("u") != old


def test_a_subscription_that_changes_revokes_at_once():
    world = ConsumerWorld(topics={"t": 2, "u": 1})
    world.enter("a", "t", "u")
    asked = world.beat("a", 2, owned={"t": {0, 1}, "u": {0}}, subscribed_topic_names=["t"]).response
    assert world.assigned(asked) == {world.ids(): {0, 1}}
    assert world.beat("a", 2, owned={"t": {0, 1}}).response.member_epoch == 3


def test_the_assignor_that_most_members_name_is_used():
    world = ConsumerWorld()
    world.enter("a", server_assignor="range")
    assert world.groups.consumers.assignor_of(world.group) == "range"
    world.enter("b", server_assignor="uniform")
    world.enter("c", server_assignor="uniform")
    assert world.groups.consumers.assignor_of(world.group) == "uniform"


def test_many_members_that_come_together_cost_few_targets():
    """Targets are computed at intervals. A member that joins in between waits for the next one in the last epoch."""
    world = ConsumerWorld(GroupSettings(consumer_assignment_interval_ms=1_000))
    world.enter("a")
    second = world.enter("b")
    assert (second.member_epoch, world.assigned(second)) == (2, {})
    world.enter("c")
    group = world.group
    assert (group.state, group.group_epoch, group.target_epoch) == (ConsumerGroupState.ASSIGNING, 4, 2)
    world.pass_time(1_000)
    assert world.group.target_epoch == 4
    world.settle("a", "b", "c")
    assert world.group.state is ConsumerGroupState.STABLE
    assert sorted(len(member.assigned[world.ids()]) for member in world.group.members.values()) == [1, 1, 2]
    world.check_reload()


def test_a_refusal_leaves_no_trace():
    world = ConsumerWorld()
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = world.beat("a", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in world.groups.by_id


def test_a_pattern_is_matched_after_the_join():
    world = ConsumerWorld(topics={"t1": 1, "t2": 1, "u": 1})
    assert world.assigned(world.enter("a", subscribed_topic_regex="t.*")) == {}
    assert world.group.living_subscriptions() == {"t1", "t2"}
    response = world.beat("a", 2, owned={}).response
    assert world.assigned(response) == {world.ids("t1"): {0}, world.ids("t2"): {0}}
    world.check_reload()


def test_a_pattern_matches_only_topics_that_its_client_may_describe():
    world = ConsumerWorld(topics={"t1": 1, "t2": 1})
    world.enter("a", subscribed_topic_regex="t.*", may_see=lambda name: name != "t2")
    assert world.group.living_subscriptions() == {"t1"}


def test_a_pattern_matches_topics_that_are_created_later():
    world = ConsumerWorld(topics={"t1": 1})
    world.enter("a", subscribed_topic_regex="t.*")
    world.settle("a")
    world.cluster.set_topic("t2", 1)
    world.settle("a")
    assert world.group.living_subscriptions() == {"t1"}
    world.pass_time(10_001)
    world.settle("a")
    assert set(world.group.members["a"].assigned) == {world.ids("t1"), world.ids("t2")}


def test_a_pattern_that_no_member_has_any_more_is_removed():
    world = ConsumerWorld(topics={"t1": 1, "u": 1})
    world.enter("a", subscribed_topic_regex="t.*")
    world.enter("b", subscribed_topic_regex="u")
    world.beat("b", -1)
    world.pass_time(10_001)
    world.settle("a")
    assert set(world.group.subscriptions.patterns) == {"t.*"}
    world.beat("a", -1)
    assert not world.group.subscriptions.patterns
    assert not world.group.is_subscribed_to("t1")
    world.check_reload()


def test_the_subscriptions_of_members_are_unknown_while_a_pattern_is_matched():
    world = ConsumerWorld(topics={"t1": 1, "u": 1})
    world.enter("a", "u")
    assert world.group.living_subscriptions() == {"u"}
    world.enter("b", subscribed_topic_regex="t.*")
    assert world.group.living_subscriptions() == {"u", "t1"}
    world.enter("c", subscribed_topic_regex="v.*")
    assert world.group.living_subscriptions() is None, "patterns are matched at most every ten seconds"


def test_commits_are_by_the_members_epoch():
    group = ConsumerWorld()
    group.enter("a")
    check = group.group.check_commit
    assert check("a", 2, 9) == ErrorCode.NONE
    assert check("a", 1, 9) == ErrorCode.STALE_MEMBER_EPOCH
    assert check("a", 2, 8) == ErrorCode.UNSUPPORTED_VERSION
    assert check("b", 2, 9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert check("", -1, 9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert check("", -1, 9, is_transaction=True) == ErrorCode.NONE
    assert group.group.check_fetch(None, -1) == ErrorCode.NONE
    assert group.group.check_fetch("a", 2) == ErrorCode.NONE
    assert group.group.check_fetch("a", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert group.group.check_fetch("b", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    group.beat("a", -1)
    assert group.group.check_commit("", -1, 9) == ErrorCode.NONE


def test_an_empty_group_is_deleted_and_nothing_is_left():
    world = ConsumerWorld()
    world.enter("a", subscribed_topic_regex="t.*")
    effects = world.effects()
    assert world.groups.delete_group(GROUP, effects) == ErrorCode.NON_EMPTY_GROUP
    world.beat("a", -1)
    effects = world.effects()
    assert world.groups.delete_group(GROUP, effects) == ErrorCode.NONE
    world.carry_out(effects)
    assert GROUP not in world.groups.by_id
    assert not world.reload().groups.by_id


def test_a_large_target_is_computed_by_a_worker_and_members_that_join_meanwhile_are_in_the_next():
    """Members continue with their current target; members that have left receive nothing."""
    world = ConsumerWorld(topics={"t": 4_000})
    world.holds_work = True
    world.enter("a")
    second = world.enter("b")
    assert (second.member_epoch, world.assigned(second)) == (2, {})
    world.pass_time(0)
    assert len(world.work) == 1
    world.enter("c")
    world.beat("b", -1)
    world.pass_time(0)
    assert len(world.work) == 1, "one at a time"
    world.do_work()
    assert (world.group.target_epoch, world.group.group_epoch) == (3, 5)
    assert set(world.group.targets) == {"a"}
    world.settle("a", "c", rounds=1)
    world.pass_time(0)
    world.do_work()
    world.settle("a", "c")
    assert world.group.state is ConsumerGroupState.STABLE
    assert [len(world.group.members[each].assigned[world.ids()]) for each in ("a", "c")] == [2_000, 2_000]
    world.check_reload()


def test_a_large_target_is_compared_one_member_at_a_time():
    """Five thousand members would block the loop for 50 ms. A member that leaves between two steps receives nothing."""
    world = ConsumerWorld(topics={"t": 4_000})
    world.holds_work = True
    members = [f"member-{number}" for number in range(10)]
    for member_id in members:
        world.enter(member_id)
    world.pass_time(0)
    [work] = world.work
    world.work = []
    effects = world.effects()
    work.on_done(work.call(), effects)
    assert not effects.records
    [job] = effects.jobs
    steps = iter(job.steps)
    for _ in range(5):
        next(steps)
    world.beat(members[0], -1)
    world.beat(members[9], -1)
    assert len(list(steps)) == 5
    after = world.effects()
    job.on_done(after)
    world.carry_out(after)
    assert set(world.group.targets) == set(members[1:9])
    world.check_reload()


def test_a_target_of_a_group_that_is_gone_is_dropped():
    world = ConsumerWorld(topics={"t": 4_000})
    world.holds_work = True
    world.enter("a")
    world.enter("b")
    world.pass_time(0)
    assert world.work
    world.beat("a", -1)
    world.beat("b", -1)
    effects = world.effects()
    world.groups.delete_group(GROUP, effects)
    world.carry_out(effects)
    world.do_work()
    assert GROUP not in world.groups.by_id


def test_a_member_that_has_not_received_its_epoch_commits_for_what_it_keeps():
    """Its epoch is 3, its client has 2, in which it had all partitions; two of them now belong to another member."""
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    world.settle("a", "b")
    topic = world.ids()
    kept = world.group.members["a"].assigned[topic]
    assert {world.group.members["a"].epoch_of(topic, number) for number in kept} == {2}
    check = world.group.check_commit
    assert check("a", 2, 9, [(topic, number) for number in kept]) == ErrorCode.NONE
    assert check("a", 1, 9, [(topic, number) for number in kept]) == ErrorCode.STALE_MEMBER_EPOCH
    assert check("a", 2, 9, [(topic, number) for number in range(4)]) == ErrorCode.STALE_MEMBER_EPOCH
    assert check("a", 4, 9, [(topic, number) for number in kept]) == ErrorCode.STALE_MEMBER_EPOCH
    given = world.group.members["b"].assigned[topic]
    assert check("b", 2, 9, [(topic, number) for number in given]) == ErrorCode.STALE_MEMBER_EPOCH
    world.check_reload()
