"""Writes records about erasures to the ledger and reads them, on this broker or through its leader.

The topic has one partition and is created at the first record. A record is written when it is committed. A write whose
answer was lost is repeated, so the ledger may have a record twice; the later one counts, as in every compacted topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import field

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic
from lowtide.broker.coordinator.runtime.shard import make_batches, split_batches
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.partitions.commit_waits import committed_end
from lowtide.broker.promises import future_of
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.client.retries import Backoff
from lowtide.protocol.erasure_ledger_records import LedgerEntry, decode_entry, decode_key, encode_entry
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.read_erasures import ErasuresPartition, ReadErasuresRequest, ReadErasuresResponse
from lowtide.protocol.messages.write_erasures import LedgerRecord, WriteErasuresRequest, WriteErasuresResponse
from lowtide.protocol.records import iterate_records, sound_batches
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, TopicId
from lowtide.replication.topic_names import LEDGER_TOPIC
from lowtide.storage.errors import DamagedSegmentError, StorageError, storage_error
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES

if TYPE_CHECKING:
    from lowtide.broker.config.key import Value
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.log import Log

LEDGER_PURPOSE: Final = "erasure ledger"
"""The purpose of connections to the leader of the ledger."""

TIMEOUT_MS: Final = 10_000
"""For one attempt to write."""

REQUEST_BYTES: Final = 512 << 10
"""More records go out in several requests. One record has a tenth of it at most."""

LEDGER_REFUSED: Final = "The ledger of erasures could not be written."

STEP_BYTES: Final = 64 << 10
STEPS: Final = 16
"""What one request reads of the ledger: so many steps of so many bytes, between which others have their turn."""

_BACKOFF: Final = Backoff(50, 1_000)
_CONFIGS: Final = (("cleanup.policy", "compact"), ("compression.type", "producer"))
_KEY: Final = ""
"""Any key leads to the only partition."""


class LedgerPartition(NamedTuple):
    """A partition that the ledger may have records about."""

    topic_id: TopicId
    partition: int


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
        parts = split_batches([encode_entry(entry) for entry in entries], REQUEST_BYTES) if entries else []
        if parts is None:
            return ErrorCode.MESSAGE_TOO_LARGE
        for part in parts:
            rows = [LedgerRecord(key=key, value=value) for key, value in part]
            request = WriteErasuresRequest(records=rows, timeout_ms=TIMEOUT_MS)
            answer = await self._asked(ApiKey.WRITE_ERASURES, request, self.append, deadline)
            if answer.error_code != ErrorCode.NONE:
                return ErrorCode(answer.error_code)
        return ErrorCode.NONE

    async def append(self, request: WriteErasuresRequest) -> WriteErasuresResponse:
        """Appends records if this broker leads the ledger, and waits until they are committed.

        Errors: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE,
        REQUEST_TIMED_OUT, those of `ReplicaManager.append`.
        """
        return WriteErasuresResponse(error_code=await self._appended(request))

    async def _appended(self, request: WriteErasuresRequest) -> ErrorCode:
        replicas, wall_ms = self._broker.replicas, self._broker.clock.wall_ms()
        found = self._led()
        if isinstance(found, ErrorCode):
            return found
        if not found.has_enough_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        records = [(bytes(each.key), each.value) for each in request.records]
        batches = make_batches(records, wall_ms, None, found.log.config.max_message_bytes)
        if not batches:
            return ErrorCode.MESSAGE_TOO_LARGE
        end_offset = 0
        for batch in batches:
            appended = replicas.append(found, batch, wall_ms)
            if isinstance(appended, ErrorCode):
                return appended
            end_offset = appended.last_offset + 1
        timeout_ms = min(max(request.timeout_ms, 0), TIMEOUT_MS)
        return await future_of(partial(replicas.when_committed, found, end_offset, timeout_ms=timeout_ms))

    async def read(self, partitions: Collection[LedgerPartition], deadline: float) -> list[LedgerEntry] | ErrorCode:
        """Returns the committed entries about partitions, the last one of each key.

        Errors: COORDINATOR_NOT_AVAILABLE if the time is over, INVALID_RECORD for a record of an unknown version, others
        that no repetition can mend.
        """
        rows = [ErasuresPartition(topic_id=each.topic_id, partition_index=each.partition) for each in partitions]
        found: dict[bytes, LedgerEntry] = {}
        next_offset: Offset = 0
        while next_offset != UNKNOWN_OFFSET:
            request = ReadErasuresRequest(offset=next_offset, partitions=rows)
            answer = await self._asked(ApiKey.READ_ERASURES, request, self.page, deadline)
            if answer.error_code != ErrorCode.NONE:
                return ErrorCode(answer.error_code)
            for each in answer.records:
                try:
                    entry = decode_entry(each.key, each.value)
                except ProtocolError:
                    return ErrorCode.INVALID_RECORD
                if entry is not None:
                    found[each.key] = entry
            next_offset = answer.next_offset
        return list(found.values())

    async def page(self, request: ReadErasuresRequest) -> ReadErasuresResponse:
        """Returns some of the committed records about partitions, if this broker leads the ledger.

        Errors: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
        """
        found = self._led()
        if isinstance(found, ErrorCode):
            return ReadErasuresResponse(error_code=found)
        log = found.log
        wanted = {(each.topic_id, each.partition_index) for each in request.partitions}
        next_offset, end_offset = max(request.offset, log.log_start_offset), committed_end(log)
        records: list[LedgerRecord] = []
        for _ in range(STEPS):
            if next_offset >= end_offset:
                return ReadErasuresResponse(error_code=ErrorCode.NONE, records=records)
            try:
                found_here, next_offset = _read(log, next_offset, end_offset, wanted)
            except StorageError as error:
                self._broker.replicas.on_read_failed(found, error)
                return ReadErasuresResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
            records += found_here
            await asyncio.sleep(0)
        return ReadErasuresResponse(error_code=ErrorCode.NONE, records=records, next_offset=next_offset)

    def _led(self) -> Partition | ErrorCode:
        found = self._broker.replicas.find(LEDGER_TOPIC, 0)
        return found if isinstance(found, ErrorCode) or found.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def _asked(self, key: ApiKey, request: Any, here: Callable[[Any], Awaitable[Any]], deadline: float) -> Any:
        """Returns the answer of the ledger's leader, or one with an error that no repetition can mend.

        COORDINATOR_NOT_AVAILABLE if the time is over.
        """
        loop, failures = asyncio.get_running_loop(), 0
        while (left_ms := int((deadline - loop.time()) * 1000)) > 0:
            answer = await self._attempt(key, request, here, min(left_ms, TIMEOUT_MS))
            error = ErrorCode(answer.error_code)
            if error == ErrorCode.NONE or not (error.retriable or error == ErrorCode.COORDINATOR_NOT_AVAILABLE):
                return answer
            failures += 1
            wait_ms = _BACKOFF.rest_ms(failures, self._broker.random.uniform(-1, 1))
            await asyncio.sleep(min(wait_ms / 1000, max(deadline - loop.time(), 0)))
        return API[key].response(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def _attempt(self, key: ApiKey, request: Any, here: Callable[[Any], Awaitable[Any]], timeout_ms: int) -> Any:
        if not self._topic.exists:
            await self._topic.create()
        leader = self._topic.coordinator_of(_KEY)
        if isinstance(leader, ErrorCode):
            return API[key].response(error_code=leader)
        if leader.broker_id == self._broker.metadata.broker_id:
            return await here(request)
        client = self._peers.client_of(leader, LEDGER_PURPOSE)
        try:
            return await client.request(key, API[key].max_version, request, timeout_ms)
        except PeerError as error:
            self._broker.log.warning("the leader of the erasure ledger could not be asked", reason=str(error))
            return API[key].response(error_code=ErrorCode.NETWORK_EXCEPTION)


def _read(
    log: Log, offset: Offset, end_offset: Offset, wanted: set[tuple[TopicId, int]]
) -> tuple[list[LedgerRecord], Offset]:
    """Returns the records about some partitions in the batches from `offset` on, and the offset after these batches.

    Errors: StorageError, also for damaged bytes: a record that is left out would be an erasure that nobody repeats.
    """
    found = log.read(offset, STEP_BYTES, end_offset=end_offset).slice
    if found is None:
        return [], end_offset
    next_offset, records = offset, list[LedgerRecord]()
    try:
        content = found.file.pread(found.size, found.position)
        for at, header in sound_batches(content, offset, end_offset):
            next_offset = header.next_offset
            if not header.is_control:
                records += _about(wanted, content[at : at + header.size_bytes])
    except OSError as error:
        raise storage_error(found.file.path, error) from error
    except ProtocolError as error:
        raise DamagedSegmentError(found.file.path, f"from byte {found.position} on: {error}") from error
    return records, next_offset


def _about(wanted: set[tuple[TopicId, int]], batch: bytes) -> Iterator[LedgerRecord]:
    """Yields the records about some partitions. Errors: ProtocolError."""
    for record in iterate_records(batch, max_bytes=MAXIMUM_DECOMPRESSED_BYTES):
        key = decode_key(record.key)
        if key is not None and (key.topic_id, key.partition) in wanted:
            yield LedgerRecord(key=record.key or b"", value=record.value)
