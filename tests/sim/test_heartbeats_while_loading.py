"""The checker of groups ignores a successful heartbeat if the coordinator didn't know the group."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.heartbeat import HeartbeatResponse
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId
from lowtide.runtime.random import Random
from lowtide.simulation.consumer_group_load import ClassicConsumer, ConsumerGroupLoad
from lowtide.simulation.owning_member import OwnedTopic

COORDINATOR = BrokerId(1)
STATE, OTHER_STATE = object(), object()


class Member(ClassicConsumer):
    """A member of generation 11 whose coordinator answers every heartbeat with success."""

    def __init__(self, coordinator: BrokerId | None, known: list[object]) -> None:
        """`known`: what the coordinator knows the group by when it is asked, and when it has answered."""
        client: Any = SimpleNamespace(name="classic", now_s=lambda: 4.9, note=lambda _what: None)
        load = ConsumerGroupLoad(
            "mixed", OwnedTopic("shared", 4, lambda: (ZERO_TOPIC_ID, 4)), lambda _name: client, Random(1), Counter()
        )
        looks = iter(known)
        load.known_at = lambda _broker_id: next(looks)
        super().__init__(load, client, Random(1), None)
        self.generation_id, self.partitions, self._member_id, self._coordinator = 11, [1], "516ccb9f", coordinator

    async def ask(self, *_arguments: Any, **_options: Any) -> HeartbeatResponse:
        self._coordinator = COORDINATOR
        return HeartbeatResponse(error_code=ErrorCode.NONE)


@pytest.mark.parametrize(
    ("coordinator", "known", "says_something"),
    [
        (COORDINATOR, [STATE, STATE], True),
        (COORDINATOR, [None, None], False),
        (COORDINATOR, [None, STATE], False),
        (COORDINATOR, [STATE, OTHER_STATE], False),
        (COORDINATOR, [STATE, None], False),
        (None, [STATE], False),
    ],
    ids=[
        "loaded",
        "loading",
        "loads before it has answered",
        "loads again",
        "no coordinator any more",
        "not yet found",
    ],
)
def test_a_member_has_something_by_a_heartbeat_only_where_the_group_is_known(
    coordinator: BrokerId | None, known: list[object], says_something: bool
) -> None:
    member = Member(coordinator, known)
    assert asyncio.run(member.heartbeat())
    assert (member.load.owners.since_s("classic", 1) is not None) == says_something
