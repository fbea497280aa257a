"""The groups of one broker, as handlers see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.classic.joining import Client
from lowtide.broker.coordinator.consumer.share_start import Starts
from lowtide.broker.coordinator.consumer.topic_view import TopicView
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import group_settings
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from lowtide.broker.coordinator.runtime.effects import Effects, append_error
from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC, OffsetsTopic, forget_hashes
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, Shard
from lowtide.broker.coordinator.share.share_persister import SharePersister
from lowtide.broker.network.features import serves_consumer_groups
from lowtide.broker.pending import Pending, answer_of, promised
from lowtide.broker.request_context import Client as Connection
from lowtide.broker.request_context import RequestContext
from lowtide.broker.slices import run_in_slices
from lowtide.broker.turns import Pacing
from lowtide.metadata.image import ImageDelta
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.log.markers import Marker

R = TypeVar("R")


class HeldGroups(NamedTuple):
    """What a broker keeps of all its groups, and how often there was too much (since the start)."""

    groups: int
    offsets: int
    metadata_characters: int
    refused: int


class GroupCoordinator:
    """Finds a group's state, carries out what is decided about it, and follows topics and leaderships."""

    def __init__(
        self,
        broker: BrokerContext,
        administrator: TopicAdministrator,
        loop: Any,
        *,
        is_alone: bool,
        persister: SharePersister | None = None,
    ) -> None:
        """`is_alone`: there may never be more brokers than there are now.

        `persister` is None where share groups aren't served.
        """
        self._states = None if persister is None else ShareStarter(self, persister)
        config = broker.config
        self.settings = group_settings(config.values)
        given = not is_alone or "offsets.topic.replication.factor" in config.given
        self.topic = OffsetsTopic(broker, administrator, self.settings, factor_is_given=given)
        self.broker = broker
        self.survey_turn = asyncio.Lock()
        """Who goes through all groups has it."""
        self.joins = Pacing(broker.replicas.slices.turns, broker.log)
        """First heartbeats of members, and of their groups."""
        self._loop = loop
        self._refused = 0
        """Groups, offsets and members, up to the last tick."""
        self._memory = MemberMemory()
        self._admission = GroupAdmission(self.settings, broker.clock.monotonic_ms())
        self._admission.count_groups = lambda: sum(len(shard.state.by_id) for shard in self._runtime.shards.values())
        self._topics = TopicView(broker.metadata)
        self._runtime: CoordinatorRuntime[Groups] = CoordinatorRuntime(
            CoordinatedTopic(
                name=GROUP_TOPIC,
                make_state=lambda: Groups(
                    self.settings, broker.random, self._memory, self._topics, self._admission, self._states
                ),
            ),
            replicas=broker.replicas,
            clock=broker.clock,
            loop=loop,
            worker=broker.worker,
            log=broker.log,
        )

    async def share_starts(self, places: Iterable[SharePlace]) -> dict[SharePlace, Offset]:
        """How far share groups are: see `ShareStarter.starts`. Nothing where share groups aren't served."""
        return {} if self._states is None else await self._states.starts(places)

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether there may be groups whose partitions the broker assigns: by the configuration, and by the level of `group.version`."""
        return self.settings.serves_consumer_groups and serves_consumer_groups(self.broker.metadata.image)

    # ------------------------------------------------------------------ requests
    @staticmethod
    def check_group_id(group_id: str) -> ErrorCode | None:
        """Whether a group may have this id; offsets may be committed without one, as in Kafka, but no member may join."""
        return None if group_id else ErrorCode.INVALID_GROUP_ID

    def held(self) -> HeldGroups:
        """How much is kept of all groups."""
        admission = self._admission
        refused = self._refused + admission.refused_count + self._memory.refused_count
        return HeldGroups(admission.count_groups(), admission.offset_count, admission.metadata_bytes, refused)

    def client_of(self, context: RequestContext) -> Client:
        """Who sends a request, as groups know it."""
        authorizer = self.broker.authorizer

        def may_see(name: str) -> bool:
            return authorizer.authorize(context, Operation.DESCRIBE, topic(name))

        known = self.open_client_of(context.client_id, context.connection, context.api_version)
        if known is not None:
            return known
        return Client(context.client_id or "", _host_of(context.connection), context.api_version, may_see)

    def open_client_of(self, client_id: str | None, connection: Connection, api_version: int) -> Client | None:
        """As `client_of`, where nothing is hidden from anybody; None where rules decide about that."""
        return Client(client_id or "", _host_of(connection), api_version) if self.broker.authorizer.allows_all else None

    def find(self, group_id: str) -> Shard[Groups] | ErrorCode:
        """The state that a group belongs to. Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        return self._runtime.find(self.topic.partition_of(group_id))

    def loaded(self) -> list[Shard[Groups]] | ErrorCode:
        """All that is coordinated here. Errors: COORDINATOR_LOAD_IN_PROGRESS while any of it isn't known yet."""
        self._runtime.follow(self.topic.partition_count if self.topic.exists else 0)
        shards = list(self._runtime.shards.values())
        return shards if all(shard.loaded for shard in shards) else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def decide(self, shard: Shard[Groups], decision: Callable[[Pending[R], Effects], None]) -> Pending[R]:
        """Make a decision and carry it out. The answer is there at once, if nothing has to be waited for."""
        pending: Pending[R] = Pending()
        effects = self._runtime.effects()
        decision(pending, effects)
        self._runtime.carry_out(shard, effects)
        return pending

    def effects(self) -> Effects:
        """The beginning of a decision, made now."""
        return self._runtime.effects()

    def set_timer(self, shard: Shard[Groups]) -> None:
        """A decision may have set a deadline; `decide` sees to that itself."""
        self._runtime.set_timer(shard)

    def keep(
        self,
        shard: Shard[Groups],
        records: list[CoordinatorRecord],
        wall_ms: int,
        producer: tuple[ProducerId, ProducerEpoch] | None = None,
    ) -> Offset | None:
        """Append records that are committed with that: see `CoordinatorRuntime.keep`."""
        return self._runtime.keep(shard, records, wall_ms, producer)

    def when_readable(self, shard: Shard[Groups], group_id: str, answer: Callable[[ErrorCode], R]) -> Pending[R]:
        """Answer with what is known of a group now, when all is committed that has a say in it; what comes meanwhile may not be then."""
        pending: Pending[R] = Pending()
        known = answer(ErrorCode.NONE)

        def go_on(error: ErrorCode, effects: Effects) -> None:
            effects.answer(pending, known if error == ErrorCode.NONE else answer(append_error(error)))

        self._runtime.when_committed(shard, shard.state.read_barrier(group_id) + 1, [go_on])
        return pending

    def when_all_committed(self, shard: Shard[Groups], then: Callable[[ErrorCode], None]) -> None:
        """Continue when all of the current state is committed, or its commit has failed.

        Called once, perhaps from within this call.
        """

        def go_on(error: ErrorCode, _effects: Effects) -> None:
            then(error)

        if shard.unloaded or not shard.leads:
            then(ErrorCode.NOT_COORDINATOR)
        else:
            self._runtime.when_committed(shard, shard.partition.log.log_end_offset, [go_on])

    def delete(self, shard: Shard[Groups], group_id: str) -> Pending[ErrorCode]:
        """Forget a group; of a share group the states of its partitions first.

        Errors: those of `Groups.delete_group`, `append_error`.
        """
        share = shard.state.by_id.find_share(group_id)
        places = (
            share.places(self._partition_count) if share is not None and share.check_delete() == ErrorCode.NONE else []
        )
        if places and self._states is not None:
            work = partial(self._states.delete_group, shard, group_id, places)
            return promised(work, self.broker.tasks.spawn, name=f"delete share group {group_id}")
        return self.decide(shard, partial(_delete, shard, group_id))

    def _partition_count(self, topic_id: TopicId) -> int:
        return self._topics.partition_counts((topic_id,)).get(topic_id, 0)

    # ------------------------------------------------------------------ transactions
    def partition_of(self, group_id: str) -> TopicPartition:
        """The partition that a group's offsets are written to."""
        return TopicPartition(GROUP_TOPIC, self.topic.partition_of(group_id))

    @staticmethod
    def is_kept_in(topic: str) -> bool:
        """Whether groups are kept in a topic."""
        return topic == GROUP_TOPIC

    def may_mark(self, partition: Partition) -> bool:
        """Whether a marker may be written to a partition now: not while its log is read, where it could be missed."""
        return self._runtime.may_mark(partition)

    def note_marker(self, partition: Partition, marker: Marker, offset: Offset) -> None:
        """A marker was just appended to a partition."""
        self._runtime.note_marker(partition, marker, offset)

    # ------------------------------------------------------------------ what happens elsewhere
    def on_tick(self) -> None:
        """Follow who leads, and say what had to be refused. On the order of once a second."""
        self._refused += self._memory.refused_count + self._admission.refused_count
        refused, self._memory.refused_count = self._memory.refused_count, 0
        if refused:
            self.broker.log.warning(
                "members were refused: groups hold too much", refused=refused, held_bytes=self._memory.held_bytes
            )
        refused, self._admission.refused_count = self._admission.refused_count, 0
        if refused:
            counts = {"groups": self._admission.count_groups(), "offsets": self._admission.offset_count}
            self.broker.log.warning(
                "groups or offsets were refused: there are as many as there may be", refused=refused, **counts
            )
        if self._admission.have_most_gone():
            forget_hashes()
        if self.topic.exists or self._runtime.shards:
            self._runtime.follow(self.topic.partition_count if self.topic.exists else 0)

    def on_image(self, delta: ImageDelta) -> None:
        """Topics may have been created, which patterns may match, or deleted: the offsets in them aren't needed."""
        self._topics.note_changes(delta)
        deleted = [(topic.name, topic.topic_id) for topic in delta.topics_deleted if topic.name != GROUP_TOPIC]
        if deleted:
            run_in_slices(self._loop, self.broker.clock, self._forget(deleted), _nothing)

    def close(self) -> None:
        """Send waiting clients elsewhere: the broker stops."""
        self._runtime.close()

    def _forget(self, deleted: Sequence[tuple[str, TopicId]]) -> Iterator[None]:
        for number in list(self._runtime.shards):
            shard = self._runtime.find(number)
            if isinstance(shard, ErrorCode):
                continue
            for group_id in shard.state.committed.group_ids():
                effects = self._runtime.effects()
                shard.state.committed.delete_topics(group_id, deleted, effects)
                self._runtime.carry_out(shard, effects)
                yield
            effects = self._runtime.effects()
            shard.state.shares.states.forget_topics([topic_id for _, topic_id in deleted], effects)
            self._runtime.carry_out(shard, effects)
            yield


class ShareStarter:
    """Has the states of share groups' partitions begin, and notes for the group which have."""

    def __init__(self, groups: GroupCoordinator, persister: SharePersister) -> None:
        self._groups = groups
        self._persister = persister

    def initialize(self, group_id: str, state_epoch: int, wanted: Starts) -> None:
        """Ask for it. What fails is asked for again by a heartbeat, after a while."""
        places = {
            SharePlace(group_id, topic_id, number): start
            for topic_id, starts in wanted.items()
            for number, start in starts.items()
        }
        work = self._initialize(group_id, state_epoch, places)
        self._groups.broker.tasks.spawn(work, name=f"begin the states of share group {group_id}")

    async def starts(self, places: Iterable[SharePlace]) -> dict[SharePlace, Offset]:
        """The start offsets of share partitions; those that aren't known are missing, or below 0."""
        by_group: dict[str, list[SharePlace]] = {}
        for place in places:
            by_group.setdefault(place.group_id, []).append(place)
        found: dict[SharePlace, Offset] = {}
        for group_id, some in by_group.items():
            rows = await self._persister.summarize(group_id, some)
            found |= {place: row.start_offset for place, row in rows.items() if row.error_code == ErrorCode.NONE}
        return found

    async def delete_group(self, shard: Shard[Groups], group_id: str, places: Sequence[SharePlace]) -> ErrorCode:
        """Have the states end, and then the group.

        Errors: those of `Groups.delete_group`, COORDINATOR_NOT_AVAILABLE.
        """
        groups, shares = self._groups, shard.state.shares
        begun: Pending[ErrorCode] = groups.decide(
            shard, lambda reply, effects: shares.states.begin_deletion(group_id, reply, effects)
        )
        error = await answer_of(begun)
        if error != ErrorCode.NONE:
            return ErrorCode.UNKNOWN_SERVER_ERROR if error is None else error
        errors = await self._persister.delete(group_id, places)
        shares.states.end_deletion(group_id)
        if any(each != ErrorCode.NONE for each in errors.values()):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if shard.unloaded:
            return ErrorCode.NOT_COORDINATOR
        return await answer_of(groups.decide(shard, partial(_delete, shard, group_id))) or ErrorCode.NONE

    async def _initialize(self, group_id: str, state_epoch: int, places: Mapping[SharePlace, Offset]) -> None:
        errors = await self._persister.initialize(group_id, state_epoch, places)
        begun: dict[TopicId, list[int]] = {}
        for place, error in errors.items():
            if error in (ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH):  # A later epoch has begun: there is a state.
                begun.setdefault(place.topic_id, []).append(place.partition)
            else:
                self._groups.broker.log.warning(
                    "the state of a share partition has not begun", partition=str(place), error=error.name
                )
        shard = self._groups.find(group_id)
        if begun and not isinstance(shard, ErrorCode):
            state = shard.state
            self._groups.decide(
                shard, lambda _reply, effects: state.shares.states.on_initialized(group_id, begun, effects)
            )


def _host_of(connection: Connection) -> str:
    return f"/{connection.peer.rpartition(':')[0]}"


def _delete(shard: Shard[Groups], group_id: str, pending: Pending[ErrorCode], effects: Effects) -> None:
    error = shard.state.delete_group(group_id, effects)
    effects.answer_when_committed(pending, error, lambda error: error)


def _nothing() -> None:
    """There is nothing to do after it."""
