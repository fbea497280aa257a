"""Clients of coordinators in a simulated cluster: they find out who coordinates a key, and take one step after the other till the end."""

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
"""The topic may have to be created first, which is waited for."""

MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Another broker may be the coordinator by now."""

COMES_AGAIN: Final = MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Worth asking again."""

_FIND_VERSION: Final = 3
_RETRY_S: Final = 0.05


class Coordinated:
    """One client of the coordinator of one key."""

    def __init__(self, key: str, key_type: int, client: ClusterClient, random: Random, counts: Counter[str]) -> None:
        self.key = key
        self.client = client
        self.random = random
        self.counts = counts
        self._key_type = key_type
        self._coordinator: BrokerId | None = None

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        """Do one step after the other, until `until` is set."""
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
        """One thing. Errors: OSError, HistoryError."""
        raise NotImplementedError

    def forget_coordinator(self) -> None:
        """Another broker may be it."""
        self._coordinator = None

    def note_moved(self, code: int) -> None:
        """An answer may say that another broker is the coordinator."""
        if code in MOVED:
            self.forget_coordinator()

    async def find_coordinator(self) -> BrokerId:
        """The broker that it takes for the coordinator; asked for where it knows none.

        Errors: OSError when there is none.
        """
        if self._coordinator is None:
            self._coordinator = await self._find()
        return self._coordinator

    async def ask(self, request: Any, version: int, *, timeout_ms: int, must_answer: bool | None = None) -> Any:
        """Ask the coordinator; that of a group must answer in time.

        Errors: OSError when there is none, or no answer.
        """
        coordinator = await self.find_coordinator()
        must = self._key_type == GROUP if must_answer is None else must_answer
        return await self.client.ask(coordinator, request, version, timeout_ms=timeout_ms, must_answer=must)

    def has(self, what: str, code: int, expected: frozenset[ErrorCode] = frozenset()) -> bool:
        """Whether an answer was a success.

        Errors: HistoryError for one that is none, and neither `expected` nor worth another try.
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
