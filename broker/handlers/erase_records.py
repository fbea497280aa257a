"""EraseRecords: v0-v1.

Behaviour: Lowtide's own, not advertised. Erases the records below the given offsets, and since v1 those that erasures
name, from all files of this broker's replicas, whether it leads or follows, and from files that an earlier replica of
the partition left behind. Checked in this order: the topic isn't internal, the partition is here, the topic id matches,
the log start has reached the offset. It waits for erasures that the replica doesn't have yet or that aren't known to be
committed. The response is sent when everything is on disk, or after the timeout. A disconnect ends the wait, but not
the erasure. If a partition is listed twice, the last entry wins. With an erasure id (v1), what is done is written to
the ledger before the response is sent.

Errors: INVALID_REQUEST for too many partitions, THROTTLING_QUOTA_EXCEEDED if too many requests wait, of all clients or
of this one; of single partitions TOPIC_AUTHORIZATION_FAILED, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER (no replica here, or it was moved or truncated meanwhile), INCONSISTENT_TOPIC_ID,
OFFSET_OUT_OF_RANGE for a negative offset, OFFSET_NOT_AVAILABLE while the replica's log start is below it,
POLICY_VIOLATION while the topic is held, REQUEST_TIMED_OUT with the reason, KAFKA_STORAGE_ERROR,
COORDINATOR_NOT_AVAILABLE while the ledger can't be written.

KIPs: 107.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.client_waits import client_wait
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import ERASED_RECORDS
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.ledger.erasure_ledger import LEDGER_REFUSED, ErasureLedger
from lowtide.broker.ledger.ledger_entries import ErasingReplica, clean_entry
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import (
    NO_ERASURE,
    ErasedPartition,
    ErasedTopic,
    EraseRecordsRequest,
    EraseRecordsResponse,
    EraseRecordsTopic,
)
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.directory.directory_erasures import EraseChangedError, EraseFailedError
from lowtide.storage.log.log import Log

PARTITIONS_MAX: Final = 1_000
"""The most partitions of a request."""

WAITING_MAX: Final = 10_000
WAITING_SHARE: Final = 2_500
PLACES_MIN: Final = 40
"""The number of partitions that requests may wait for, and that those of one client may. A request counts as at least
`PLACES_MIN`."""

WAIT_MAX_MS: Final = 600_000


class EraseRecordsHandler:
    """Answers EraseRecords requests."""

    def __init__(self, broker: BrokerContext, ledger: ErasureLedger) -> None:
        self._broker = broker
        self._ledger = ledger
        self.places = WaitingPlaces(WAITING_MAX, WAITING_SHARE)

    async def handle(self, request: EraseRecordsRequest, context: RequestContext) -> EraseRecordsResponse:
        """Answers for each partition once, even if it was named more often."""
        count = sum(len(topic.partitions) for topic in request.topics)
        if count > PARTITIONS_MAX:
            return EraseRecordsResponse(error_code=ErrorCode.INVALID_REQUEST)
        with self.places.taken_by(context.connection, max(count, PLACES_MIN)) as has_place:
            if not has_place:
                return EraseRecordsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            return self._response(request.topics, await self._erased(request, context))

    async def _erased(
        self, request: EraseRecordsRequest, context: RequestContext
    ) -> dict[TopicPartition, ErasedPartition]:
        allowed = self._allowed(request, context)
        rows: dict[TopicPartition, ErasedPartition] = {}
        begun: list[tuple[ErasedPartition, Log, EraseGoal]] = []
        erasing = _Erasures()
        for topic in request.topics:
            for key, goal in {
                TopicPartition(topic.name, row.partition_index): EraseGoal(row.offset, row.erasures_end)
                for row in topic.partitions
            }.items():
                row = rows[key] = ErasedPartition(partition_index=key.partition, error_code=ErrorCode.NONE)
                found = (
                    self._checked(key, topic.topic_id, goal)
                    if key.topic in allowed
                    else ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                if isinstance(found, Refusal):
                    row.error_code, row.error_message = found.error_code, found.message
                elif isinstance(found, ErrorCode):
                    row.error_code = found
                else:
                    whole = _whole(goal, found.log, bytes(request.erasure_id))
                    begun.append((row, found.log, whole))
                    erasing.begin(row, partial(self._broker.replicas.log_manager.erase, found.log, whole))
        deadline = asyncio.get_running_loop().time() + min(max(request.timeout_ms, 0), WAIT_MAX_MS) / 1000
        try:
            await erasing.wait(deadline)
        finally:
            erasing.end()
        directories = self._broker.replicas.log_manager.directories
        for row, log, goal in begun:
            if row.error_code == ErrorCode.REQUEST_TIMED_OUT:
                row.error_message = directories.erasure_waits(log).why(log, goal.erasures_end)
        if request.erasure_id != NO_ERASURE:
            clean = [each for each in begun if each[0].error_code == ErrorCode.NONE]
            await self._record(bytes(request.erasure_id), str(context.principal), clean, deadline)
        return rows

    def _allowed(self, request: EraseRecordsRequest, context: RequestContext) -> frozenset[str]:
        """Returns the topics whose records the client may erase.

        A broker may ask for what erasures name, which are committed, and then also for what is below the log start. It
        may not ask for the latter alone.
        """
        authorizer, names = self._broker.authorizer, frozenset(topic.name for topic in request.topics)
        if all(row.erasures_end > 0 for topic in request.topics for row in topic.partitions) and (
            authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER)
        ):
            return names
        return allowed_topics(authorizer, context, Operation.DELETE, names)

    async def _record(
        self, erasure_id: bytes, principal: str, clean: list[tuple[ErasedPartition, Log, EraseGoal]], deadline: float
    ) -> None:
        """Writes to the ledger which replicas are clean. Where that fails, the row gets the error."""
        metadata, directories = self._broker.metadata, self._broker.replicas.log_manager.directories
        now_ms = self._broker.clock.wall_ms()
        entries = []
        for _, log, goal in clean:
            directory_id = directories.directory_id(log.parent_directory)
            replica = ErasingReplica(metadata.broker_id, metadata.broker_epoch, directory_id)
            entries.append(clean_entry(erasure_id, principal, log, replica, goal, now_ms))
        error = await self._ledger.record(entries, deadline)
        for row, _, _ in clean:
            if error != ErrorCode.NONE:
                row.error_code, row.error_message = error, LEDGER_REFUSED

    def _checked(self, key: TopicPartition, topic_id: TopicId, goal: EraseGoal) -> Partition | Refusal | ErrorCode:
        if key.topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        found = self._broker.replicas.find(*key)
        if isinstance(found, ErrorCode):
            return found
        if topic_id not in (ZERO_TOPIC_ID, found.log.topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if not goal.erasures_end and found.log.config.is_held(self._broker.clock.wall_ms()):
            return Refusal(ErrorCode.POLICY_VIOLATION, found.log.config.hold_sentence)
        if goal.offset < 0 or goal.erasures_end < 0:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return found if goal.offset <= found.log.log_start_offset else ErrorCode.OFFSET_NOT_AVAILABLE

    def _response(
        self, asked: list[EraseRecordsTopic], rows: dict[TopicPartition, ErasedPartition]
    ) -> EraseRecordsResponse:
        topics = {topic.name: ErasedTopic(name=topic.name, partitions=[]) for topic in asked}
        for key, row in rows.items():
            current = self._broker.replicas.find(*key)
            if row.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED and not isinstance(current, ErrorCode):
                row.log_start_offset = current.log.log_start_offset
            topics[key.topic].partitions.append(row)
        return EraseRecordsResponse(error_code=ErrorCode.NONE, topics=list(topics.values()))


def _whole(goal: EraseGoal, log: Log, erasure_id: bytes) -> EraseGoal:
    """Returns a goal that includes the records below the log start, if the log start has passed the erasures.

    They may still be in a file, and their erasures may be gone. It also includes all erasures with the id that the log
    knows: the ledger keeps the last confirmation of a broker only, so a late request for less must not replace one for
    more.
    """
    if erasure_id != NO_ERASURE:
        ends = [each.end_offset for each in log.erasures.known if each.erasure_id.bytes == erasure_id]
        if ends and ends[-1] > goal.erasures_end:
            goal = EraseGoal(goal.offset, ends[-1])
    if goal.erasures_end and goal.erasures_end <= log.log_start_offset:
        return EraseGoal(max(goal.offset, goal.erasures_end), goal.erasures_end)
    return goal


class _Erasures:
    """The rows of one request whose records are being erased."""

    def __init__(self) -> None:
        self._missing = 0
        self._is_over = False
        self._done = asyncio.Event()
        self._take_back: list[Callable[[], object]] = []

    def begin(
        self, row: ErasedPartition, erase: Callable[[Callable[[EraseFailedError | None], None]], Callable[[], object]]
    ) -> None:
        """Starts the erasure of a row's records."""
        self._missing += 1
        row.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._take_back.append(erase(partial(self._on_done, row)))

    def _on_done(self, row: ErasedPartition, error: EraseFailedError | None) -> None:
        if self._is_over:
            return
        self._missing -= 1
        row.error_code = ErrorCode.NONE if error is None else ErrorCode.KAFKA_STORAGE_ERROR
        if isinstance(error, EraseChangedError):
            row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        row.error_message = None if error is None else str(error)
        if not self._missing:
            self._done.set()

    async def wait(self, deadline: float) -> None:
        """Waits until all are erased, the time is over, or the client has disconnected."""
        if self._missing:
            try:
                async with client_wait(deadline):
                    await self._done.wait()
            except TimeoutError:
                return

    def end(self) -> None:
        """Stops waiting for the rest."""
        self._is_over = True
        for take_back in self._take_back:
            take_back()


def handler(broker: BrokerContext, ledger: ErasureLedger) -> HandlerSpec:
    """Returns the handler."""
    return HandlerSpec(
        key=ApiKey.ERASE_RECORDS,
        guard=CHECKS_ITSELF,
        handle_later=EraseRecordsHandler(broker, ledger).handle,
        audit=ERASED_RECORDS,
    )
