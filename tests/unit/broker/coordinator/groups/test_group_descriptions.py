"""Descriptions of groups in the order of the request, of what cannot be lost any more, or with an error for each."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from lowtide.broker.coordinator.groups.group_descriptions import GroupDescriptions
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode

from .coordinator_world import HERE, World

OPERATIONS = 7


class Descriptions:
    """What is answered, and which groups were described. A description takes two steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.described: list[str] = []
        self.meanwhile: Any = None
        self.descriptions: GroupDescriptions[str, list[str]] = GroupDescriptions(
            world.coordinator, self.describe, lambda group_id, error: f"{group_id} {error.name}", lambda rows: rows
        )

    def describe(self, shard: Shard[Any], group_id: str, operations: int) -> Generator[None, None, str]:
        assert operations == OPERATIONS
        self.described.append(group_id)
        yield
        if self.meanwhile is not None:
            self.meanwhile()
        return f"{group_id} {'is known' if group_id in shard.state.by_id else 'is unknown'}"

    def ask(self, *group_ids: str) -> Any:
        return self.descriptions.answer(list(group_ids), OPERATIONS)


def test_a_request_for_nothing_is_answered_at_once() -> None:
    assert Descriptions(World(HERE)).ask() == []


def test_rows_have_the_order_of_the_request_and_a_group_is_described_once() -> None:
    world = World(HERE, HERE)
    world.commit_offset("a")
    world.commit_offset("b")
    descriptions = Descriptions(world)
    answer = descriptions.ask("b", "c", "a", "b")
    assert answer.response == ["b is known", "c is unknown", "a is known"]
    assert descriptions.described == ["b", "c", "a"]


def test_a_group_that_is_not_coordinated_here_or_has_no_id_has_an_error() -> None:
    world = World(HERE)
    world.partitions.clear()
    descriptions = Descriptions(world)
    assert descriptions.ask("a", "").response == ["a NOT_COORDINATOR", " INVALID_GROUP_ID"]
    assert descriptions.described == []


def test_what_may_be_lost_is_not_described_before_it_is_committed() -> None:
    world = World(HERE)
    world.partition().leadership = object()
    world.commit_offset("a")
    answer: Pending[list[str]] = Descriptions(world).ask("a", "")
    assert not answer.done
    world.commit(world.partition())
    assert answer.response == ["a is known", " INVALID_GROUP_ID"]


def test_a_description_that_could_not_be_committed_is_an_error() -> None:
    world = World(HERE)
    world.partition().leadership = object()
    world.commit_offset("a")
    answer: Pending[list[str]] = Descriptions(world).ask("a")
    world.commit(world.partition(), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert answer.response == ["a NOT_COORDINATOR"]


def test_a_group_that_another_broker_coordinates_meanwhile_is_not_described() -> None:
    world = World(HERE)
    shard = world.commit_offset("a")
    descriptions = Descriptions(world)
    descriptions.meanwhile = lambda: world.coordinator._runtime._unload(shard)
    assert descriptions.ask("a").response == ["a NOT_COORDINATOR"]


@pytest.mark.parametrize("how", ["in its slices", "for want of one"])
def test_a_description_takes_turns(how: str) -> None:
    """Each step takes a slice. If one description fails, its row is an unknown error and the others are returned."""
    world = World(HERE)
    world.commit_offset("a")
    world.later.clear()
    descriptions = Descriptions(world)

    def pass_time() -> None:
        world.now_ms += 10

    descriptions.meanwhile = pass_time
    if how == "for want of one":

        def when_readable(*_: Any) -> Pending[Any]:
            pending: Pending[Any] = Pending()
            pending.fail()
            return pending

        world.coordinator.when_readable = when_readable
    answer: Pending[list[str]] = descriptions.ask("a", "b")
    assert not answer.done
    world.run()
    while world.later:
        _, function, given = world.later.pop(0)
        function(*given)
    expected = (
        ["a is known", "b is unknown"]
        if how == "in its slices"
        else ["a UNKNOWN_SERVER_ERROR", "b UNKNOWN_SERVER_ERROR"]
    )
    assert answer.response == expected
