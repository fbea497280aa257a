"""A client of a simulated cluster: finds leaders, keeps a connection to each broker, and checks response times.

D13: a request is answered within its timeout and a second. A broker that does not answer is a violation unless it has
an excuse: its process, its disk or its network was in trouble since the request. It never retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.types import BrokerId
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import ConnectionLostError, WireClient
from lowtide.simulation.machines import Machine, State

GRACE_MS: Final = 1000
"""The time after its timeout within which a response must come."""

CONNECT_LIMIT_S: Final = 1.0
METADATA_TIMEOUT_MS: Final = 1000
METADATA_VERSION: Final = 12


class Excuses:
    """The last time at which each machine was excused from answering."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._last_s: dict[BrokerId, float] = {}
        self._now: dict[BrokerId, int] = {}

    def begin(self, broker_id: BrokerId) -> None:
        self._now[broker_id] = self._now.get(broker_id, 0) + 1

    def end(self, broker_id: BrokerId, *, after_s: float = 0.0) -> None:
        """Ends an excuse, which has an effect for some time."""
        self._now[broker_id] -= 1
        self.note(broker_id, after_s=after_s)

    def note(self, broker_id: BrokerId, *, after_s: float = 0.0) -> None:
        self._last_s[broker_id] = max(self._loop.time() + after_s, self._last_s.get(broker_id, -1.0))

    def since(self, broker_id: BrokerId, moment_s: float) -> bool:
        """Returns whether there was an excuse since then."""
        return bool(self._now.get(broker_id)) or self._last_s.get(broker_id, -1.0) >= moment_s


class ClusterClient:
    """A client with one connection to each broker. Used by one task at a time."""

    def __init__(
        self,
        *,
        name: str,
        machines: Sequence[Machine],
        random: Random,
        loop: SimulatedLoop,
        excuses: Excuses,
        chronicle: Chronicle,
    ) -> None:
        self.name = name
        self.chronicle = chronicle
        self.leader_epochs: dict[tuple[str, int], int] = {}
        self.ignores_older_epochs = False
        """Whether reports of older leader epochs are ignored, as in client libraries (KIP-320)."""
        self._topic_ids: dict[str, bytes] = {}
        self._machines = {machine.broker_id: machine for machine in machines}
        self._random = random
        self._loop = loop
        self._excuses = excuses
        self._connections: dict[BrokerId, WireClient] = {}
        self._leaders: dict[tuple[str, int], BrokerId] = {}

    def note(self, what: str) -> None:
        self.chronicle.note(self.name, what)

    def now_s(self) -> float:
        """Returns the virtual time."""
        return self._loop.time()

    async def leader(self, topic: str, partition: int) -> BrokerId:
        """Returns the last reported leader. Errors: OSError if no broker answers or leads."""
        known = self._leaders.get((topic, partition))
        if known is None:
            await self._learn(topic)
            known = self._leaders.get((topic, partition))
        if known is None:
            raise ConnectionLostError(f"no broker leads {topic}-{partition}")
        return known

    def forget(self, topic: str, partition: int) -> None:
        """Forgets the leader, so that the next request asks again."""
        self._leaders.pop((topic, partition), None)

    def any_broker(self) -> BrokerId:
        return self._random.choice(list(self._machines))

    async def ask(
        self, broker_id: BrokerId, request: Any, version: int, *, timeout_ms: int, must_answer: bool = True
    ) -> Any:
        """Sends a request and waits. Errors: OSError if the connection is lost, or an excused broker does not answer.

        Without `must_answer` no excuse is needed.
        """
        connection = await self._connection(broker_id)
        sent_s = self._loop.time()
        was_starting = self._machines[broker_id].state is not State.UP
        answer = connection.send(request, version)
        try:
            async with asyncio.timeout((timeout_ms + GRACE_MS) / 1000):
                return await answer
        except TimeoutError:
            connection.close()
            if must_answer and not (
                self._excuses.since(broker_id, sent_s) or self._machines[broker_id].started_s >= sent_s or was_starting
            ):
                what = type(request).__name__
                self.chronicle.violate(
                    f"D13: {self.name} asked broker {broker_id} at {sent_s:.4f} s, no answer to {what} of {timeout_ms} "
                    "ms"
                )
            raise ConnectionLostError("no answer") from None

    async def connect(self, broker_id: BrokerId) -> None:
        """Connects, so that requests sent together use one connection. Errors: OSError."""
        await self._connection(broker_id)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def _connection(self, broker_id: BrokerId) -> WireClient:
        known = self._connections.get(broker_id)
        if known is not None and not known.lost:
            return known
        self._connections.pop(broker_id, None)
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                made = await WireClient.connect(*self._machines[broker_id].address)
        except TimeoutError:
            raise ConnectionLostError(f"broker {broker_id} can't be reached") from None
        self._connections[broker_id] = made
        return made

    async def _learn(self, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = await self.ask(self.any_broker(), request, METADATA_VERSION, timeout_ms=METADATA_TIMEOUT_MS)
        for row in answer.topics:
            is_same = self._topic_ids.get(topic) == row.topic_id
            self._topic_ids[topic] = row.topic_id
            for partition in row.partitions:
                key = topic, partition.partition_index
                if self.ignores_older_epochs and is_same and partition.leader_epoch < self.leader_epochs.get(key, -1):
                    continue
                if partition.error_code == ErrorCode.NONE and partition.leader_id in self._machines:
                    self._leaders[key] = partition.leader_id
                    self.leader_epochs[key] = partition.leader_epoch


Now = Callable[[], float]
