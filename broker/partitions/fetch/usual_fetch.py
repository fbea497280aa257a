"""The short form of Fetch: a consumer reads a few partitions that this broker leads, at offsets with records.

Consumers repeat such fetches, without a session or in one. `fetch_handler` and `fetch_reader` define Fetch; this form
decides in their order. It leaves unusual fetches to them: a wait, an error, another leader epoch, a log that may
diverge, aborted transactions, a session that begins, ends, grows or shrinks. Until then it changes only the values of a
session's target, as they do.

The figures with and without this form are in docs/adr/0022-small-fetches.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.partitions.fetch.fetch_session import FINAL_EPOCH, INITIAL_EPOCH
from lowtide.broker.partitions.fetch.fetch_session_slots import NO_SESSION
from lowtide.broker.partitions.fetch.fetch_targets import (
    CONSUMER,
    NO_RECORDS,
    READ_AT_ONCE_BYTES,
    READ_COMMITTED,
    FetchTarget,
    read_records,
)
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchPartition, FetchResponse, PartitionData
from lowtide.protocol.schema import NO_ROWS
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.partitions.fetch.fetch_session import FetchSession, FetchSessionCache
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.request_context import RequestContext
    from lowtide.protocol.messages.fetch import FetchRequest
    from lowtide.runtime.clock import Clock
    from lowtide.storage.log.log import FileSlice

PARTITIONS_MAX: Final = 64
"""The limit of partitions of a usual fetch."""

_ANSWER_BYTES_MAX: Final = 1 << 30
"""The limit of records in a usual response, below the largest frame."""

Visit = tuple["FetchTarget | FetchPartition", Partition]
"""A requested partition, and the hosted one."""


class UsualFetch(msgspec.Struct, frozen=True, kw_only=True):
    """Answers usual fetches. One for each broker; keeps no state of a request."""

    replicas: ReplicaManager
    sessions: FetchSessionCache
    clock: Clock
    may_read: Callable[[RequestContext, str], bool] | None
    """Returns whether a client may read a topic; None if all may read everything."""
    maximum_bytes: int
    """`fetch.max.bytes`."""
    selects_replicas: bool
    """Whether a consumer's rack matters."""

    def answer(self, request: FetchRequest, context: RequestContext) -> FetchResponse | None:
        """Returns the response to a request that `is_sound`; None if it is unusual."""
        session: FetchSession | None = None
        if request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION:
            session = self._continued(request, context.api_version)
            if session is None:
                return None
        if (
            request.replica_id >= 0
            or request.replica_state is not None
            or request.forgotten_topics_data
            or (request.rack_id and self.selects_replicas)
        ):
            return None
        visits = self._visits(request, session, context.api_version)
        committed = request.isolation_level == READ_COMMITTED
        read = (
            None
            if visits is None
            else self._read(visits, min(self.maximum_bytes, request.max_bytes), committed=committed)
        )
        if visits is None or read is None:
            return None
        may_read = self.may_read
        if may_read is not None and not all(may_read(context, each.topic_partition.topic) for _, each in visits):
            return None
        answers, sizes = read
        size = sum(sizes)
        if (size < request.min_bytes and request.max_wait_ms > 0) or size > _ANSWER_BYTES_MAX:
            return None
        context.connection.of_a_follower = False
        for (_, partition), read_bytes in zip(visits, sizes, strict=True):
            traffic = partition.traffic
            traffic.fetch_requests += 1
            traffic.bytes_out += read_bytes
        if session is not None:
            session.advance(self.clock.monotonic_ms(), self.sessions.by_id)
            visits, answers = _with_news(session, visits, answers, sizes, committed=committed)
        if 0 < size <= READ_AT_ONCE_BYTES:
            read_records(answers)
        return _response(visits, answers, request.session_id)

    def _continued(self, request: FetchRequest, version: int) -> FetchSession | None:
        """Returns the session that a consumer's request continues; None if it does not."""
        session, is_fenced = self.sessions.by_id.get(request.session_id), self.replicas.is_fenced
        if (
            session is None
            or request.session_epoch == INITIAL_EPOCH
            or session.epoch != request.session_epoch
            or session.replica_id != CONSUMER
            or session.uses_topic_ids != (version >= TOPIC_IDS_SINCE)
            or (is_fenced is not None and is_fenced())
        ):
            return None
        return session

    def _visits(self, request: FetchRequest, session: FetchSession | None, version: int) -> list[Visit] | None:
        """Returns the partitions to read, in order; None if one is not here or there are too many."""
        image, find, by_id = self.replicas.image, self.replicas.find, version >= TOPIC_IDS_SINCE
        names: Any = {} if image is None else image.topic_names
        visits: list[Any] = []
        for topic in request.topics:
            key = topic.topic_id if by_id else topic.topic
            name: Any = names.get(key, "") if by_id else key
            for row in topic.partitions:
                if session is None:
                    visits.append((row, find(name, row.partition)))
                    continue
                target = session.targets.get((key, row.partition))
                if target is None:
                    return None
                target.ask(row)
                session.changed[target] = None
        if session is not None:
            for target in session.changed:
                topic_name = names.get(target.topic_id, "") if by_id else target.topic
                visits.append((target, find(topic_name, target.partition)))
        elif not visits or (len(visits) > 1 and len({partition for _, partition in visits}) < len(visits)):
            return None  # If a partition is named twice, the last entry wins.
        return visits if len(visits) <= PARTITIONS_MAX else None

    def _read(self, visits: list[Visit], left: int, *, committed: bool) -> tuple[list[PartitionData], list[int]] | None:
        """Reads up to `left` bytes, to the last stable offset if `committed`.

        Returns the partitions of the answer and the bytes of their records; None if anything is unusual.
        """
        answers: list[PartitionData] = []
        sizes: list[int] = []
        is_first = True
        for asked, partition in visits:
            if (
                not isinstance(partition, Partition)
                or not partition.is_leader
                or (asked.current_leader_epoch >= 0 and asked.current_leader_epoch != partition.leader_epoch)
                or (asked.last_fetched_epoch >= 0 and asked.last_fetched_epoch != partition.leader_epoch)
            ):
                return None
            log, offset = partition.log, asked.fetch_offset
            log_start_offset = log.log_start_offset
            if not log_start_offset <= offset <= log.log_end_offset:
                return None
            if log.erasures.known and asked.log_start_offset >= 0:
                return None  # See `records_only`.
            high_watermark = last_stable = log.high_watermark
            if log.transactions.any:
                last_stable = log.last_stable_offset
            end_offset = last_stable if committed else high_watermark
            answer = PartitionData(
                partition_index=asked.partition,
                error_code=ErrorCode.NONE,
                high_watermark=high_watermark,
                last_stable_offset=last_stable,
                log_start_offset=log_start_offset,
                aborted_transactions=NO_ROWS if committed else None,
                records=NO_RECORDS,
            )
            size = 0
            if offset < end_offset:
                limit = min(left, asked.partition_max_bytes)
                records = _records(partition, offset, limit, end_offset, is_first=is_first, committed=committed)
                if records is None:
                    return None
                if size := len(records):
                    answer.records = records
                    left, is_first = left - size if size < left else 0, False
            answers.append(answer)
            sizes.append(size)
        return answers, sizes


def _records(
    partition: Partition, offset: int, limit: int, end_offset: int, *, is_first: bool, committed: bool
) -> FileSlice | bytes | None:
    """Returns the records, at least one batch if `is_first`; None if the defining form must read them."""
    log = partition.log
    try:
        read = log.read(offset, limit, end_offset=end_offset, minimum_one_batch=is_first, seeks_records=True)
        part = read.slice
        if read.error_code != ErrorCode.NONE or (
            committed and part is not None and log.aborted_transactions(part, offset, end_offset)
        ):
            return None
    except StorageError:
        return None
    return NO_RECORDS if part is None else part


def _with_news(
    session: FetchSession, visits: list[Visit], answers: list[PartitionData], sizes: list[int], *, committed: bool
) -> tuple[list[Visit], list[PartitionData]]:
    """Returns the partitions with records or changed offsets, and notes in the session what the client knows."""
    news: tuple[list[Visit], list[PartitionData]] = ([], [])
    changed: Any = session.changed
    for visit, answer, size in zip(visits, answers, sizes, strict=True):
        target, partition = visit
        assert isinstance(target, FetchTarget), "it is one of a session"
        target.topic, target.traffic = partition.topic_partition.topic, partition.traffic
        target.read_bytes = size
        if target.watched is not partition:
            target.watch(partition)
        target.at_end = target.fetch_offset >= (answer.last_stable_offset if committed else answer.high_watermark)
        if (
            size
            or answer.high_watermark != target.sent_high_watermark
            or answer.log_start_offset != target.sent_log_start_offset
        ):
            news[0].append(visit)
            news[1].append(answer)
            target.sent_high_watermark, target.sent_log_start_offset = answer.high_watermark, answer.log_start_offset
        if size or target.at_end:
            del changed[target]
        if size:
            changed[target] = None  # The others come first next time.
    return news


def _response(visits: list[Visit], answers: list[PartitionData], session_id: int) -> FetchResponse:
    """Returns the message, with the partitions of a topic together."""
    topics: dict[str, FetchableTopicResponse] = {}
    for (_, partition), answer in zip(visits, answers, strict=True):
        name = partition.topic_partition.topic
        topic = topics.get(name)
        if topic is None:
            topics[name] = topic = FetchableTopicResponse(topic=name, topic_id=partition.topic_id, partitions=[])
        topic.partitions.append(answer)
    return FetchResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, session_id=session_id, responses=list(topics.values())
    )
