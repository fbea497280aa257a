"""Members of consumer groups as values: their records, the owners of partitions, and the way to a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.modern_member import (
    FEW,
    NO_EPOCHS,
    NOTHING,
    ModernMember,
    assignment_of,
    compact_epochs,
    target_record,
)
from lowtide.broker.coordinator.modern.partition_owners import PartitionOwners
from lowtide.broker.coordinator.modern.reconciliation import Reconciliation, reconcile
from lowtide.protocol.consumer_group_records import ClassicMemberMetadata, CurrentTopicPartitions, MemberCurrent

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS

Parts = Mapping[bytes, set[int]]


def parts(given: Parts | None) -> dict[bytes, frozenset[int]]:
    return {topic: frozenset(numbers) for topic, numbers in (given or {}).items()}


def member(assigned: Parts | None = None, revoking: Parts | None = None, **fields: Any) -> ModernMember:
    fields.setdefault("member_id", "m")
    return ModernMember(assigned=parts(assigned), revoking=parts(revoking), **fields)


# ------------------------------------------------------------------ what a member has
def test_a_member_holds_what_it_is_to_give_back_until_it_has() -> None:
    one = member({A: {0, 1}, B: {0}}, {A: {2}, C: {5}})
    assert one.held == parts({A: {0, 1, 2}, B: {0}, C: {5}})
    assert [one.holds(A, number) for number in range(4)] == [True, True, True, False]
    assert (one.holds(C, 5), one.holds(C, 0), one.holds(B, 5)) == (True, False, False)
    assert one.assigned == parts({A: {0, 1}, B: {0}})
    other = member({A: {0}})
    assert other.held is other.assigned


def test_an_empty_pattern_is_none() -> None:
    assert [member(topic_regex=text).pattern for text in (None, "", "a.*")] == [None, None, "a.*"]


@pytest.mark.parametrize(
    ("state", "epoch", "expected"), [(STABLE, 5, True), (STABLE, 4, False), (STABLE, 6, False), (UNRELEASED, 5, False)]
)
def test_a_member_is_reconciled_when_it_is_stable_in_the_epoch_of_its_target(
    state: MemberState, epoch: int, expected: bool
) -> None:
    assert member(state=state, member_epoch=epoch).is_reconciled_to(5) is expected


SAID: dict[str, Any] = {
    "topic_names": frozenset({"t"}),
    "topic_regex": "a.*",
    "instance_id": "i",
    "rack_id": "r",
    "client_id": "c",
    "client_host": "/h",
    "rebalance_timeout_ms": 5,
    "server_assignor": "range",
    "classic": ClassicMemberMetadata(session_timeout_ms=1, supported_protocols=[]),
}


@pytest.mark.parametrize("name", SAID)
def test_each_word_of_a_member_counts(name: str) -> None:
    one = member(**SAID)
    other = msgspec.structs.replace(one, **{name: frozenset() if name == "topic_names" else None})
    assert not one.has_same_subscription(other)
    assert one.has_same_subscription(member({A: {1}}, member_epoch=9, **SAID)), "what it has is another record"
    assert ModernMember("m").with_subscription(other.subscription_record()) == other


# ------------------------------------------------------------------ records
def test_what_a_member_has_is_the_same_after_a_load() -> None:
    epochs = {A: {0: 3, 1: 4}, B: {7: 4}}
    one = member({A: {0, 1}}, {B: {7}}, member_epoch=4, previous_epoch=3, state=UNREVOKED, epochs=epochs)
    record = one.current_record()
    assert record.assigned_partitions == [
        CurrentTopicPartitions(topic_id=A, partitions=[0, 1], assignment_epochs=[3, 4])
    ]
    assert record.partitions_pending_revocation == [
        CurrentTopicPartitions(topic_id=B, partitions=[7], assignment_epochs=[4])
    ]
    assert member().with_current(record) == one


def test_a_member_that_is_about_to_be_out_has_nothing() -> None:
    one = member({A: {0}}, {B: {7}}, member_epoch=4, previous_epoch=3, state=UNREVOKED, epochs=4)
    assert one.with_current(None) == member(member_epoch=-1, previous_epoch=-1)


def current(epoch: int, *rows: tuple[bytes, list[int], list[int] | None]) -> MemberCurrent:
    assigned = [
        CurrentTopicPartitions(topic_id=topic, partitions=numbers, assignment_epochs=given)
        for topic, numbers, given in rows
    ]
    return MemberCurrent(
        member_epoch=epoch,
        previous_member_epoch=0,
        state=0,
        assigned_partitions=assigned,
        partitions_pending_revocation=[],
    )


@pytest.mark.parametrize(
    ("epoch", "given", "epochs"),
    [
        (5, [3, 3], 3),
        (5, [3, 4], {A: {0: 3, 1: 4}}),
        (5, None, 5),
        (5, [3], 5),
        (-1, None, 0),
        (0, None, 0),
        (1, None, 1),
    ],
)
def test_partitions_without_epochs_were_given_in_that_of_the_member(
    epoch: int, given: list[int] | None, epochs: Any
) -> None:
    """Older coordinators keep none."""
    assert member().with_current(current(epoch, (A, [0, 1], given))).epochs == epochs


def test_partitions_have_the_epoch_in_which_they_were_given() -> None:
    one = member({A: {0}}, {B: {1}}, epochs=4)
    assert [one.epoch_of(topic, number) for topic, number in ((A, 0), (B, 1), (A, 1), (C, 0))] == [4, 4, None, None]
    other = member({A: {0, 1}}, epochs={A: {0: 3, 1: 4}})
    assert [other.epoch_of(topic, number) for topic, number in ((A, 0), (A, 1), (A, 2), (B, 0))] == [3, 4, None, None]


def test_what_a_member_has_of_its_target_is_kept_once() -> None:
    target, record = parts({A: {0, 1}}), current(5, (A, [0, 1], None))
    assert member().with_current(record, target).assigned is target
    assert member().with_current(record, parts({A: {0}})).assigned == target


def test_partitions_without_an_epoch_have_that_of_the_member_in_its_record() -> None:
    record = member({A: {0, 1}}, member_epoch=9, epochs={A: {0: 3}}).current_record()
    assert record.assigned_partitions[0].assignment_epochs == [3, 9]


def test_equal_assignments_are_equal() -> None:
    many = list(range(FEW + 1))
    assert assignment_of([(A, [1, 0]), (B, []), (A, [2]), (C, many)]) == parts({A: {0, 1, 2}, C: set(many)})
    assert assignment_of([(A, [])]) is NOTHING
    target = parts({A: {2, 1}, B: {0}})
    assert [row.partitions for row in target_record(target).topic_partitions] == [[1, 2], [0]]


def test_one_number_stands_for_equal_epochs() -> None:
    assert compact_epochs({A: {0: 3, 1: 3}, B: {0: 3}}) == 3
    assert compact_epochs({A: {0: 3}, B: {0: 4}}) == {A: {0: 3}, B: {0: 4}}
    assert compact_epochs({}) == compact_epochs({A: {}}) == NO_EPOCHS


# ------------------------------------------------------------------ owners
class Group:
    """Members and the owners of their partitions."""

    def __init__(self) -> None:
        self.members: dict[str, ModernMember] = {}
        self.owners = PartitionOwners(self.members)

    def set(self, name: str, assigned: Parts | None = None, revoking: Parts | None = None) -> None:
        """Applies a record of a member's assignment; None is its tombstone."""
        old = self.members.pop(name, None)
        new = member(assigned, revoking, member_id=name) if assigned is not None else None
        if new is not None:
            self.members[name] = new
        self.owners.on_changed(old, new)

    def owned(self, *places: tuple[bytes, int]) -> list[bool]:
        return [self.owners.is_owned(*place) for place in places]


def test_owners_follow_what_members_have() -> None:
    group = Group()
    assert (group.owners.by_topic, group.owned((A, 0))) == ({}, [False])
    group.set("a", {A: {0, 1}}, {B: {0}})
    assert group.owners.by_topic == {A: {0: "a", 1: "a"}, B: {0: "a"}}
    assert group.owned((A, 0), (B, 0), (B, 1)) == [True, True, False]
    group.set("b", {A: {2}})
    assert group.owners.by_topic == {A: {0: "a", 1: "a", 2: "b"}, B: {0: "a"}}
    assert group.owned((A, 0), (A, 2), (B, 0), (A, 3), (C, 0)) == [True, True, True, False, False]
    group.set("a", {A: {0}})
    assert group.owners.by_topic == {A: {0: "a", 2: "b"}}
    group.set("c", {C: {0}})
    assert group.owners.by_topic == {A: {0: "a", 2: "b"}, C: {0: "c"}}
    group.set("b")
    assert group.owners.by_topic == {A: {0: "a"}, C: {0: "c"}}
    group.set("c")
    assert group.owners.by_topic == {A: {0: "a"}}
    group.set("a", {A: {5}})
    assert group.owners.by_topic == {A: {5: "a"}}


@pytest.mark.parametrize("field", ["assigned", "revoking"])
def test_either_of_what_a_member_has_may_change(field: str) -> None:
    group = Group()
    group.set("a", {A: {0}}, {B: {0}})
    group.set("b", {})
    old = group.members["a"]
    group.members["a"] = msgspec.structs.replace(old, **{field: parts({C: {0}})})
    group.owners.on_changed(old, group.members["a"])
    assert group.owners.by_topic == ({C: {0: "a"}, B: {0: "a"}} if field == "assigned" else {A: {0: "a"}, C: {0: "a"}})


def test_a_partition_that_was_given_on_stays_with_its_new_owner() -> None:
    """A log may have lost the record between the two."""
    group = Group()
    group.set("a", {A: {0, 1}, B: {0}})
    group.set("b", {A: {0}, B: {0}})
    group.set("a", {C: {0}})
    assert group.owners.by_topic == {A: {0: "b"}, B: {0: "b"}, C: {0: "a"}}
    group.set("b", {})
    group.set("a", {A: {1}, B: {1}, C: {1}})
    assert group.owners.by_topic == {A: {1: "a"}, B: {1: "a"}, C: {1: "a"}}


def test_a_member_whose_topics_have_other_owners_releases_the_rest() -> None:
    group = Group()
    group.set("a", {A: {0}, B: {0}})
    group.set("b", {A: {0}})
    group.set("b", {})
    assert group.owners.by_topic == {B: {0: "a"}}
    group.set("a", {})
    assert group.owners.by_topic == {}


# ------------------------------------------------------------------ reconciliation
def facts(
    target: Parts, *, owned: Parts | None = None, taken: Parts | None = None, topics: str = "ABC", **more: Any
) -> Reconciliation:
    """A target of epoch 5; `taken` is what others have, `topics` what the member consumes."""
    subscribed = frozenset({"A": A, "B": B, "C": C}[name] for name in topics)
    more = {"target_epoch": 5, "subscription_changed": False} | more
    return Reconciliation(
        target=parts(target),
        owned=None if owned is None else parts(owned),
        subscribed=lambda: subscribed,
        is_owned=lambda topic, number: number in (taken or {}).get(topic, ()),
        **more,
    )


def answered(one: ModernMember | None) -> tuple[Any, ...]:
    assert one is not None
    return one.state, one.member_epoch, one.previous_epoch, one.assigned, one.revoking, one.epochs


def test_a_member_at_its_target_stays_as_it_is() -> None:
    one = member({A: {0}}, member_epoch=5)
    assert reconcile(one, facts({A: {0}, B: {0}})) is one


def test_a_member_gets_what_is_free() -> None:
    one = member({A: {0}}, member_epoch=4, previous_epoch=3, epochs=4)
    moved = reconcile(one, facts({A: {0, 1}, B: {0}}))
    assert answered(moved) == (STABLE, 5, 4, parts({A: {0, 1}, B: {0}}), NOTHING, {A: {0: 4, 1: 5}, B: {0: 5}})


def test_a_member_waits_for_what_others_have() -> None:
    one = member({A: {0}}, member_epoch=4, epochs=4)
    moved = reconcile(one, facts({A: {0, 1, 2}, B: {0}}, taken={A: {1}}))
    assert answered(moved) == (UNRELEASED, 5, 4, parts({A: {0, 2}, B: {0}}), NOTHING, {A: {0: 4, 2: 5}, B: {0: 5}})
    assert moved is not None
    again = reconcile(moved, facts({A: {0, 1, 2}, B: {0}}))
    assert answered(again)[:4] == (STABLE, 5, 5, parts({A: {0, 1, 2}, B: {0}}))


@pytest.mark.parametrize("owned", [None, {A: {1}}, {A: {0, 1}, B: {0}}])
def test_a_member_gives_back_before_it_gets(owned: Parts | None) -> None:
    one = member({A: {0, 1}}, member_epoch=4, previous_epoch=3, epochs=4)
    moved = reconcile(one, facts({A: {0}, B: {0}}, owned=owned))
    assert answered(moved) == (UNREVOKED, 4, 4, parts({A: {0}}), parts({A: {1}}), 4)


@pytest.mark.parametrize("owned", [{}, {A: {0}}, {B: {1}}])
def test_a_member_that_has_given_back_already_gets_at_once(owned: Parts) -> None:
    one = member({A: {0, 1}}, member_epoch=4, previous_epoch=3, epochs=4)
    moved = reconcile(one, facts({A: {0}, B: {0}}, owned=owned))
    assert answered(moved) == (STABLE, 5, 4, parts({A: {0}, B: {0}}), NOTHING, {A: {0: 4}, B: {0: 5}})


@pytest.mark.parametrize("owned", [None, {A: {1}}])
def test_a_member_that_is_asked_to_give_back_waits_until_it_says_that_it_has(owned: Parts | None) -> None:
    one = member({A: {0}}, {A: {1}}, member_epoch=4, state=UNREVOKED, epochs=4)
    assert reconcile(one, facts({A: {0}, B: {0}}, owned=owned)) is one


def test_a_member_that_has_given_back_arrives() -> None:
    one = member({A: {0}}, {A: {1}}, member_epoch=4, previous_epoch=3, state=UNREVOKED, epochs=4)
    moved = reconcile(one, facts({A: {0}}, owned={A: {0}}))
    assert answered(moved) == (STABLE, 5, 4, parts({A: {0}}), NOTHING, 4)


@pytest.mark.parametrize(("target_epoch", "epoch"), [(5, 3), (3, 3), (2, 2)])
def test_a_member_that_must_give_back_more_is_one_epoch_further(target_epoch: int, epoch: int) -> None:
    one = member({A: {0}, B: {0}}, {A: {1}}, member_epoch=2, state=UNREVOKED, epochs=2)
    moved = reconcile(one, facts({A: {0}}, owned={A: {0}, B: {0}}, target_epoch=target_epoch))
    assert answered(moved) == (UNREVOKED, epoch, 2, parts({A: {0}}), parts({B: {0}}), 2)


def test_what_a_member_gave_back_and_gets_again_is_new_to_it() -> None:
    """The partition counts as its own until the record says that it isn't."""
    one = member({A: {0}}, {A: {1}}, member_epoch=4, state=UNREVOKED, epochs=4)
    moved = reconcile(one, facts({A: {0, 1}}, owned={A: {0}}, taken={A: {0, 1}}))
    assert answered(moved) == (STABLE, 5, 4, parts({A: {0, 1}}), NOTHING, {A: {0: 4, 1: 5}})


def test_what_a_member_does_not_consume_is_none_of_its_target() -> None:
    one = member({A: {0}, B: {0}}, member_epoch=4, epochs=4)
    moved = reconcile(one, facts({A: {0}, B: {0}, C: {0}}, owned={A: {0}}, topics="A"))
    assert answered(moved) == (STABLE, 5, 4, parts({A: {0}}), NOTHING, 4)


def test_a_subscription_that_changed_takes_away_before_there_is_a_target() -> None:
    one = member({A: {0}, B: {0}}, member_epoch=5, epochs=4)
    given = {"topics": "A", "subscription_changed": True}
    moved = reconcile(one, facts({A: {0}, B: {0}}, owned={A: {0}, B: {0}}, **given))
    assert answered(moved) == (UNREVOKED, 5, 0, parts({A: {0}}), parts({B: {0}}), 4)
    moved = reconcile(one, facts({A: {0}, B: {0}}, owned={A: {0}}, **given))
    assert answered(moved) == (STABLE, 5, 0, parts({A: {0}}), NOTHING, 4)
    assert reconcile(one, facts({}, topics="AB", subscription_changed=True)) is one
    assert reconcile(one, facts({}, topics="A", subscription_changed=False)) is one


def test_a_subscription_that_changes_takes_away_more_from_a_member_that_is_giving_back() -> None:
    one = member({A: {0}, B: {0}}, {A: {1}, B: {1}, C: {1}}, member_epoch=4, state=UNREVOKED, epochs=4)
    moved = reconcile(one, facts({A: {0}}, topics="A", subscription_changed=True))
    assert answered(moved) == (UNREVOKED, 4, 0, parts({A: {0}}), parts({A: {1}, B: {0, 1}, C: {1}}), 4)


@pytest.mark.parametrize("owned", [None, {A: {0}}])
def test_a_member_whose_state_is_unknown_is_fenced_unless_it_has_nothing(owned: Parts | None) -> None:
    one = member({A: {0}}, member_epoch=4, state=MemberState.UNKNOWN, epochs=4)
    assert reconcile(one, facts({A: {0, 1}}, owned=owned)) is None
    moved = reconcile(one, facts({B: {0}}, owned={}))
    assert answered(moved) == (STABLE, 5, 4, parts({B: {0}}), NOTHING, 5)
