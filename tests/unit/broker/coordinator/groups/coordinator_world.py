"""The groups of one broker over partitions in memory, and a share coordinator that a test answers for."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommitValue
from lowtide.protocol.messages.read_share_group_state_summary import SummaryStatePartitionResult
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId, TopicPartition
from tests.unit.broker.coordinator.broker_world import HERE, NONE, THERE, BrokerWorld, topic

GROUP = "g"


class Persister:
    """Share coordinators that do what is requested, unless a test makes them refuse."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.errors: dict[int, ErrorCode] = {}
        """By partition."""
        self.starts: dict[SharePlace, SummaryStatePartitionResult] = {}
        self.meanwhile: Any = None
        """What happens before they answer."""

    def _outcomes(self, places: Iterable[SharePlace]) -> dict[SharePlace, ErrorCode]:
        if self.meanwhile is not None:
            self.meanwhile()
        return {place: self.errors.get(place.partition, NONE) for place in places}

    async def initialize(
        self, group_id: str, state_epoch: int, wanted: Mapping[SharePlace, Offset]
    ) -> dict[SharePlace, ErrorCode]:
        self.asked.append(("initialize", group_id, state_epoch, dict(wanted)))
        return self._outcomes(wanted)

    async def delete(self, group_id: str, places: Iterable[SharePlace]) -> dict[SharePlace, ErrorCode]:
        self.asked.append(("delete", group_id, sorted(places)))
        return self._outcomes(places)

    async def summarize(
        self, group_id: str, places: Iterable[SharePlace]
    ) -> dict[SharePlace, SummaryStatePartitionResult]:
        self.asked.append(("summarize", group_id, sorted(places)))
        return {place: self.starts[place] for place in places if place in self.starts}


class World(BrokerWorld):
    """A coordinator whose topic has these leaders; `shares` is whether share groups are served."""

    def __init__(self, *leaders: int, is_alone: bool = False, shares: bool = True, **settings: str) -> None:
        super().__init__(GROUP_TOPIC, *leaders, **settings)
        self.persister = Persister()
        persister: Any = self.persister if shares else None
        self.coordinator = GroupCoordinator(
            self.broker, self.administrator, self.loop, is_alone=is_alone, persister=persister
        )

    def partition(self, number: int = 0) -> Any:
        return self.partitions[TopicPartition(GROUP_TOPIC, number)]

    def shard(self, group_id: str = GROUP) -> Shard[Groups]:
        found = self.coordinator.find(group_id)
        assert isinstance(found, Shard)
        return found

    def shards(self) -> list[Shard[Groups]]:
        """All that is coordinated here."""
        found = self.coordinator.loaded()
        assert not isinstance(found, ErrorCode)
        return found

    def decide(self, shard: Shard[Groups], decide: Any) -> Any:
        """Returns the answer to a decision, which is complete at once; None if there is none."""
        pending: Pending[Any] = self.coordinator.decide(shard, decide)
        return pending.response

    def commit_offset(
        self,
        group_id: str = GROUP,
        *,
        shard: Shard[Groups] | None = None,
        name: str = "t",
        topic_id: TopicId = ZERO_TOPIC_ID,
    ) -> Shard[Groups]:
        """Commits an offset of partition 0 of a topic for a group. Returns the shard that has it."""
        shard = self.shard(group_id) if shard is None else shard
        value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=1, topic_id=topic_id)
        self.decide(shard, lambda _reply, effects: effects.keep_offset(group_id, name, 0, value))
        return shard

    def begin_share_group(self, *numbers: int, group_id: str = GROUP, name: str = "t") -> Shard[Groups]:
        """A share group without members, whose states have begun for these partitions of a topic.

        Returns where it is kept.
        """
        shard = self.shard(group_id)
        states, topic_id = shard.state.shares.states, self.metadata.image.topics[name].topic_id
        assert self.decide(
            shard, lambda reply, effects: states.initialize_again(group_id, {topic_id: (name, numbers)}, reply, effects)
        )
        self.decide(shard, lambda _reply, effects: states.on_initialized(group_id, {topic_id: numbers}, effects))
        states.unlock(group_id)
        return shard

    async def do_tasks(self) -> None:
        """Runs all tasks that were begun, in their order."""
        while self.tasks:
            task: Coroutine[Any, Any, None] = self.tasks.pop(0)
            await task


__all__ = ["GROUP", "HERE", "NONE", "THERE", "World", "topic"]
