"""Members of groups whose partitions the broker assigns (KIP-848), alone or together with classic consumers, in a simulated cluster.

A member joins, reports what it has, gives back what is revoked in its own time, and only then takes what it gets; commits for what it has;
leaves, for good or to be back as the instance that it is; and dies. Classic consumers do what `group_load` says, in the form of the
consumer protocol, so that groups change their kind while members work. All keep the history that `owner_history` judges.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import Counter
from collections.abc import Callable
from typing import Final

from lowtide.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    OWNED_PARTITIONS_SINCE,
    RACK_SINCE,
    encode_assignment,
    parse_assignment,
)
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from lowtide.protocol.types import TopicId
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.group_load import BEHIND, COMMITTED_MS, NOT_YET_THERE, OUT, AnyMember, GroupClient, GroupLoad, GroupMember
from lowtide.simulation.owner_history import OwnerHistory

SESSION_TIMEOUT_MS: Final = 3000
REBALANCE_TIMEOUT_MS: Final = 3000
STABLE_WITHIN_S: Final = 30.0
"""A session and a rebalance, twice, and the ten seconds between two matchings of a pattern."""

CONSUMER_GROUP_SETTINGS: Final = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "200",
}
"""Of brokers."""

LOST_FOR_S: Final = 6.0
"""For so long a request may be on its way of which nothing was heard: links are cut and brokers stopped for less."""

PARTITIONS_MAX: Final = 6
_GONE: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND}) | OUT
_STALE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH})
_LATE: Final = _STALE | _GONE | BEHIND | NOT_YET_THERE
_FETCH_VERSION: Final = 9
_COMMIT_VERSION: Final = 9
_CREATE_PARTITIONS_VERSION: Final = 3
_ADMIN_TIMEOUT_MS: Final = 2000


class ConsumerGroupLoad(GroupLoad):
    """What all clients of one group share. `topic_state` tells the topic's id and how many partitions it has."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        group_id: str,
        topic: str,
        partitions: int,
        topic_state: Callable[[], tuple[TopicId, int]],
        make_client: Callable[[str], ClusterClient],
        random: Random,
        counts: Counter[str],
    ) -> None:
        super().__init__(group_id, topic, partitions, make_client, random, counts)
        self.topic_state = topic_state
        self.stable_within_s = STABLE_WITHIN_S
        self.session_timeout_ms = SESSION_TIMEOUT_MS
        self.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
        self.owners = OwnerHistory(group_id, changes_kind=False)
        self.history = self.owners

    def make_consumers(self, instances: tuple[str | None, ...], classic_instances: tuple[str | None, ...] = ()) -> list[AnyMember]:
        """Members of the new protocol, and of the classic one; those with an instance id are static."""
        self.owners.changes_kind = self.owners.changes_kind or bool(classic_instances)
        made: list[AnyMember] = []
        for kind, name, named in ((ConsumerMember, "member", instances), (ClassicConsumer, "classic", classic_instances)):
            for instance in named:
                client = self.make_client(f"{name} {len(self.members) + len(made)}")
                made.append(kind(self, client, Random(self.random.getrandbits(64)), instance))
        self.members += made
        return made

    def share_seat(self, instance: str) -> list[AnyMember]:
        """Two members, one of each protocol, that are one instance by turns."""
        pair = self.make_consumers((instance,), (instance,))[-2:]
        seat = Seat(pair[0], pair[1])
        for member in pair:
            assert isinstance(member, OwningMember)
            member.seat = seat
        return pair

    def make_grower(self) -> Grower:
        """One who adds partitions to the topic."""
        return Grower(self, self.make_client("grows"), Random(self.random.getrandbits(64)))

    @property
    def is_stable(self) -> bool:
        """Whether all members are in one epoch, and each partition that there is by now has an owner."""
        self.partitions = self.topic_state()[1]
        return super().is_stable


class Seat:
    """A place in a group that two members take by turns."""

    def __init__(self, holder: AnyMember, other: AnyMember) -> None:
        self.holder = holder
        self._other = other

    def change(self) -> None:
        """The other's turn."""
        self.holder, self._other = self._other, self.holder


class OwningMember(AnyMember):
    """A member that keeps the history of what it has."""

    load: ConsumerGroupLoad
    seat: Seat | None = None

    def __init__(self, load: ConsumerGroupLoad, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random, instance)
        self._unsure_until_s = -1.0
        self._late: tuple[str, int, dict[int, float]] | None = None

    @property
    def is_away(self) -> bool:
        return self.is_gone or (self.seat is not None and (self.seat.holder is not self or self.seat.holder.is_gone))

    async def be_silent(self) -> None:
        if self.seat is not None:
            self.seat.change()
        await super().be_silent()

    def own(self, partitions: list[int], asked_s: float, voids: int) -> None:
        """It has these, by the answer to its request of `asked_s`. Errors: HistoryError."""
        history, now_s = self.load.owners, self.client.now_s()
        if voids != history.voids:
            return
        history.on_owned(self.client.name, partitions, asked_s=asked_s if asked_s > self._unsure_until_s else -2.0, now_s=now_s)

    def release(self, partitions: list[int]) -> None:
        """It gives these back."""
        self.load.owners.on_released(self.client.name, partitions)

    def on_lost(self) -> None:
        """A request of it has no answer: its outcome is unknown, and so is when it is carried out."""
        self._unsure_until_s = self.client.now_s() + LOST_FOR_S
        self.load.owners.on_unsure(self.client.name)

    def remember_for_late(self) -> None:
        """It is about to be out: what it has now, it may still commit for, it thinks."""
        tenures = {number: since for number in self.partitions if (since := self.load.owners.since_s(self.client.name, number)) is not None}
        if self._member_id and tenures and self.generation_id >= 0:
            self._late = self._member_id, self.generation_id, tenures

    async def commit_as(self, partition: int, member_id: str, generation_id: int, since_s: float | None, version: int | None) -> int:
        """Commit for a partition that it got at `since_s`. Returns the error code."""
        asked_s, voids = self.client.now_s(), self.load.history.voids
        code = await self.commit(partition, member_id=member_id, instance=self._instance, generation_id=generation_id, version=version)
        if code == ErrorCode.NONE and since_s is not None and voids == self.load.history.voids:
            self.load.owners.on_owner_committed(self.client.name, partition, since_s=since_s, asked_s=asked_s)
        return code

    async def commit_late(self, version: int | None) -> None:
        """Commit as who it was before, for what it had then."""
        if self._late is not None:
            member_id, generation_id, tenures = self._late
            partition = self.random.choice(list(tenures))
            code = await self.commit_as(partition, member_id, generation_id, tenures[partition], version)
            if not self.has("late OffsetCommit", code, _LATE) and code in OUT:
                self._late = None


class ConsumerMember(OwningMember):
    """A member of the new protocol."""

    def __init__(self, load: ConsumerGroupLoad, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random, instance)
        self.generation_id = -1
        self._assigned: list[int] = []
        """The partitions of the last assignment it received."""
        self._assigned_s = 0.0
        self._tells_all = True
        self._gives_back_s = 0.0
        """When it gives back what is revoked, at the earliest."""
        self._must_since_s = math.inf
        """Since when a partition is revoked: for that it has its rebalance time-out, whatever it asks meanwhile."""
        self._uses_pattern = random.random() < 0.3  # noqa: PLR2004
        self._makes_id = random.random() < 0.8 or self._uses_pattern  # noqa: PLR2004
        self._assignor = random.choice((None, None, "uniform", "range"))

    async def step(self) -> None:
        if self.is_away:
            self.client.close()
            return
        chance = self.random.random()
        if self.generation_id < 0:
            if self._late is not None and chance < 0.2:  # noqa: PLR2004
                await self.commit_late(_COMMIT_VERSION)
            await self.heartbeat()
        elif self.load.is_calm or chance < 0.5:  # noqa: PLR2004
            await self.heartbeat()
        else:
            await self._work(chance)
        self._reconcile()

    async def _work(self, chance: float) -> None:
        if chance < 0.75 and self.partitions:  # noqa: PLR2004
            partition = self.random.choice(self.partitions)
            since_s = self.load.owners.since_s(self.client.name, partition)
            code = await self.commit_as(partition, self._member_id, self.generation_id, since_s, _COMMIT_VERSION)
            if not self.has("OffsetCommit", code, _LATE) and code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._forget()
        elif chance < 0.9:  # noqa: PLR2004
            await self._fetch_own()
        elif chance < 0.92:  # noqa: PLR2004
            await self.commit_late(_COMMIT_VERSION)
        elif chance < 0.94:  # noqa: PLR2004
            self._uses_pattern = self._makes_id and not self._uses_pattern
            self._tells_all = True
        elif chance < 0.97:  # noqa: PLR2004
            await self._leave()
        else:
            self.client.note("dies")
            self._forget(keeps_id=False)
            self.client.close()
            await self.be_silent()

    async def heartbeat(self) -> None:
        """Join, or report what it has; receive what it is to have."""
        history, joins = self.load.owners, self.generation_id < 0
        if joins and self._makes_id and not self._member_id:
            self._member_id = f"{self.client.name} {self.random.getrandbits(64):x}"
        request = self._request(joins=joins)
        given_out, voids, beginnings, asked_s = history.generation_id, history.voids, history.beginnings, self.client.now_s()
        try:
            answer = await self.ask(request, 1 if self._makes_id else 0, timeout_ms=COMMITTED_MS)
        except OSError:
            self._tells_all = True
            self.on_lost()
            raise
        if not self.has("ConsumerGroupHeartbeat", answer.error_code, _GONE):
            if answer.error_code in _GONE:
                self._forget(keeps_id=answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH)
            self._tells_all = True
            return
        if voids == history.voids:
            history.on_alive(asked_s)
            known = 0 if joins else self.generation_id
            now_s = self.client.now_s()
            history.on_epoch(answer.member_epoch, known=known, given_out_before=given_out, beginnings=beginnings, now_s=now_s)
        self._on_answer(answer, asked_s, voids, joins=joins)

    def _request(self, *, joins: bool) -> ConsumerGroupHeartbeatRequest:
        load = self.load
        tells_all = joins or self._tells_all or self.random.random() < 0.3  # noqa: PLR2004
        topic_id, _ = load.topic_state()
        rows = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=self.partitions)] if self.partitions else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.key,
            member_id=self._member_id,
            member_epoch=JOIN_EPOCH if joins else self.generation_id,
            instance_id=self._instance,
        )
        if tells_all:
            request.rebalance_timeout_ms = load.rebalance_timeout_ms
            request.subscribed_topic_names = [] if self._uses_pattern else [load.topic]
            request.subscribed_topic_regex = (f"{load.topic[:3]}.*" if self._uses_pattern else "") if self._makes_id else None
            request.server_assignor = self._assignor
            request.topic_partitions = rows
            self._tells_all = False
        elif sorted(self._assigned) == sorted(self.partitions):
            request.topic_partitions = rows
        return request

    def _on_answer(self, answer: ConsumerGroupHeartbeatResponse, asked_s: float, voids: int, *, joins: bool) -> None:
        self._member_id = answer.member_id or self._member_id
        if answer.member_epoch != self.generation_id:
            self.client.note(f"is in epoch {answer.member_epoch}{' (joins)' if joins else ''} of {self.key}")
        self.generation_id, self._assigned_s = answer.member_epoch, asked_s
        if answer.assignment is not None:
            topic_id, _ = self.load.topic_state()
            assigned = [number for row in answer.assignment.topic_partitions if row.topic_id == topic_id for number in row.partitions]
            if assigned != self._assigned:
                self.client.note(f"is to have {assigned}, has {self.partitions}")
                slow = self.random.random() < 0.15 and not self.load.is_calm  # noqa: PLR2004 - some are out by that
                self._gives_back_s = asked_s + (self.random.choice((0.5, 1.0, 4.0)) if slow else 0.0)
            self._assigned = assigned
        kept = [number for number in self.partitions if number in self._assigned]
        self._must_since_s = math.inf if len(kept) == len(self.partitions) else min(self._must_since_s, asked_s)
        self.own(kept, min(asked_s, self._must_since_s), voids)

    def _reconcile(self) -> None:
        """Give back, and then take."""
        if sorted(self._assigned) == sorted(self.partitions) or self.generation_id < 0 or self.client.now_s() < self._gives_back_s:
            return
        self.release([number for number in self.partitions if number not in self._assigned])
        self.partitions, self._must_since_s = self._assigned[:], math.inf
        self.client.note(f"has {self.partitions}, in epoch {self.generation_id}")
        self.own(self.partitions, self._assigned_s, self.load.history.voids)

    async def _fetch_own(self) -> None:
        """Ask for the offsets of what it has, as a member."""
        load, history, partitions = self.load, self.load.history, self.partitions[:]
        before = {number: history.committed.get(number, -1) for number in partitions}
        wanted = [OffsetFetchRequestTopics(name=load.topic, partition_indexes=partitions)]
        group = OffsetFetchRequestGroup(group_id=self.key, member_id=self._member_id, member_epoch=self.generation_id, topics=wanted)
        voids = history.voids
        answer = await self.ask(OffsetFetchRequest(groups=[group], require_stable=True), _FETCH_VERSION, timeout_ms=COMMITTED_MS)
        fetched = answer.groups[0]
        if self.has("OffsetFetch", fetched.error_code, _STALE | OUT | {ErrorCode.GROUP_ID_NOT_FOUND}):
            for row in fetched.topics[0].partitions if fetched.topics else ():
                if self.has("OffsetFetch", row.error_code, NOT_YET_THERE):
                    number = row.partition_index
                    history.on_fetched(number, row.committed_offset, committed_before=before[number], voids=voids)

    async def _leave(self) -> None:
        """Say goodbye; a static member may say that it will be back, and then its place is kept."""
        epoch = STATIC_LEAVE_EPOCH if self._instance is not None and self.random.random() < 0.7 else LEAVE_EPOCH  # noqa: PLR2004
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.key, member_id=self._member_id, member_epoch=epoch, instance_id=self._instance, topic_partitions=[]
        )
        self.client.note(f"leaves ({epoch})")
        self._forget(keeps_id=False)
        try:
            answer = await self.ask(request, 1 if self._makes_id else 0, timeout_ms=COMMITTED_MS)
        except OSError:
            self.on_lost()
            raise
        self.has("leaving", answer.error_code, _GONE)

    def _forget(self, *, keeps_id: bool = True) -> None:
        self.remember_for_late()
        self.release(self.partitions)
        self.generation_id, self.partitions, self._assigned, self._tells_all = -1, [], [], True
        if not keeps_id:
            self._member_id = ""


class ClassicConsumer(OwningMember, GroupMember):
    """A consumer of the classic protocol, that gives everything back before it joins again."""

    protocol_type = CONSUMER_PROTOCOL_TYPE
    protocol = "range"

    def __init__(self, load: ConsumerGroupLoad, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random, instance)
        self._version = random.choice((0, 1, 3))

    async def step(self) -> None:
        if self._late is not None and self.random.random() < 0.05:  # noqa: PLR2004
            await self.commit_late(None)
        try:
            await super().step()
        except OSError:
            self.on_lost()
            raise

    def subscription(self) -> bytes:
        name = self.load.topic.encode()
        content = struct.pack(">hih", self._version, 1, len(name)) + name + struct.pack(">i", -1)
        content += struct.pack(">i", 0) if self._version >= OWNED_PARTITIONS_SINCE else b""
        return content + (struct.pack(">ih", -1, -1) if self._version >= RACK_SINCE else b"")

    def encode(self, partitions: list[int]) -> bytes:
        return encode_assignment(0, [(self.load.topic, partitions)] if partitions else [])

    def decode(self, assignment: bytes) -> list[int]:
        return [number for topic, numbers in parse_assignment(assignment).topics if topic == self.load.topic for number in numbers]

    def on_joined(self, generation_id: int, given_out_before: int, voids: int) -> None:
        """Its own epoch may be behind those of others, in a group of the new kind."""

    def on_assigned(self, asked_s: float, given_out_before: int, voids: int) -> None:
        if voids == self.load.history.voids:
            self.load.owners.on_alive(asked_s)
            self.load.owners.generation_id = max(self.load.owners.generation_id, self.generation_id)
        self.own(self.partitions, asked_s, voids)

    async def heartbeat(self) -> bool:
        asked_s, voids, before = self.client.now_s(), self.load.history.voids, self.partitions[:]
        is_well = await super().heartbeat()
        if is_well and voids == self.load.history.voids:
            self.load.owners.on_alive(asked_s)
            self.own(before, asked_s, voids)
        return is_well

    async def commit_own(self, partition: int) -> int:
        since_s = self.load.owners.since_s(self.client.name, partition)
        return await self.commit_as(partition, self._member_id, self.generation_id, since_s, None)

    def forget(self, *, identity: str) -> None:
        self.remember_for_late()
        self.release(self.partitions)
        super().forget(identity=identity)


class Grower(GroupClient):
    """Adds a partition to the topic, now and then."""

    load: ConsumerGroupLoad

    async def step(self) -> None:
        await asyncio.sleep(self.random.uniform(1.0, 4.0))
        count = self.load.topic_state()[1] + 1
        if count <= PARTITIONS_MAX and not self.load.is_calm:
            topic = CreatePartitionsTopic(name=self.load.topic, count=count, assignments=None)
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=_ADMIN_TIMEOUT_MS, validate_only=False)
            broker = self.client.any_broker()
            await self.client.ask(broker, request, _CREATE_PARTITIONS_VERSION, timeout_ms=_ADMIN_TIMEOUT_MS, must_answer=False)
