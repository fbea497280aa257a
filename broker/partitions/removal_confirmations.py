"""Asks brokers whether they have applied the removal of their replicas, while deletes must wait for that (rule DR3).

One task per broker asks one question for all of its removed replicas: whether it has applied the latest of the
metadata revisions. A broker answers as soon as it has, mostly at once.

Guards: the end of every wait, by an answer, a timeout, or the end of a registration or leadership, wakes the deletes
(rule DR4).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lowtide.broker.network.peer_client import PeerError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.await_metadata import AwaitMetadataRequest
from lowtide.replication.former_replicas import awaited_former

if TYPE_CHECKING:
    from lowtide.broker.network.peer_client import PeerClients
    from lowtide.broker.partitions.waiting import Waiting
    from lowtide.broker.promises import Spawn
    from lowtide.metadata.session import MetadataSession
    from lowtide.metadata.store import Revision
    from lowtide.protocol.messages.await_metadata import AwaitMetadataResponse
    from lowtide.protocol.types import BrokerId, TopicPartition
    from lowtide.replication.former_replicas import FormerReplica
    from lowtide.replication.partition import Partition
    from lowtide.runtime.clock import Clock

PURPOSE: Final = "removal"

RETRY_MS: Final = 100
"""The pause after a failed question."""

WAIT_MS: Final = 2000
"""The maximum time of a question, twice as long as a broker keeps it. The next one includes later removals."""


class RemovalConfirmations:
    """The questions of one broker about the partitions that it leads."""

    def __init__(
        self,
        session: MetadataSession,
        peers: PeerClients,
        waiting: Waiting,
        clock: Clock,
        spawn: Spawn,
        *,
        lag_time_max_ms: int,
    ) -> None:
        """A broker is asked for up to `lag_time_max_ms` (`replica.lag.time.max.ms`)."""
        self._session = session
        self._peers = peers
        self._waiting = waiting
        self._clock = clock
        self._spawn = spawn
        self._lag_time_max_ms = lag_time_max_ms
        self._awaited: dict[BrokerId, dict[TopicPartition, Partition]] = {}
        self._asked: set[BrokerId] = set()

    def follow(self, partition: Partition) -> None:
        """Asks the brokers that a changed partition waits for, if this broker leads it."""
        if partition.former_replicas is None or not partition.is_leader:
            return
        for broker_id in awaited_former(partition, self._session.image, self._clock.monotonic_ms()):
            self._awaited.setdefault(broker_id, {})[partition.topic_partition] = partition
            if broker_id not in self._asked:
                self._asked.add(broker_id)
                self._spawn(self._ask(broker_id), name=f"removal-confirmations-{self._session.broker_id}-{broker_id}")

    def on_broker_changed(self, broker_id: BrokerId) -> None:
        """Reacts to a change of a broker, which may end waits for it."""
        if broker_id in self._awaited:
            self._waited_for(broker_id)

    def _waited_for(self, broker_id: BrokerId) -> list[FormerReplica]:
        """Returns the replicas to ask the broker about, and wakes the deletes of the other partitions."""
        image, now_ms, found = self._session.image, self._clock.monotonic_ms(), []
        waiting = self._awaited.get(broker_id, {})
        for key, partition in list(waiting.items()):
            former = awaited_former(partition, image, now_ms).get(broker_id) if partition.is_leader else None
            if former is not None:
                found.append(former)
            else:
                del waiting[key]
                self._wake_deletes(partition)
        if not waiting:
            self._awaited.pop(broker_id, None)
        return found

    def _wake_deletes(self, partition: Partition) -> None:
        if partition.is_leader:
            low_watermark = partition.low_watermark(self._session.image, self._clock.monotonic_ms())
            self._waiting.deletes.advance(partition.topic_partition, low_watermark)

    async def _ask(self, broker_id: BrokerId) -> None:
        try:
            await asyncio.sleep(0)  # One question for all removals of an image.
            while formers := self._waited_for(broker_id):
                revision = max(former.revision for former in formers)
                left_ms = (
                    min(former.since_ms for former in formers) + self._lag_time_max_ms + 1 - self._clock.monotonic_ms()
                )
                if await self._acts_on(broker_id, revision, max(min(left_ms, WAIT_MS), 1)):
                    self._on_confirmed(broker_id, revision)
        finally:
            self._asked.discard(broker_id)

    async def _acts_on(self, broker_id: BrokerId, revision: Revision, wait_ms: int) -> bool:
        """Returns whether the broker applies a revision within this time."""
        broker = self._session.image.brokers.get(broker_id)
        if broker is None:
            return False
        until_ms = self._clock.monotonic_ms() + wait_ms
        request = AwaitMetadataRequest(revision=revision, timeout_ms=wait_ms // 2)
        try:
            client = self._peers.client_of(broker, PURPOSE)
            answer: AwaitMetadataResponse = await client.request(ApiKey.AWAIT_METADATA, 0, request, wait_ms)
            if answer.error_code == ErrorCode.NONE:
                return True
        except PeerError:
            pass
        await asyncio.sleep(min(until_ms - self._clock.monotonic_ms(), RETRY_MS) / 1000)
        return False

    def _on_confirmed(self, broker_id: BrokerId, revision: Revision) -> None:
        waiting = self._awaited.get(broker_id, {})
        for partition in waiting.values():
            if partition.former_replicas is not None:
                partition.former_replicas.note_confirmed(broker_id, revision)
        self._waited_for(broker_id)
