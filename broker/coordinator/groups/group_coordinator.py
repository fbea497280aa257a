"""The groups of one broker, as handlers see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import group_settings
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.coordinator import ShardedCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects, append_error
from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC, forget_hashes
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, Shard
from lowtide.broker.coordinator.share_state.share_persister import SharePersister
from lowtide.broker.network.routing.features import serves_consumer_groups, serves_streams_groups
from lowtide.broker.pending import Pending
from lowtide.broker.promises import promised
from lowtide.broker.request_context import RequestContext
from lowtide.broker.turns import Pacing, run_in_slices
from lowtide.metadata.image import ImageDelta
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import Offset, TopicId, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.log.markers import Marker

R = TypeVar("R")


class HeldGroups(NamedTuple):
    """The sizes of what a broker keeps for its groups, and the number of refusals since its start."""

    groups: int
    offsets: int
    metadata_characters: int
    refused: int


class GroupCoordinator(ShardedCoordinator[Groups]):
    """The groups of one broker, with their offsets."""

    def __init__(
        self,
        broker: BrokerContext,
        administrator: TopicAdministrator,
        loop: Any,
        *,
        is_alone: bool,
        persister: SharePersister | None = None,
    ) -> None:
        """`is_alone`: the cluster never has other brokers. `persister` is None if share groups are not served."""
        self._share_offsets = None if persister is None else ShareOffsets(self, persister)
        self.settings = group_settings(broker.config.values)
        self.survey_turn = asyncio.Lock()
        """Held by the survey that walks through all groups."""
        self.joins = Pacing(broker.replicas.turns)
        """First heartbeats of members, and of their groups."""
        self._loop = loop
        self._refused = 0
        """How many groups, offsets and members had been refused at the last tick."""
        self._memory = MemberMemory()
        self._admission = GroupAdmission(self.settings, broker.clock.monotonic_ms())
        self._admission.count_groups = lambda: sum(shard.state.by_id.weight for shard in self._runtime.shards.values())
        self._topics = TopicView(broker.metadata)
        coordinated = CoordinatedTopic(name=GROUP_TOPIC, make_state=self._make_groups)
        super().__init__(broker, administrator, loop, self.settings, coordinated, is_alone=is_alone)

    def _make_groups(self) -> Groups:
        return Groups(
            self.settings, self.broker.random, self._memory, self._topics, self._admission, self._share_offsets
        )

    async def share_starts(self, places: Iterable[SharePlace]) -> dict[SharePlace, Offset]:
        """Returns the start offsets of share partitions (see `ShareOffsets.starts`); nothing without share groups."""
        return {} if self._share_offsets is None else await self._share_offsets.starts(places)

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether there may be consumer groups: by the configuration, and by the level of `group.version`."""
        return self.settings.serves_consumer_groups and serves_consumer_groups(self.broker.metadata.image)

    @property
    def serves_streams_groups(self) -> bool:
        """Whether there may be streams groups: by the configuration, and by the level of `streams.version`."""
        return self.settings.serves_streams_groups and serves_streams_groups(self.broker.metadata.image)

    # ------------------------------------------------------------------ requests
    def find_named(self, group_id: str) -> Shard[Groups] | ErrorCode:
        """Returns the shard of a group whose id is not empty. With an empty one, offsets may be committed, as in Kafka.

        Errors: INVALID_GROUP_ID, those of `find`.
        """
        return self.find(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    def held(self) -> HeldGroups:
        """Returns the sizes of what is kept for all groups."""
        admission = self._admission
        refused = self._refused + admission.refused_count + self._memory.refused_count
        return HeldGroups(admission.count_groups(), admission.offset_count, admission.metadata_bytes, refused)

    def client_of(self, context: RequestContext) -> MemberClient:
        """Returns the client that sends a request."""
        authorizer = self.broker.authorizer

        def may_see(name: str) -> bool:
            return authorizer.authorize(context, Operation.DESCRIBE, topic(name))

        host = f"/{context.connection.peer.rpartition(':')[0]}"
        sees = None if authorizer.allows_all else may_see
        return MemberClient(context.client_id or "", host, context.api_version, sees)

    def when_readable(self, shard: Shard[Groups], group_id: str, answer: Callable[[ErrorCode], R]) -> Pending[R]:
        """Answers with the current state of a group once all its records so far are committed."""
        pending: Pending[R] = Pending()
        known = answer(ErrorCode.NONE)

        def on_committed(error: ErrorCode, effects: Effects) -> None:
            effects.answer(pending, known if error == ErrorCode.NONE else answer(append_error(error)))

        self._runtime.when_committed(shard, shard.state.read_barrier(group_id) + 1, [on_committed])
        return pending

    def when_all_committed(self, shard: Shard[Groups], then: Callable[[ErrorCode], None]) -> None:
        """Calls `then` once the current state is committed, or its commit has failed; perhaps within this call."""

        def on_committed(error: ErrorCode, _effects: Effects) -> None:
            then(error)

        if shard.unloaded or not shard.leads:
            then(ErrorCode.NOT_COORDINATOR)
        else:
            self._runtime.when_committed(shard, shard.partition.log.log_end_offset, [on_committed])

    def delete(self, shard: Shard[Groups], group_id: str) -> Pending[ErrorCode]:
        """Deletes a group; of a share group first the states of its partitions.

        Errors: those of `Groups.delete_group`, `append_error`.
        """
        share = shard.state.by_id.find_share(group_id)
        places = (
            share.places(self._partition_count) if share is not None and share.check_delete() == ErrorCode.NONE else []
        )
        if places and self._share_offsets is not None:
            work = partial(self._share_offsets.delete_group, shard, group_id, places)
            return promised(work, self.broker.tasks.spawn, name=f"delete share group {group_id}")
        return self.decide(shard, partial(_delete, shard, group_id))

    def _partition_count(self, topic_id: TopicId) -> int:
        return self._topics.partition_counts((topic_id,)).get(topic_id, 0)

    # ------------------------------------------------------------------ transactions
    def partition_of(self, group_id: str) -> TopicPartition:
        """Returns the partition of a group's offsets."""
        return TopicPartition(GROUP_TOPIC, self.topic.partition_of(group_id))

    @staticmethod
    def is_kept_in(topic: str) -> bool:
        """Returns whether a topic has the groups."""
        return topic == GROUP_TOPIC

    def may_mark(self, partition: Partition) -> bool:
        """Returns whether a marker may be written to a partition now.

        While its log is being read, the marker could be missed.
        """
        return self._runtime.may_mark(partition)

    def note_marker(self, partition: Partition, marker: Marker, offset: Offset) -> None:
        """Applies a marker that was just appended to a partition."""
        self._runtime.note_marker(partition, marker, offset)

    # ------------------------------------------------------------------ what happens elsewhere
    def on_tick(self) -> None:
        """Follows leaderships, and logs what had to be refused. Called about once a second."""
        self._refused += self._memory.refused_count + self._admission.refused_count
        refused, self._memory.refused_count = self._memory.refused_count, 0
        if refused:
            self.broker.log.warning(
                "members were refused: groups take too much memory", refused=refused, held_bytes=self._memory.held_bytes
            )
        refused, self._admission.refused_count = self._admission.refused_count, 0
        if refused:
            counts = {"groups": self._admission.count_groups(), "offsets": self._admission.offset_count}
            self.broker.log.warning("groups or offsets were refused: a limit is reached", refused=refused, **counts)
        if self._admission.have_most_gone():
            forget_hashes()
        super().on_tick()

    def on_image(self, delta: ImageDelta) -> None:
        """Removes offsets in deleted topics, and lets patterns match new ones."""
        self._topics.note_changes(delta)
        deleted = [(topic.name, topic.topic_id) for topic in delta.topics_deleted if topic.name != GROUP_TOPIC]
        if deleted:
            run_in_slices(self._loop, self.broker.clock, self._forget(deleted), lambda: None)

    def _forget(self, deleted: Sequence[tuple[str, TopicId]]) -> Iterator[None]:
        for shard in self.each_shard():
            for group_id in shard.state.committed.group_ids():
                self.carry_out(shard, partial(shard.state.committed.delete_topics, group_id, deleted))
                yield
            topics = [topic_id for _, topic_id in deleted]
            self.carry_out(shard, partial(shard.state.shares.states.forget_topics, topics))
            yield


def _delete(shard: Shard[Groups], group_id: str, pending: Pending[ErrorCode], effects: Effects) -> None:
    error = shard.state.delete_group(group_id, effects)
    effects.answer_when_committed(pending, error, lambda error: error)
