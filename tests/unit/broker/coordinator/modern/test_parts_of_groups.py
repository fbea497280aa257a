"""The parts of modern groups: the topics they see, their times, the records of decisions, and targets."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from lowtide.broker.config.keys_of_groups import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    SHARE_ASSIGNMENT_INTERVAL,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_SESSION_TIMEOUT,
)
from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.consumer_groups import ConsumerGroups
from lowtide.broker.coordinator.modern.group_decision import GroupDecision
from lowtide.broker.coordinator.modern.group_times import GroupTimes
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_member import ModernMember, target_record
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.broker.coordinator.modern.subscriptions import ResolvedPattern
from lowtide.broker.coordinator.modern.target_assignment import DIFFERENT_MAX, HEAVY, ConsumerTargets, encode_in_steps
from lowtide.broker.coordinator.modern.topic_view import NoCluster, TopicView
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.consumer_group_records import (
    ConsumerGroupChange,
    GroupEpoch,
    RecordType,
    TargetAssignmentEpoch,
    encode_change,
)
from lowtide.protocol.group_records import GroupMetadata
from lowtide.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic

IDS = {name: name.encode() * 16 for name in "tuvw"}


def topic_of(name: str, *replicas: tuple[int, ...], topic_id: bytes | None = None) -> TopicImage:
    """A topic with a partition for each of these sets of replicas."""
    partitions = tuple(
        PartitionImage(
            replicas=row, isr=row, isr_epochs=row, leader=row[0], leader_epoch=0, partition_epoch=0, modify_revision=1
        )
        for row in replicas
    )
    return TopicImage(name=name, topic_id=topic_id or IDS[name], partitions=partitions, configs={}, modify_revision=1)


class Holder:
    """Has the image that a test gives it."""

    def __init__(self, *topics: TopicImage, **racks: str | None) -> None:
        self.image = MetadataImage(revision=3, known_brokers=brokers(**racks))
        self.view = TopicView(self)
        self.show(*topics)

    def show(self, *topics: TopicImage, **fields: Any) -> None:
        by_name = {topic.name: topic for topic in topics}
        names = {topic.topic_id: topic.name for topic in topics}
        self.image = msgspec.structs.replace(self.image, topics=by_name, topic_names=names, **fields)


def brokers(**racks: str | None) -> dict[int, BrokerImage]:
    return {int(name[1:]): BrokerImage(int(name[1:]), 1, (), rack=rack) for name, rack in racks.items()}


# ------------------------------------------------------------------ topics
def test_topics_that_are_not_there_are_passed_over() -> None:
    view = Holder(topic_of("t", (1,), (1,)), topic_of("u", (1,))).view
    assert view.ids_of(["t", "missing", "u"]) == {IDS["t"], IDS["u"]}
    assert view.partition_counts([IDS["t"], IDS["w"], IDS["u"]]) == {IDS["t"]: 2, IDS["u"]: 1}
    assert TopicView(NoCluster()).ids_of(["t"]) == frozenset()


def test_a_commit_names_topics_or_their_ids() -> None:
    def row(name: str, topic_id: bytes, *numbers: int) -> OffsetCommitRequestTopic:
        rows = [
            OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
            for number in numbers
        ]
        return OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=rows)

    view = Holder(topic_of("t", (1,)), topic_of("u", (1,))).view
    none = bytes(16)
    rows = [row("t", none, 0, 1), row("missing", none, 2), row("", IDS["w"], 3), row("u", none, 4)]
    assert list(view.places(rows)) == [(IDS["t"], 0), (IDS["t"], 1), (IDS["w"], 3), (IDS["u"], 4)]


def test_each_image_has_a_number_of_its_own() -> None:
    holder = Holder()
    first = holder.view.image_number
    assert first > 0, "0 stands for no image"
    assert holder.view.image_number == first
    holder.show()
    second = holder.view.image_number
    holder.show()
    assert first < second < holder.view.image_number


def test_the_revision_of_the_last_new_topic_is_known() -> None:
    holder = Holder()
    assert holder.view.new_topics_revision == 3
    topic = topic_of("t", (1,))
    holder.show(topic, revision=7)
    holder.view.note_changes(ImageDelta())
    assert holder.view.new_topics_revision == 3
    holder.view.note_changes(ImageDelta(topics_created=(topic,)))
    assert holder.view.new_topics_revision == 7


def hash_of(*topics: TopicImage, names: str = "tu", **racks: str | None) -> int:
    return Holder(*topics, **racks).view.hash_of(names)


def test_the_hash_of_topics_changes_with_them() -> None:
    one, other = topic_of("t", (1,), (2,)), topic_of("u", (1,))
    hashes = [
        hash_of(one),
        hash_of(one, other),
        hash_of(topic_of("t", (1,))),
        hash_of(topic_of("t", (1,), (2,), topic_id=IDS["u"])),
        hash_of(topic_of("u", (1,), (2,), topic_id=IDS["t"])),
        hash_of(one, b1="x", b2="y"),
        hash_of(one, b1="y", b2="x"),
        hash_of(topic_of("t", (1, 2), (2,)), b1="x", b2="y"),
    ]
    assert len(set(hashes)) == len(hashes)
    assert 0 not in hashes
    assert any(value < 0 for value in hashes), "it fills a signed number of 64 bits"


def test_the_hash_of_topics_is_the_same_while_they_are() -> None:
    one, other = topic_of("t", (1, 2)), topic_of("u", (1,))
    assert hash_of(one, other, names="tu") == hash_of(other, one, names="uwt")
    assert hash_of(names="tu") == hash_of(one, names="") == 0
    racks: dict[str, str | None] = {"b1": "x", "b2": "y"}
    assert hash_of(one, **racks) == hash_of(topic_of("t", (2, 1)), **racks), "the order of replicas is no place"
    assert hash_of(topic_of("t", (1, 3)), **racks) == hash_of(topic_of("t", (1,)), b1="x", b3=None)


def test_the_hash_follows_the_image_and_is_computed_once() -> None:
    topic, racks = topic_of("t", (1,)), brokers(b1="x")
    holder = Holder(topic, b1="x")
    first = holder.view.hash_of("t")
    kept = holder.view._hashes["t"][2]
    assert holder.view.hash_of("t") == first
    assert holder.view._hashes["t"][2] is kept
    holder.show(topic_of("t", (1,), (1,)))
    second = holder.view.hash_of("t")
    holder.show(topic, known_brokers=racks)
    assert holder.view.hash_of("t") == first != second
    holder.show(topic, known_brokers=brokers(b1="y"))
    assert holder.view.hash_of("t") not in (first, second)
    holder.view.note_changes(ImageDelta(topics_deleted=(topic, topic_of("u", (1,)))))
    assert holder.view._hashes == {}


# ------------------------------------------------------------------ times
SETTINGS = GroupSettings(
    consumer_session_timeout_ms=50, consumer_session_timeout_min_ms=40, consumer_session_timeout_max_ms=60,
    consumer_heartbeat_interval_ms=5, consumer_heartbeat_interval_min_ms=4, consumer_heartbeat_interval_max_ms=6,
    consumer_assignment_interval_ms=500, consumer_assignment_interval_min_ms=400,
    consumer_assignment_interval_max_ms=600,
    share_session_timeout_ms=51, share_session_timeout_min_ms=41, share_session_timeout_max_ms=61,
    share_heartbeat_interval_ms=15, share_heartbeat_interval_min_ms=14, share_heartbeat_interval_max_ms=16,
    share_assignment_interval_ms=501, share_assignment_interval_min_ms=401, share_assignment_interval_max_ms=601,
)  # fmt: skip


@pytest.mark.parametrize("text", [None, "45", "1", "999999", "soon", "-5"])
@pytest.mark.parametrize(
    ("group_type", "names", "bounds"),
    [
        (
            GroupType.CONSUMER,
            (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL),
            ((40, 50, 60), (4, 5, 6), (400, 500, 600)),
        ),
        (
            GroupType.SHARE,
            (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL, SHARE_ASSIGNMENT_INTERVAL),
            ((41, 51, 61), (14, 15, 16), (401, 501, 601)),
        ),
    ],
)
def test_times_of_a_group_are_its_own_within_the_bounds_of_the_broker(
    text: str | None, group_type: GroupType, names: tuple[str, ...], bounds: tuple[tuple[int, int, int], ...]
) -> None:
    configs = {} if text is None else dict.fromkeys(names, text)
    image = MetadataImage(group_configs={"g": ConfigImage(configs=configs)})
    made = GroupTimes(SETTINGS, SimpleNamespace(image=image), group_type)
    expected = [
        default if text in (None, "soon", "-5") else min(max(int(text or 0), least), most)
        for least, default, most in bounds
    ]
    assert [made.session_timeout_ms("g"), made.heartbeat_interval_ms("g"), made.assignment_interval_ms("g")] == expected
    assert made.session_timeout_ms("other") == bounds[0][1]


def test_a_group_is_found_by_its_id_and_type() -> None:
    groups = GroupsById()
    for each in (ClassicGroup("classic", wall_ms=0), ConsumerGroup("consumer"), ShareGroup("share")):
        groups[each.group_id] = each
    for find in (groups.find_classic, groups.find_consumer, groups.find_share):
        found = [name for name in ("classic", "consumer", "share", "missing") if find(name) is not None]
        assert [f"find_{name}" for name in found] == [find.__name__]


# ------------------------------------------------------------------ decisions
def kinds(decision: GroupDecision) -> list[tuple[Any, str, bool]]:
    """Returns, for each record of a decision, its subject, its member, and whether it is a tombstone."""
    assert {change.group for change in decision.changes} == {"g"}
    return [(change.kind, change.name, change.value is None) for change in decision.changes]


MEMBER, CURRENT, TARGET = RecordType.MEMBER, RecordType.CURRENT, RecordType.TARGET


def test_the_records_of_a_member_are_kept_and_taken_back() -> None:
    group = ConsumerGroup("g")
    group.targets["old"] = {IDS["t"]: frozenset({2, 1})}
    old, new = ModernMember("old"), ModernMember("new", member_epoch=4, client_id="c")
    decision = GroupDecision(group)
    decision.replace(old, new)
    gone = [(CURRENT, "old", True), (TARGET, "old", True), (MEMBER, "old", True)]
    assert kinds(decision) == [*gone, (MEMBER, "new", False), (TARGET, "new", False), (CURRENT, "new", False)]
    said, target, current = (change.value for change in decision.changes[3:])
    assert (said, current) == (new.subscription_record(), new.current_record())
    assert target == target_record({IDS["t"]: frozenset({1, 2})})


@pytest.mark.parametrize("has_topics_record", [False, True])
def test_the_topics_that_an_old_coordinator_kept_go_with_the_next_epoch(has_topics_record: bool) -> None:
    group = ConsumerGroup("g")
    group.has_topics_record = has_topics_record
    decision = GroupDecision(group)
    decision.keep_epoch(5, 77)
    assert decision.changes[0].value == GroupEpoch(epoch=5, metadata_hash=77)
    assert kinds(decision) == [
        (RecordType.GROUP, "", False),
        *([(RecordType.TOPICS, "", True)] if has_topics_record else []),
    ]


def test_a_group_is_taken_back_with_all_its_records() -> None:
    group = ConsumerGroup("g")
    group.members["m"] = ModernMember("m")
    group.targets = {"m": {}, "gone": {}}
    group.subscriptions.note_pattern("a.*", ResolvedPattern(frozenset(), 0, 0))
    decision = GroupDecision(group)
    decision.remove_group()
    rows = [
        (CURRENT, "m"),
        (CURRENT, "gone"),
        (TARGET, "m"),
        (TARGET, "gone"),
        (RecordType.TARGET_EPOCH, ""),
        (MEMBER, "m"),
    ]
    rows += [(RecordType.PATTERN, "a.*"), (RecordType.TOPICS, ""), (RecordType.GROUP, "")]
    assert kinds(decision) == [(kind, name, True) for kind, name in rows]


@pytest.mark.parametrize(("barrier", "record", "expected"), [(-1, 5, 5), (7, 5, 7), (-1, -1, -1)])
def test_a_decision_without_records_relies_on_those_of_its_group(barrier: int, record: int, expected: int) -> None:
    group, effects = ConsumerGroup("g"), Effects(0, 0)
    group.last_record_offset, effects.barrier = record, barrier
    GroupDecision(group).carry_out(effects)
    assert (effects.changes, effects.barrier) == ([], expected)


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_decision_is_carried_out_in_its_order(takes_over: bool) -> None:
    group, effects = ConsumerGroup("g"), Effects(0, 0)
    group.last_record_offset = 5
    decision = GroupDecision(group, is_new=True, takes_over=ClassicGroup("g", wall_ms=0) if takes_over else None)
    assert (decision.is_new, decision.may_see, decision.resolves) == (True, None, frozenset())
    decision.remove("m")
    decision.carry_out(effects)
    assert effects.changes == [*([GroupMetadata("g", None)] if takes_over else []), *decision.changes]
    assert effects.barrier == -1, "its records wait for those before them"


# ------------------------------------------------------------------ targets
def targets(*topics: TopicImage) -> ConsumerTargets:
    return ConsumerTargets(Holder(*topics).view, cast("Any", None), GroupsById())


def group_of(*members: ModernMember) -> ConsumerGroup:
    group = ConsumerGroup("g")
    for member in members:
        group.members[member.member_id] = member
        group.subscriptions.replace(None, member)
    return group


@pytest.mark.parametrize(("members", "partitions"), [(10, HEAVY - 10), (HEAVY - 10, 10), (100, HEAVY - 100)])
@pytest.mark.parametrize("more", [0, 1])
def test_a_target_is_heavy_by_members_and_partitions(members: int, partitions: int, more: int) -> None:
    topic = topic_of("t", *[(1,)] * (partitions + more))
    group = group_of(*(ModernMember(str(number), topic_names=frozenset({"t"})) for number in range(members)))
    assert targets(topic).is_heavy(group) is bool(more)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("members", [10, DIFFERENT_MAX + 5])
@pytest.mark.parametrize("different", ["names", "patterns"])
def test_different_subscriptions_make_a_target_heavier(different: str, members: int, more: int) -> None:
    """By their number, up to a limit."""
    partitions = HEAVY // min(members, DIFFERENT_MAX) - members + more
    rows = [ModernMember(str(number), topic_names=frozenset({"t"})) for number in range(members)]
    if different == "names":
        rows[0] = ModernMember("0", topic_names=frozenset({"missing"}))
    group = group_of(*rows)
    if different == "patterns":
        group.subscriptions.note_pattern("a.*", ResolvedPattern(frozenset(), 0, 0))
    assert targets(topic_of("t", *[(1,)] * partitions)).is_heavy(group) is bool(more)


def test_a_target_is_kept_as_what_has_changed() -> None:
    one, other, static = (ModernMember(name, topic_names=frozenset({"t"})) for name in ("one", "other", "static"))
    group = group_of(one, other, static)
    group.targets = {"one": {IDS["t"]: frozenset({0})}, "other": {IDS["u"]: frozenset({0})}}
    made = {"one": {IDS["t"]: (0,)}, "other": {IDS["t"]: (1, 2), IDS["u"]: ()}, "static": {}}
    changed = {"other": {IDS["t"]: frozenset({1, 2})}, "static": {}}
    decision = GroupDecision(group)
    assert ConsumerGroups._keep_target(decision, 7, made, 1_000) == changed
    rows = [ConsumerGroupChange(TARGET, "g", name, target_record(target)) for name, target in changed.items()]
    value = TargetAssignmentEpoch(assignment_epoch=7, assignment_timestamp=1_000)
    assert decision.changes == [*rows, ConsumerGroupChange(RecordType.TARGET_EPOCH, "g", "", value)]
    records: list[Any] = []
    assert len(list(encode_in_steps(group, made, records))) == 3
    assert records == [(change, encode_change(change)) for change in rows]


def test_a_target_is_made_of_what_members_consume_and_have() -> None:
    """A static member has the target of the instance whose place it takes."""
    rows = (
        ModernMember("a", topic_names=frozenset({"t", "missing"})),
        ModernMember("b", topic_names=frozenset({"t", "u"}), instance_id="i", rack_id="r"),
        ModernMember("c", topic_names=frozenset({"t"})),
    )
    group = group_of(*rows)
    group.static_members["i"] = "old"
    group.targets = {"a": {IDS["t"]: frozenset({1})}, "old": {IDS["u"]: frozenset({0})}}
    view = targets(topic_of("t", (1,), (1,)), topic_of("u", (1,)), topic_of("v", (1,)))
    members, counts = cast("partial[Any]", view.prepare(group, group.members, "range")).args
    assert counts == {IDS["t"]: 2, IDS["u"]: 1}
    assert {name: member.topics for name, member in members.items()} == {
        "a": {IDS["t"]}, "b": {IDS["t"], IDS["u"]}, "c": {IDS["t"]}
    }  # fmt: skip
    assert {name: member.assigned for name, member in members.items()} == {
        "a": group.targets["a"], "b": group.targets["old"], "c": {}
    }  # fmt: skip
    assert (members["b"].instance_id, members["b"].rack_id) == ("i", "r")
