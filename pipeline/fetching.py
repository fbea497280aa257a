"""Reads one range of offsets in a Spark worker.

The reader asks the partition's leader, and finds the new one when the leader moves. It checks the CRC of every batch,
and with `read_committed` skips aborted records. If a range is lost (deleted, truncated, or its topic created
again), the task fails, or with `failOnDataLoss=false` skips the range with a warning.

While the caller works on one answer, the next one is already requested, as in Kafka's consumer. It waits in the socket,
so only one answer is in memory.

Sources: Kafka's Fetcher, Spark's KafkaDataConsumer (what counts as lost).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Iterator
from typing import Final

from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.admin.errors import ConnectionFailedError
from lowtide.pipeline.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    BlockingCluster,
    ClusterError,
    MissingTopicsError,
    RetriableError,
)
from lowtide.pipeline.tasks import DataLossError, FetchSettings, PlannedRange
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.columns import RecordColumns
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from lowtide.protocol.record_columns import AppendOutcome, ColumnLimits, FetchRange, append_batches
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset

log = logging.getLogger(__name__)

COLUMN_BYTES_MAX: Final = 32 << 20
"""The limit for the columns of one Arrow batch, which compressed batches may reach."""

BATCH_BYTES_MAX: Final = 1 << 30
"""The limit for asking again for a batch that a broker cut short."""

MISSING_MS: Final = 5000
"""How long brokers may report a topic or partition as missing before it counts: they do not learn of it at the same
time."""


class RangeReader:
    """Reads one range, once."""

    def __init__(self, cluster: BlockingCluster, settings: FetchSettings, planned: PlannedRange) -> None:
        self._cluster = cluster
        self._settings = settings
        self._partition = planned.offsets.partition
        self._topic_id = planned.topic_id
        self._next = planned.offsets.start
        self._until = planned.offsets.until
        self._fetch_bytes = settings.fetch_bytes
        self._missing_until_ms: int | None = None
        """When the partition counts as missing, if brokers report it as missing until then."""
        self._asked: BlockingConnection | None = None
        """The connection that waits for the answer to a request from the next offset."""

    def columns(self) -> Generator[RecordColumns, None, None]:
        """Yields the records of the range in columns, each about as large as one fetch. It may be closed early.

        Errors: DataLossError, ClusterError, DamagedBatchError.
        """
        try:
            yield from self._until_its_end()
        finally:
            if self._asked is not None:  # The next request on it would get the answer to this one.
                self._asked.close()

    def _until_its_end(self) -> Iterator[RecordColumns]:
        """Like `columns`, but without the cleanup when the caller stops early."""
        deadline_ms = self._deadline()
        while self._next < self._until:
            before = self._next
            try:
                answer = self._cluster.retry(
                    f"read {self._partition} at offset {self._next}", self._fetch_patiently, deadline_ms
                )
            except MissingTopicsError as error:
                self._on_lost(self._until, str(error))
                return
            yield from self._walk(answer)
            if self._next > before:
                deadline_ms = self._deadline()
            elif self._cluster.deadline(0) >= deadline_ms:
                self._on_no_records()

    def _deadline(self) -> int:
        return self._cluster.deadline(self._settings.poll_timeout_ms)

    def _walk(self, answer: PartitionData) -> Iterator[RecordColumns]:
        """Yields the records of an answer. They are views: the next request is sent after the last one."""
        records = memoryview(answer.records or b"")  # type: ignore[arg-type]
        aborted = (
            [(one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()]
            if self._settings.read_committed
            else []
        )
        limits = ColumnLimits(columns_bytes_max=COLUMN_BYTES_MAX)
        while True:
            columns = RecordColumns(with_headers=self._settings.include_headers)
            appended = append_batches(columns, records, FetchRange(self._next, self._until, aborted), limits)
            self._on_appended(appended)
            if columns.row_count:
                if not appended.is_full:
                    self._ask_early()
                yield columns
            if not appended.is_full:
                return

    def _on_appended(self, appended: AppendOutcome) -> None:
        if appended.next_offset == self._next and appended.cut_batch_bytes > self._fetch_bytes:
            self._fetch_bytes = min(appended.cut_batch_bytes, BATCH_BYTES_MAX)
        self._next = appended.next_offset

    # ------------------------------------------------------------------ one request
    def _ask_early(self) -> None:
        """Sends the next request early, so that its answer arrives while the caller is busy.

        If that fails, `_fetch` repeats it and reports the error.
        """
        if self._next < self._until:
            with contextlib.suppress(RetriableError, ConnectionFailedError, ClusterError):
                self._asked = self._ask(self._cluster.deadline(self._cluster.settings.request_timeout_ms))

    def _fetch_patiently(self, deadline_ms: int) -> PartitionData:
        """Like `_fetch`, but a partition counts as missing only if brokers report so for a while."""
        try:
            answer = self._fetch(deadline_ms)
        except MissingTopicsError as error:
            if self._missing_until_ms is None:
                self._missing_until_ms = self._cluster.deadline(min(MISSING_MS, self._settings.poll_timeout_ms // 2))
            if self._cluster.deadline(0) >= self._missing_until_ms:
                raise
            raise RetriableError(str(error)) from error
        self._missing_until_ms = None
        return answer

    def _fetch(self, deadline_ms: int) -> PartitionData:
        """Returns the leader's answer to one request.

        It may have no records, because a new leader does not know its high watermark yet.
        Errors: RetriableError, ConnectionFailedError, DataLossError, MissingTopicsError, ClusterError.
        """
        asked, self._asked = self._asked, None
        if asked is None:
            asked = self._ask(deadline_ms)
        try:
            answer: FetchResponse = asked.receive(deadline_ms)
        except ConnectionFailedError:
            # Until there is another leader, the metadata name the old one, so they are asked for each time.
            self._cluster.forget(self._partition.topic)
            raise
        return self._checked(answer)

    def _ask(self, deadline_ms: int) -> BlockingConnection:
        """Sends the leader a request from the next offset.

        Returns the connection, whose next answer is for this request. Errors: RetriableError, ConnectionFailedError,
        MissingTopicsError, ClusterError.
        """
        leader = self._cluster.leader_of(self._partition, deadline_ms)
        if not self._has_planned_id():
            # This worker's metadata may be older than the plan.
            self._cluster.forget(self._partition.topic)
            leader = self._cluster.leader_of(self._partition, deadline_ms)
            self._check_topic()
        asked = FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=self._next,
            partition_max_bytes=self._fetch_bytes,
        )
        topic = FetchTopic(topic=self._partition.topic, topic_id=self._topic_id, partitions=[asked])
        request = FetchRequest(
            max_wait_ms=self._settings.fetch_wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=int(self._settings.read_committed),
            topics=[topic],
        )
        newest = None if self._topic_id != ZERO_TOPIC_ID else TOPIC_IDS_SINCE - 1
        try:
            connection = self._cluster.connection_to(leader.broker_id, deadline_ms)
            if connection.waiting_count:  # Another reader asked early, and its caller has not come back: it asks again.
                connection.close()
                connection = self._cluster.connection_to(leader.broker_id, deadline_ms)
            connection.send(request, deadline_ms, newest)
        except ConnectionFailedError:
            self._cluster.forget(self._partition.topic)  # As above.
            raise
        return connection

    def _checked(self, answer: FetchResponse) -> PartitionData:
        """Returns the partition's row of the answer. Errors: those of `_fetch`."""
        partitions = [one for topic in answer.responses for one in topic.partitions]
        if answer.error_code or len(partitions) != 1:
            self._cluster.forget(self._partition.topic)
            raise RetriableError(f"the broker answered with error {answer.error_code} and {len(partitions)} partitions")
        row = partitions[0]
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range()
            raise RetriableError(f"{self._partition}: offset {self._next} is out of range")
        if row.error_code:
            raise RetriableError(self._cluster.on_partition_error(self._partition, row.error_code, "read"))
        return row

    def _has_planned_id(self) -> bool:
        """Returns whether the topic has the planned id. Without a planned id, the first known one counts."""
        known = self._cluster.leaders.topics[self._partition.topic].topic_id
        if self._topic_id == ZERO_TOPIC_ID:
            self._topic_id = known
        return known in (self._topic_id, ZERO_TOPIC_ID)

    def _check_topic(self) -> None:
        """Checks that the topic still has the planned id. Errors: MissingTopicsError."""
        if not self._has_planned_id():
            raise MissingTopicsError(
                f"topic {self._partition.topic} was deleted and created again", [self._partition.topic]
            )

    # ------------------------------------------------------------------ lost records
    def _on_out_of_range(self) -> None:
        """Finds the deleted part of the range, and skips it.

        Errors: DataLossError, ClusterError, MissingTopicsError.
        """
        wanted = self._partition
        earliest = self._cluster.list_offsets({wanted: EARLIEST_TIMESTAMP}, read_committed=False)[wanted].offset
        latest = self._cluster.list_offsets({wanted: LATEST_TIMESTAMP}, read_committed=False)[wanted].offset
        if self._next < earliest:
            self._on_lost(min(earliest, self._until), f"the partition begins at offset {earliest} now")
        elif self._next > latest:
            self._on_lost(self._until, f"the partition ends at offset {latest}")

    def _on_no_records(self) -> None:
        """Reports that the broker sent no records. Errors: ClusterError, unless the partition has become shorter."""
        self._on_out_of_range()
        limit_ms = self._settings.poll_timeout_ms
        message = f"no record of {self._partition} arrived from offset {self._next} within {limit_ms} ms"
        if self._settings.read_committed:
            message += ": a transaction may be open there, and records after it are not committed"
        raise ClusterError(message)

    def _on_lost(self, until: Offset, why: str) -> None:
        """Reports that the offsets from the next one up to `until` (exclusive) are lost.

        Errors: DataLossError, unless `failOnDataLoss` is false.
        """
        message = (
            f"records of {self._partition} from offset {self._next} to {until - 1} were deleted before they were "
            f"read ({why}): by retention, by DeleteRecords, or with their topic"
        )
        if self._settings.fail_on_data_loss:
            message += ". With the option failOnDataLoss=false the query skips them"
            raise DataLossError(message)
        log.warning("%s; they are skipped, because failOnDataLoss is false", message)
        self._next = until
