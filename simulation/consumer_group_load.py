"""Members of consumer groups (KIP-848), alone or with classic consumers, in a simulated cluster.

Members of the new protocol are in `consumer_member`. Classic consumers work like `group_load`, with the consumer
protocol, so that groups change their type while members work.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from lowtide.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    OWNED_PARTITIONS_SINCE,
    RACK_SINCE,
    encode_assignment,
    parse_assignment,
)
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.types import BrokerId
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.consumer_member import ConsumerMember
from lowtide.simulation.group_load import AnyMember, GroupClient
from lowtide.simulation.group_member import GroupMember
from lowtide.simulation.heartbeat_forms import ConsumerForm, HeartbeatForm
from lowtide.simulation.owning_member import SESSION_TIMEOUT_MS, OwnedGroup, OwningMember, Seat

CONSUMER_GROUP_SETTINGS: Final = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "200",
}

PARTITIONS_MAX: Final = 6
_CREATE_PARTITIONS_VERSION: Final = 3
_ADMIN_TIMEOUT_MS: Final = 2000


class ConsumerGroupLoad(OwnedGroup):
    """A group and its clients."""

    known_at: Callable[[BrokerId], object]
    """The broker's state of the group: the same object while it coordinates the group; None until it is loaded."""

    def make_consumers(
        self,
        instances: tuple[str | None, ...],
        classic_instances: tuple[str | None, ...] = (),
        form: Callable[[OwnedGroup, Random], HeartbeatForm] = ConsumerForm,
    ) -> list[AnyMember]:
        """Creates members of both protocols; those with an instance id are static."""
        self.owners.changes_kind = self.owners.changes_kind or bool(classic_instances)
        made: list[AnyMember] = []
        for kind, name, named in (
            (partial(ConsumerMember, form=form), "member", instances),
            (ClassicConsumer, "classic", classic_instances),
        ):
            for instance in named:
                client = self.make_client(f"{name} {len(self.members) + len(made)}")
                made.append(kind(self, client, Random(self.random.getrandbits(64)), instance))
        self.members += made
        return made

    def share_seat(self, instance: str) -> list[AnyMember]:
        """Creates two members, one per protocol, that alternate as one instance."""
        pair = self.make_consumers((instance,), (instance,))[-2:]
        seat = Seat(pair[0], pair[1])
        for member in pair:
            assert isinstance(member, OwningMember)
            member.seat = seat
        return pair

    def make_grower(self) -> Grower:
        return Grower(self, self.make_client("grows"), Random(self.random.getrandbits(64)))


class ClassicConsumer(OwningMember, GroupMember):
    """A classic consumer that gives up all partitions before it rejoins."""

    load: ConsumerGroupLoad
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
        return [
            number
            for topic, numbers in parse_assignment(assignment).topics
            if topic == self.load.topic
            for number in numbers
        ]

    def on_joined(self, generation_id: int, given_out_before: int, voids: int) -> None:
        """Its epoch may be behind those of others in a consumer group."""

    def on_assigned(self, asked_s: float, given_out_before: int, voids: int) -> None:
        if voids == self.load.history.voids:
            self.load.owners.on_alive(self.client.name, asked_s)
            self.load.owners.generation_id = max(self.load.owners.generation_id, self.generation_id)
        self.own(self.partitions, asked_s, voids)

    async def heartbeat(self) -> bool:
        asked_s, voids, before = self.client.now_s(), self.load.history.voids, self.partitions[:]
        known = self._known_there()
        is_well = await super().heartbeat()
        # A loading coordinator answers every heartbeat with success, as in Kafka, also those of removed members
        if is_well and known is not None and self._known_there() is known and voids == self.load.history.voids:
            self.load.owners.on_alive(self.client.name, asked_s)
            self.own(before, asked_s, voids)
        return is_well

    def _known_there(self) -> object | None:
        return None if self._coordinator is None else self.load.known_at(self._coordinator)

    async def commit_own(self, partition: int) -> int:
        since_s = self.load.owners.since_s(self.client.name, partition)
        return await self.commit_as(partition, self._member_id, self.generation_id, since_s, None)

    def forget(self, *, identity: str) -> None:
        self.load.owners.on_leaving(self.client.name)
        self.remember_for_late()
        self.release(self.partitions)
        super().forget(identity=identity)


class Grower(GroupClient):
    """Adds partitions to the topic."""

    load: ConsumerGroupLoad

    async def step(self) -> None:
        await asyncio.sleep(self.random.uniform(1.0, 4.0))
        count = self.load.topic_state()[1] + 1
        if count <= PARTITIONS_MAX and not self.load.is_calm:
            topic = CreatePartitionsTopic(name=self.load.topic, count=count, assignments=None)
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=_ADMIN_TIMEOUT_MS, validate_only=False)
            broker = self.client.any_broker()
            await self.client.ask(
                broker, request, _CREATE_PARTITIONS_VERSION, timeout_ms=_ADMIN_TIMEOUT_MS, must_answer=False
            )
