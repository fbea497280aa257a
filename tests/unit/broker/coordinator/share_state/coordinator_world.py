"""The share coordinator of one broker over partitions in memory."""

from __future__ import annotations

from typing import Any

from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.share_state.share_coordinator import SHARE_TOPIC, ShareCoordinator
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.initialize_share_group_state import InitializeStatePartition
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import TopicId, TopicPartition
from tests.unit.broker.coordinator.broker_world import HERE, NONE, THERE, BrokerWorld, topic

T: TopicId = topic("t", HERE).topic_id
PLACE = SharePlace("g", T, 0)


class World(BrokerWorld):
    """A coordinator whose topic has these leaders."""

    def __init__(self, *leaders: int, is_alone: bool = False, **settings: str) -> None:
        super().__init__(SHARE_TOPIC, *leaders, **settings)
        self.cut: list[tuple[Any, int]] = []
        self.coordinator = ShareCoordinator(self.broker, self.administrator, self.loop, is_alone=is_alone)

    def led(self, key: TopicPartition, *, end_offset: int = 0) -> Any:
        partition = super().led(key, end_offset=end_offset)
        partition.log.log_start_pending = 0
        return partition

    def partition(self, number: int = 0) -> Any:
        return self.partitions[TopicPartition(SHARE_TOPIC, number)]

    def request_log_starts(self, increments: list[Any]) -> None:
        """What the coordinator wants to cut."""
        self.cut += [(each.log, each.log_start_offset) for each in increments]

    def shard(self, place: SharePlace = PLACE) -> Shard[ShareStates]:
        found = self.coordinator.find_place(place)
        assert isinstance(found, Shard)
        return found

    def initialize(
        self, shard: Shard[ShareStates] | None = None, place: SharePlace = PLACE, start_offset: int = 5
    ) -> ErrorCode:
        """Initializes a state."""
        shard = self.shard(place) if shard is None else shard
        row, states = (
            InitializeStatePartition(partition=place.partition, state_epoch=1, start_offset=start_offset),
            shard.state,
        )
        answer: Any = self.coordinator.decide(
            shard, lambda reply, effects: states.initialize(place, row, reply, effects)
        ).response
        return ErrorCode(answer.error_code)

    def initialize_in(self, number: int) -> Shard[ShareStates]:
        """Where the states in a partition of the topic are kept, of which there is one now."""
        self.coordinator.on_tick()
        shard = self.coordinator._runtime.shards[number]
        assert self.initialize(shard) == NONE
        return shard


__all__ = ["HERE", "NONE", "PLACE", "THERE", "T", "World", "topic"]
