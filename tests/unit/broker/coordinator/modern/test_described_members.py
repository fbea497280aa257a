"""ConsumerGroupDescribe: its rows of members while partitions are reassigned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.handlers import consumer_group_describe
from lowtide.broker.pending import Pending
from lowtide.broker.turns import Turns
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld
from tests.unit.broker.coordinator.group_world import GROUP

ONE_SLICE: Any = Turns(None, SimpleNamespace(monotonic_ms=lambda: 0))
"""No time passes: each response is there at once."""


def described(world: ConsumerWorld) -> dict[str, Any]:
    """The members by their ids."""

    def readable(_shard: object, _group_id: str, answer: Any) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        pending.complete(answer(ErrorCode.NONE))
        return pending

    service: Any = SimpleNamespace(
        settings=world.settings,
        serves_consumer_groups=True,
        find_named=lambda _group_id: SimpleNamespace(state=world.groups, unloaded=False),
        when_readable=readable,
        broker=SimpleNamespace(metadata=world.cluster, turns=ONE_SLICE, log=None),
    )
    handle: Any = consumer_group_describe.handler(service).handle
    answer = handle(ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False), None)
    (group,) = answer.response.groups
    assert group.error_code == ErrorCode.NONE
    return {member.member_id: member for member in group.members}


def numbers(assignment: Any) -> set[int]:
    return {number for row in assignment.topic_partitions for number in row.partitions}


def test_partitions_to_revoke_belong_to_a_member_until_it_has_revoked_them() -> None:
    world = ConsumerWorld()
    world.enter("a")
    world.enter("b")
    world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    asked = described(world)
    assert numbers(asked["a"].assignment) == {0, 1, 2, 3}
    assert len(numbers(asked["a"].target_assignment)) == 2
    assert not numbers(asked["b"].assignment)
    kept = numbers(asked["a"].target_assignment)
    world.beat("a", 2, owned={"t": kept})
    assert numbers(described(world)["a"].assignment) == kept


def test_a_member_without_a_pattern_has_an_empty_one() -> None:
    world = ConsumerWorld()
    world.enter("a")
    assert described(world)["a"].subscribed_topic_regex == ""
