"""Clients of coordinators: they find the coordinator of a key, and take one step after another until the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.types import BrokerId
from lowtide.runtime.random import Random
from lowtide.simulation.client import ConnectionLostError
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.history import HistoryError

GROUP: Final = 0
TRANSACTION: Final = 1

FIND_TIMEOUT_MS: Final = 5500
"""The coordinator may have to create the topic first."""

MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors after which another broker may be the coordinator."""

COMES_AGAIN: Final = MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Errors that can be retried."""

_FIND_VERSION: Final = 3
_RETRY_S: Final = 0.05


class Coordinated:
    """A client of the coordinator of one key."""

    def __init__(self, key: str, key_type: int, client: ClusterClient, random: Random, counts: Counter[str]) -> None:
        self.key = key
        self.client = client
        self.random = random
        self.counts = counts
        self._key_type = key_type
        self._coordinator: BrokerId | None = None

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        """Takes steps until `until` is set."""
        while not until.is_set():
            try:
                await self.step()
            except OSError:
                self.counts["lost"] += 1
                self.forget_coordinator()
                await asyncio.sleep(_RETRY_S)
            except HistoryError as error:
                self.client.chronicle.violate(str(error))
                break
            await asyncio.sleep(self.random.random() * pause_s)
        self.client.close()

    async def step(self) -> None:
        """Takes one step. Errors: OSError, HistoryError."""
        raise NotImplementedError

    def forget_coordinator(self) -> None:
        self._coordinator = None

    def note_moved(self, code: int) -> None:
        """Forgets the coordinator if the response says that it moved."""
        if code in MOVED:
            self.forget_coordinator()

    async def find_coordinator(self) -> BrokerId:
        """Returns the known or requested coordinator. Errors: OSError if there is none."""
        if self._coordinator is None:
            self._coordinator = await self._find()
        return self._coordinator

    async def ask(self, request: Any, version: int, *, timeout_ms: int, must_answer: bool | None = None) -> Any:
        """Asks the coordinator, which must answer in time for a group.

        Errors: OSError without coordinator or answer.
        """
        coordinator = await self.find_coordinator()
        must = self._key_type == GROUP if must_answer is None else must_answer
        return await self.client.ask(coordinator, request, version, timeout_ms=timeout_ms, must_answer=must)

    def has(self, what: str, code: int, expected: frozenset[ErrorCode] = frozenset()) -> bool:
        """Returns whether a response is a success.

        Errors: HistoryError for an error neither `expected` nor retriable.
        """
        self.counts[f"{what} {ErrorCode(code).name}"] += 1
        self.note_moved(code)
        if code != ErrorCode.NONE and code not in COMES_AGAIN | expected:
            raise HistoryError(f"{self.key}: {what} answered {ErrorCode(code).name}")
        return code == ErrorCode.NONE

    async def _find(self) -> BrokerId:
        request = FindCoordinatorRequest(key=self.key, key_type=self._key_type)
        answer = await self.client.ask(self.client.any_broker(), request, _FIND_VERSION, timeout_ms=FIND_TIMEOUT_MS)
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionLostError(f"{self.key} has no coordinator")
        return BrokerId(answer.node_id)
