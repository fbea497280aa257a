"""Brokers that are killed and frozen, one at a time, by role: the coordinator of a group, of transactions, or any."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest

from .cluster_processes import ClusterProcesses

GROUP_KEY, TRANSACTION_KEY = 0, 1
AWAY_S = (0.0, 4.0)
FROZEN_S = (0.5, 4.0)


class BrokerFaults:
    """At most one broker is down or frozen, unless all are killed: two of three replicas stay, and work continues."""

    def __init__(self, cluster: ClusterProcesses, chosen: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._random = chosen
        self._away: asyncio.Task[None] | None = None

    async def kill_any(self) -> None:
        """SIGKILL; the broker returns some seconds later, this call at once."""
        await self._begin("a broker killed", self._kill, self._random.choice(self._cluster.ids))

    async def kill_coordinator(self, key_type: int, key: str) -> None:
        """SIGKILL to the coordinator."""
        await self.all_back()
        await self._begin("a coordinator killed", self._kill, await self._coordinator(key_type, key))

    async def freeze_coordinator(self, key_type: int, key: str) -> None:
        """SIGSTOP for some seconds."""
        await self.all_back()
        await self._begin("a coordinator frozen", self._freeze, await self._coordinator(key_type, key))

    async def kill_all(self) -> None:
        """All brokers; returns when they serve again."""
        await self.all_back()
        self.counts["all brokers killed"] += 1
        await self._cluster.restart(*self._cluster.ids)

    async def all_back(self) -> None:
        """Waits for the broker that is down."""
        task, self._away = self._away, None
        if task is not None:
            await task

    def close(self) -> None:
        """No broker is restarted any more."""
        if self._away is not None:
            self._away.cancel()

    async def _begin(self, what: str, fault: Callable[[int], Coroutine[Any, Any, None]], broker_id: int) -> None:
        await self.all_back()
        self.counts[what] += 1
        self._away = asyncio.create_task(fault(broker_id))

    async def _kill(self, broker_id: int) -> None:
        await self._cluster.kill(broker_id)
        await asyncio.sleep(self._random.uniform(*AWAY_S))
        await self._cluster.start(broker_id)

    async def _freeze(self, broker_id: int) -> None:
        self._cluster.freeze(broker_id)
        await asyncio.sleep(self._random.uniform(*FROZEN_S))
        self._cluster.thaw(broker_id)

    async def _coordinator(self, key_type: int, key: str) -> int:
        """Returns the current coordinator according to any broker, or any broker."""
        for broker_id in self._cluster.awake:
            with contextlib.suppress(OSError):
                answer = await self._cluster.ask(
                    broker_id, FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 4
                )
                found = answer.coordinators[0].node_id
                if found in self._cluster.awake:
                    return int(found)
        return self._random.choice(self._cluster.ids)
