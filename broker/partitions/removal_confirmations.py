"""Asks brokers whether they act on the removal of their replicas, as long as deletes would have to wait for that (rule DR3).

One task for each broker that is asked, one question for all of its replicas that were removed: whether it acts on metadata of the latest
of those revisions. It answers as soon as it does, mostly at once.

Guards: every end of the wait, by an answer, by time, by the end of a registration or of the leadership, wakes the deletes (rule DR4).
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
"""How long it rests after a question that failed."""

WAIT_MS: Final = 2000
"""How long an answer may take, and twice as long as a broker keeps the question: then it is asked about what was removed since, too."""


class RemovalConfirmations:
    """Asks for one broker, of the partitions that it leads."""

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
        """`lag_time_max_ms` is `replica.lag.time.max.ms`: so long a broker is asked."""
        self._session = session
        self._peers = peers
        self._waiting = waiting
        self._clock = clock
        self._spawn = spawn
        self._lag_time_max_ms = lag_time_max_ms
        self._awaited: dict[BrokerId, dict[TopicPartition, Partition]] = {}
        self._asked: set[BrokerId] = set()

    def follow(self, partition: Partition) -> None:
        """A partition has changed: ask whom it waits for, if this broker leads it."""
        if partition.former_replicas is None or not partition.is_leader:
            return
        for broker_id in awaited_former(partition, self._session.image, self._clock.monotonic_ms()):
            self._awaited.setdefault(broker_id, {})[partition.topic_partition] = partition
            if broker_id not in self._asked:
                self._asked.add(broker_id)
                self._spawn(self._ask(broker_id), name=f"removal-confirmations-{self._session.broker_id}-{broker_id}")

    def on_broker_changed(self, broker_id: BrokerId) -> None:
        """A broker came, went, or lost a directory: perhaps it is waited for no more."""
        if broker_id in self._awaited:
            self._waited_for(broker_id)

    def _waited_for(self, broker_id: BrokerId) -> list[FormerReplica]:
        """What the broker is to be asked about; deletes of the partitions where that is over are woken."""
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
            await asyncio.sleep(0)  # What an image removes is asked about together.
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
        """Whether the broker acts on a revision, or comes to within this time."""
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
