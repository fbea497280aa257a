"""A classic group as a value: its questions in each state, what it counts, and the protocol of its generations."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.classic_record import group_of_record, group_record
from lowtide.broker.coordinator.classic.group_state import GroupEvent, GroupState
from lowtide.broker.coordinator.classic.rebalancing import _elect_joined_leader
from lowtide.broker.coordinator.member_memory import MEMBER_BYTES, MemberMemory, bytes_of_member
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.group_records import GroupMetadataValue, MemberMetadata
from tests.unit.broker.coordinator.consumer_world import subscription

Protocols = tuple[tuple[str, bytes], ...]

RANGE: Protocols = (("range", b""),)


def member(
    member_id: str,
    protocols: Protocols = RANGE,
    *,
    instance_id: str | None = None,
    waits: bool = False,
    rebalance_ms: int = 30_000,
) -> ClassicMember:
    """A member; one that waits has a request that waits for the rebalance."""
    return ClassicMember(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="client",
        client_host="/host",
        rebalance_timeout_ms=rebalance_ms,
        session_timeout_ms=10_000,
        protocols=protocols,
        awaiting_join="its request" if waits else None,
    )


def consumes(*topics: str) -> Protocols:
    return (("range", subscription(*topics)),)


def group_of(*members: ClassicMember, protocol_type: str = "consumer") -> ClassicGroup:
    """A group that prepares its first generation, of these members."""
    group = ClassicGroup("g", wall_ms=7)
    for each in members:
        group.add(each, protocol_type)
    group.on_event(GroupEvent.REBALANCE, 8)
    return group


def stable_group_of(*members: ClassicMember, protocol_type: str = "consumer") -> ClassicGroup:
    """A group whose first generation consists of these members."""
    group = group_of(*members, protocol_type=protocol_type)
    group.begin_generation(9)
    group.on_event(GroupEvent.ASSIGNED, 10)
    return group


# ------------------------------------------------------------------ questions
def test_a_new_group_has_no_generation_yet() -> None:
    group = ClassicGroup("g", wall_ms=7)
    assert (group.generation_id, group.protocol_type, group.protocol_name, group.leader_id) == (0, None, None, None)
    assert (group.state, group.state_since_ms, group.subscribed, group.new_member_added) == (
        GroupState.EMPTY,
        7,
        None,
        False,
    )
    assert (group.memory.held_bytes, group.awaiting_join_count, group.rebalance_timeout_ms) == (0, 0, 0)


def test_a_group_that_only_keeps_offsets_is_simple() -> None:
    group = ClassicGroup("g", wall_ms=7)
    assert group.is_simple
    assert group.since_empty_ms is None, "no member has ever left it"
    group.give_out("a")
    assert not group.is_simple
    assert not group_of(member("a")).is_simple
    group = ClassicGroup("g", wall_ms=7)
    group.close()
    assert not group.is_simple


def test_a_group_is_unused_without_members_and_ids_that_were_given_out() -> None:
    group = ClassicGroup("g", wall_ms=7)
    assert group.is_unused
    group.give_out("a")
    assert not group.is_unused
    group = group_of(member("a"))
    assert not group.is_unused
    group.remove("a")
    assert not group.is_unused, "the rebalance has not ended"
    group.begin_generation(9)
    assert group.is_unused


def test_a_group_without_members_says_since_when() -> None:
    group = group_of(member("a"))
    assert group.since_empty_ms is None
    group.remove("a")
    group.begin_generation(9)
    assert (group.state, group.since_empty_ms, group.is_simple) == (GroupState.EMPTY, 9, False)


def test_a_rebalance_waits_for_members_and_for_ids_that_were_given_out() -> None:
    group = group_of(member("a", waits=True))
    assert group.has_all_members_joined
    group.give_out("b")
    assert not group.has_all_members_joined
    group.add(member("b", waits=True), "consumer")
    assert group.has_all_members_joined
    group.add(member("c"), "consumer")
    assert not group.has_all_members_joined


def test_a_rebalance_may_take_as_long_as_its_slowest_member() -> None:
    assert (
        group_of(
            member("a", rebalance_ms=5), member("b", rebalance_ms=9), member("c", rebalance_ms=7)
        ).rebalance_timeout_ms
        == 9
    )


def test_offsets_expire_only_while_it_is_known_what_members_consume() -> None:
    assert ClassicGroup("g", wall_ms=7).may_expire_offsets
    group = group_of(member("a", consumes("t")))
    assert not group.may_expire_offsets
    group.begin_generation(9)
    assert not group.may_expire_offsets
    group.on_event(GroupEvent.ASSIGNED, 10)
    assert group.may_expire_offsets
    assert not stable_group_of(member("a", (("range", b"no subscription"),))).may_expire_offsets
    group = stable_group_of(member("a", consumes("t")), protocol_type="connect")
    assert not group.may_expire_offsets
    group.on_event(GroupEvent.REBALANCE, 11)
    group.remove("a")
    assert not group.may_expire_offsets
    group.begin_generation(12)
    assert group.may_expire_offsets


def test_a_group_is_subscribed_to_the_topics_of_its_members() -> None:
    group = stable_group_of(member("a", consumes("t", "u")), member("b", consumes("v")))
    assert [topic for topic in "stuvw" if group.is_subscribed_to(topic)] == ["t", "u", "v"]
    assert stable_group_of(member("a", (("range", b"no subscription"),))).is_subscribed_to("any")
    assert not stable_group_of(member("a", consumes("t")), protocol_type="connect").is_subscribed_to("t")


def test_what_living_members_consume_is_not_known_in_a_rebalance() -> None:
    group = stable_group_of(member("a", consumes("t")))
    assert group.living_subscriptions() == {"t"}
    group.on_event(GroupEvent.REBALANCE, 11)
    assert group.living_subscriptions() is None
    group.remove("a")
    assert group.living_subscriptions() == frozenset()
    assert group_of(member("a"), protocol_type="connect").living_subscriptions() == frozenset()
    assert stable_group_of(member("a", (("range", b"no subscription"),))).living_subscriptions() is None


def test_subscriptions_follow_the_members_of_each_generation() -> None:
    group = stable_group_of(member("a", consumes("t")), member("b", consumes("u")))
    group.on_event(GroupEvent.REBALANCE, 11)
    group.remove("b")
    group.begin_generation(12)
    assert group.subscribed == {"t"}
    group.update(group.members["a"], (("range", b"no subscription"),), 1, 1, None)
    group.compute_subscribed()
    assert group.subscribed is None
    group.on_event(GroupEvent.REBALANCE, 13)
    group.remove("a")
    group.begin_generation(14)
    assert group.subscribed == frozenset()


def test_only_what_consumers_say_is_read_as_a_subscription() -> None:
    assert stable_group_of(member("a", consumes("t")), protocol_type="connect").subscribed is None
    group = group_of(member("a"), protocol_type="connect")
    group.remove("a")
    group.begin_generation(9)
    assert group.subscribed is None


def test_single_offsets_are_deleted_where_it_is_known_what_members_consume() -> None:
    group = ClassicGroup("g", wall_ms=7)
    assert (group.check_offset_delete(), group.check_delete()) == (ErrorCode.NONE, ErrorCode.NONE)
    group = stable_group_of(member("a"))
    assert (group.check_offset_delete(), group.check_delete()) == (ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP)
    group = stable_group_of(member("a"), protocol_type="connect")
    assert (group.check_offset_delete(), group.check_delete()) == (ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP)
    group.close()
    assert (group.check_offset_delete(), group.check_delete()) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )


def test_an_instance_id_names_one_member() -> None:
    group = group_of(member("a", instance_id="i"), member("b"))
    assert (
        group.check_member("a", "i") == group.check_member("a", None) == group.check_member("b", None) == ErrorCode.NONE
    )
    assert group.check_member("b", "i") == ErrorCode.FENCED_INSTANCE_ID
    assert group.check_member("b", "j") == group.check_member("c", None) == ErrorCode.UNKNOWN_MEMBER_ID


# ------------------------------------------------------------------ members
def test_the_oldest_member_leads_until_it_leaves() -> None:
    group = group_of(member("a"), member("b"), member("c"))
    assert group.leader_id == "a"
    group.remove("c")
    assert group.leader_id == "a"
    group.remove("a")
    assert group.leader_id == "b"
    group.remove("b")
    assert group.leader_id is None


def test_a_leader_that_has_not_joined_gives_way_to_the_oldest_that_has() -> None:
    group = group_of(member("a"), member("b"))
    assert not _elect_joined_leader(group)
    group.add(member("c", waits=True), "consumer")
    group.add(member("d", waits=True), "consumer")
    assert _elect_joined_leader(group)
    assert group.leader_id == "c"
    group.update(group.members["a"], RANGE, 1, 1, "its request")
    assert _elect_joined_leader(group)
    assert group.leader_id == "c", "a leader that has joined stays"
    assert not _elect_joined_leader(ClassicGroup("g", wall_ms=7))


def test_members_that_wait_are_counted() -> None:
    group = group_of(member("a", waits=True), member("b"), member("c", waits=True, instance_id="i"))
    counts = [group.awaiting_join_count]
    group.update(group.members["b"], RANGE, 1, 1, "its request")
    counts.append(group.awaiting_join_count)
    group.update(group.members["b"], RANGE, 1, 1, "another request")
    counts.append(group.awaiting_join_count)
    replies = [group.take_awaiting_join(group.members["b"])]
    counts.append(group.awaiting_join_count)
    replies.append(group.take_awaiting_join(group.members["b"]))
    counts.append(group.awaiting_join_count)
    group.remove("b")
    counts.append(group.awaiting_join_count)
    group.replace_static("i", "d")
    counts.append(group.awaiting_join_count)
    group.replace_static("i", "e")
    counts.append(group.awaiting_join_count)
    group.update(group.members["e"], RANGE, 1, 1, "its request")
    group.update(group.members["e"], RANGE, 1, 1, None)
    counts.append(group.awaiting_join_count)
    group.remove("a")
    counts.append(group.awaiting_join_count)
    assert replies == ["another request", None]
    assert counts == [2, 3, 3, 2, 2, 2, 1, 1, 1, 0]


def test_a_static_member_that_is_replaced_keeps_its_place() -> None:
    group = group_of(member("a"), member("b", instance_id="i"), member("c", instance_id="j"))
    group.begin_generation(9)
    group.pending_sync = {"b": None, "c": None}
    old, new = group.replace_static("i", "d")
    assert (old.member_id, new.member_id, new.group_instance_id, new.is_new) == ("b", "d", "i", False)
    assert list(group.members) == ["a", "d", "c"]
    assert group.members["d"] is new
    assert (group.static_members, group.leader_id) == ({"i": "d", "j": "c"}, "a")
    assert list(group.pending_sync) == ["c", "d"]
    del group.pending_sync["c"]
    group.replace_static("j", "e")
    assert list(group.pending_sync) == ["d"]


def test_a_static_leader_that_is_replaced_still_leads() -> None:
    group = group_of(member("a", instance_id="i"), member("b"))
    group.replace_static("i", "c")
    assert group.leader_id == "c"


def test_a_member_that_is_removed_leaves_nothing_behind() -> None:
    group = group_of(member("a", (("x", b""), ("y", b"")), instance_id="i"), member("b", (("x", b""),)))
    group.begin_generation(9)
    group.pending_sync = {"a": None, "b": None}
    group.give_out("c")
    for member_id in ("a", "c", "stranger"):
        group.remove(member_id)
    assert (list(group.members), group.static_members, group.pending_join, list(group.pending_sync)) == (
        ["b"],
        {},
        {},
        ["b"],
    )
    assert dict(group.supported) == {"x": 1}


# ------------------------------------------------------------------ memory
def test_what_is_held_is_counted_once_and_released() -> None:
    memory = MemberMemory()
    memory.held_bytes = 1_000_000
    group = ClassicGroup("g", wall_ms=7, memory=memory)
    group.give_out("a")
    assert (group.memory.held_bytes, memory.held_bytes) == (MEMBER_BYTES, 1_000_000 + MEMBER_BYTES)
    static = member("a", instance_id="i")
    group.add(static, "consumer")
    empty = bytes_of_member(("client", "i"), RANGE)
    assert group.memory.held_bytes == static.held_bytes == empty
    group.assign(static, bytes(500))
    group.assign(static, bytes(300))
    assert group.memory.held_bytes == static.held_bytes == empty + 300
    longer = (("range", bytes(50)),)
    group.update(static, longer, 1, 1, None)
    assert group.memory.held_bytes == static.held_bytes == empty + 50 + 300
    group.remove("a")
    assert (group.memory.held_bytes, static.held_bytes, memory.held_bytes) == (0, 0, 1_000_000)
    group.add(member("b"), "consumer")
    group.close()
    assert memory.held_bytes == 1_000_000
    group.remove("b")
    assert memory.held_bytes == 1_000_000, "what happens to a group that is gone has no effect"


def test_a_group_that_is_gone_is_dead() -> None:
    group = stable_group_of(member("a"))
    group.close()
    assert group.state is GroupState.DEAD


# ------------------------------------------------------------------ protocols
def test_an_empty_group_accepts_any_protocol_of_a_named_type() -> None:
    group = ClassicGroup("g", wall_ms=7)
    assert group.supports("consumer", ["x"])
    assert group.supports("consumer", [""])
    assert not group.supports("consumer", [])
    assert not group.supports("", ["x"])


def test_a_member_may_join_with_a_protocol_that_all_have() -> None:
    group = group_of(member("a", (("x", b""), ("y", b""))), member("b", (("y", b""), ("z", b""))))
    assert group.supports("consumer", ["x", "y"])
    assert not group.supports("consumer", ["x", "z"])
    assert not group.supports("connect", ["y"])
    group.remove("b")
    assert group.supports("consumer", ["x"])
    group.update(group.members["a"], (("z", b""),), 1, 1, None)
    assert [name for name in "xyz" if group.supports("consumer", [name])] == ["z"]
    group.update(group.members["a"], (("x", b""),), 1, 1, None)
    assert [name for name in "xyz" if group.supports("consumer", [name])] == ["x"]


@pytest.mark.parametrize(
    ("liked", "selected"),
    [
        (("xy", "yx", "yx"), "y"),
        (("yx", "xy", "xy"), "x"),
        (("xy", "yx"), "x"),
        (("yx", "xy"), "y"),
        (("xy", "y"), "y"),
        (("xx", "x"), "x"),
    ],
)
def test_the_protocol_that_most_like_is_selected(liked: tuple[str, ...], selected: str) -> None:
    """If several have equally many votes, the favourite of the oldest member wins."""
    group = group_of(
        *(member(f"m{number}", tuple((name, b"") for name in names)) for number, names in enumerate(liked))
    )
    assert group.select_protocol() == selected


def test_generations_are_numbered_up_to_the_largest_integer() -> None:
    group = group_of(member("a"))
    group.pending_sync["a"] = None
    group.begin_generation(9)
    assert (group.generation_id, group.protocol_name, group.state, group.state_since_ms) == (
        1,
        "range",
        GroupState.COMPLETING_REBALANCE,
        9,
    )
    assert group.pending_sync == {}
    group.on_event(GroupEvent.REBALANCE, 11)
    group.begin_generation(12)
    assert group.generation_id == 2
    group.generation_id = (1 << 31) - 1
    group.on_event(GroupEvent.REBALANCE, 13)
    group.remove("a")
    group.begin_generation(14)
    assert (group.generation_id, group.protocol_name, group.state) == (0, None, GroupState.EMPTY)


# ------------------------------------------------------------------ its record
def row(member_id: str, instance_id: str | None = None, rebalance_timeout: int = 20_000) -> MemberMetadata:
    return MemberMetadata(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="client",
        client_host="/host",
        rebalance_timeout=rebalance_timeout,
        session_timeout=10_000,
        subscription=subscription("t"),
        assignment=b"part",
    )


def value_of(
    *members: MemberMetadata, protocol: str | None = "range", leader: str | None = "a", since: int = 9
) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol=protocol,
        leader=leader,
        current_state_timestamp=since,
        members=list(members),
    )


def test_a_stable_group_is_the_same_after_a_load() -> None:
    value = value_of(row("a", "i"), row("b"), leader="b")
    group = group_of_record("g", value)
    assert (group.state, group.generation_id, group.leader_id, group.subscribed) == (GroupState.STABLE, 3, "b", {"t"})
    assert (group.protocol_type, group.protocol_name, group.state_since_ms) == ("consumer", "range", 9)
    assert group_record(group, {"a": b"part", "b": b"part"}) == value


@pytest.mark.parametrize("since", [0, 9, -1])
def test_a_group_without_members_is_the_same_after_a_load(since: int) -> None:
    """The leader of a group that became empty isn't kept: the first that joins leads."""
    group = group_of_record("g", value_of(protocol=None, leader="a", since=since))
    assert (group.state, group.leader_id, group.subscribed) == (GroupState.EMPTY, None, frozenset())
    assert group.since_empty_ms == (None if since == -1 else since)
    assert group_record(group, {}) == value_of(protocol=None, leader=None, since=since)


def test_a_record_without_a_type_is_one_of_a_group_that_only_keeps_offsets() -> None:
    value = GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=-1, members=[]
    )
    group = group_of_record("g", value)
    assert (group.protocol_type, group.is_simple) == (None, True)
    assert group_record(group, {}) == value


@pytest.mark.parametrize(("recorded", "read"), [(20_000, 20_000), (0, 0), (-1, 10_000)])
def test_a_member_without_a_time_for_rebalances_has_that_of_its_session(recorded: int, read: int) -> None:
    assert group_of_record("g", value_of(row("a", rebalance_timeout=recorded))).rebalance_timeout_ms == read


@pytest.mark.parametrize(
    "value",
    [
        value_of(row("a"), protocol=None),
        value_of(row("a"), leader="b"),
        value_of(row("a"), leader=None),
        value_of(row("a"), row("a")),
        value_of(row("a", "i"), row("b", "i")),
    ],
)
def test_a_record_of_an_impossible_group_is_refused(value: GroupMetadataValue) -> None:
    with pytest.raises(ProtocolError, match="group g has"):
        group_of_record("g", value)


def test_a_group_has_the_name_of_its_protocol_even_where_that_is_empty() -> None:
    group = group_of_record("g", value_of(row("a"), protocol=""))
    assert group.protocol_name == ""
    assert group_record(group, {"a": b"part"}) == value_of(row("a"), protocol="")


def test_only_a_protocol_that_a_member_speaks_has_metadata() -> None:
    assert member("a", (("x", b"1"), ("y", b"2"))).metadata("y") == b"2"
    with pytest.raises(AssertionError, match="member a does not speak z"):
        member("a").metadata("z")
