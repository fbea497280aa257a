"""Writes records about erasures to the ledger, on this broker or through its leader.

The topic has one partition and is created at the first record. A record is written when it is committed. A write whose
answer was lost is repeated, so the ledger may have a record twice; the later one counts, as in every compacted topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import field

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic
from lowtide.broker.coordinator.runtime.shard import RECORD_OVERHEAD, make_batches
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.client.retries import Backoff
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.erasure_ledger_records import LedgerEntry, encode_entry
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.write_erasures import LedgerRecord, WriteErasuresRequest
from lowtide.replication.topic_names import LEDGER_TOPIC

if TYPE_CHECKING:
    from lowtide.broker.config.key import Value
    from lowtide.metadata.broker_image import BrokerImage

LEDGER_PURPOSE: Final = "erasure ledger"
"""The purpose of connections to the leader of the ledger."""

TIMEOUT_MS: Final = 10_000
"""For one attempt to write."""

REQUEST_BYTES: Final = 512 << 10
"""More records go out in several requests. One record has a tenth of it at most."""

LEDGER_REFUSED: Final = "The ledger of erasures could not be written."

_BACKOFF: Final = Backoff(50, 1_000)
_CONFIGS: Final = (("cleanup.policy", "compact"), ("compression.type", "producer"))
_KEY: Final = ""
"""Any key leads to the only partition."""


class _LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the topic is created: with the replication factor of the offsets topic."""

    topic_replication_factor: int = field(default=3, name="offsets.topic.replication.factor")
    topic_segment_bytes: int = field(default=100 << 20, name="offsets.topic.segment.bytes")

    topic_partition_count = 1
    topic_minimum_in_sync = None


class ErasureLedger:
    """The ledger, as one broker sees it."""

    def __init__(
        self, broker: BrokerContext, administrator: TopicAdministrator, peers: PeerClients, *, is_alone: bool
    ) -> None:
        """`is_alone`: the cluster never has other brokers."""
        values: Mapping[str, Value] = broker.config.values
        factor_is_given = not is_alone or "offsets.topic.replication.factor" in broker.config.given
        self._broker = broker
        self._peers = peers
        self._topic = OffsetsTopic(
            broker,
            administrator,
            msgspec.convert(values, _LedgerSettings),
            factor_is_given=factor_is_given,
            name=LEDGER_TOPIC,
            configs=_CONFIGS,
        )

    async def record(self, entries: Sequence[LedgerEntry], deadline: float) -> ErrorCode:
        """Writes entries, and waits until they are committed or the loop's time has reached `deadline`.

        After an error some may be written; a repetition writes all. Errors: COORDINATOR_NOT_AVAILABLE if the time is
        over, MESSAGE_TOO_LARGE, those of an append that no repetition can mend.
        """
        records = [encode_entry(entry) for entry in entries]
        for part in _parts(records):
            error = await self._written(part, deadline)
            if error != ErrorCode.NONE:
                return error
        return ErrorCode.NONE

    async def append(self, records: Sequence[CoordinatorRecord], timeout_ms: int) -> ErrorCode:
        """Appends records if this broker leads the ledger, and waits until they are committed.

        Errors: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE,
        REQUEST_TIMED_OUT, those of `ReplicaManager.append`.
        """
        replicas, wall_ms = self._broker.replicas, self._broker.clock.wall_ms()
        found = replicas.find(LEDGER_TOPIC, 0)
        if isinstance(found, ErrorCode):
            return found
        if not found.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not found.has_enough_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        batches = make_batches(records, wall_ms, None, found.log.config.max_message_bytes)
        if not batches:
            return ErrorCode.MESSAGE_TOO_LARGE
        end_offset = 0
        for batch in batches:
            appended = replicas.append(found, batch, wall_ms)
            if isinstance(appended, ErrorCode):
                return appended
            end_offset = appended.last_offset + 1
        committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        replicas.when_committed(found, end_offset, partial(_set_result, committed), timeout_ms=timeout_ms)
        return await committed

    async def _written(self, records: Sequence[CoordinatorRecord], deadline: float) -> ErrorCode:
        loop, failures = asyncio.get_running_loop(), 0
        while (left_ms := int((deadline - loop.time()) * 1000)) > 0:
            error = await self._attempt(records, min(left_ms, TIMEOUT_MS))
            if error == ErrorCode.NONE or not (error.retriable or error == ErrorCode.COORDINATOR_NOT_AVAILABLE):
                return error
            failures += 1
            wait_ms = _BACKOFF.rest_ms(failures, self._broker.random.uniform(-1, 1))
            await asyncio.sleep(min(wait_ms / 1000, max(deadline - loop.time(), 0)))
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _attempt(self, records: Sequence[CoordinatorRecord], timeout_ms: int) -> ErrorCode:
        if not self._topic.exists:
            await self._topic.create()
        leader = self._topic.coordinator_of(_KEY)
        if isinstance(leader, ErrorCode):
            return leader
        if leader.broker_id == self._broker.metadata.broker_id:
            return await self.append(records, timeout_ms)
        return await self._send(leader, records, timeout_ms)

    async def _send(self, leader: BrokerImage, records: Sequence[CoordinatorRecord], timeout_ms: int) -> ErrorCode:
        rows = [LedgerRecord(key=key, value=value) for key, value in records]
        request = WriteErasuresRequest(records=rows, timeout_ms=timeout_ms)
        client, version = self._peers.client_of(leader, LEDGER_PURPOSE), API[ApiKey.WRITE_ERASURES].max_version
        try:
            answer: Any = await client.request(ApiKey.WRITE_ERASURES, version, request, timeout_ms)
        except PeerError as error:
            self._broker.log.warning("the leader of the erasure ledger could not be asked", reason=str(error))
            return ErrorCode.NETWORK_EXCEPTION
        return ErrorCode(answer.error_code)


def _parts(records: Sequence[CoordinatorRecord]) -> list[list[CoordinatorRecord]]:
    parts: list[list[CoordinatorRecord]] = []
    size = REQUEST_BYTES
    for record in records:
        size += len(record[0]) + len(record[1] or b"") + RECORD_OVERHEAD
        if size > REQUEST_BYTES or not parts:
            parts.append([])
            size = len(record[0]) + len(record[1] or b"") + RECORD_OVERHEAD
        parts[-1].append(record)
    return parts


def _set_result(done: asyncio.Future[ErrorCode], error: ErrorCode) -> None:
    if not done.done():
        done.set_result(error)
