"""A blocking, idempotent producer for one task.

When `flush` returns, all in-sync replicas have acknowledged all batches. `outbox` decides which batches to send and to
retry, `cluster` knows the leaders. This module sends the requests, several at a time on each connection, and waits for
the answers. `add` blocks while unacknowledged batches use all of the allowed memory.

A producer that has failed must not be used again. Its last batches may be written or not, so another producer that
sends them again may write them twice.

Source: KIP-98, KIP-360, Kafka's `Sender`.
"""

from __future__ import annotations

import select
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.admin.errors import ConnectionFailedError, code_name
from lowtide.pipeline.cluster import BlockingCluster, ClusterError, RetriableError
from lowtide.pipeline.outbox import Outbox, ProduceAnswer
from lowtide.pipeline.partition_batches import ProduceError, ProducerBatch
from lowtide.pipeline.producer_settings import ProducerSettings
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.client.retries import Reachability, is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.records import iterate_records, read_batch_header
from lowtide.protocol.types import BrokerId, ProducerId, TopicPartition
from lowtide.runtime.clock import Clock

ACKS_ALL: Final = -1
TOPICS_BY_NAME: Final = 12
"""The last version of Produce with topic names. With ids, a topic that is created again would need new metadata."""

SLACK_MS: Final = 2000
"""How much longer the producer waits than the broker, so that the broker's REQUEST_TIMED_OUT arrives."""

_LONGEST_WAIT_MS: Final = 1000

_DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""The limit for a batch that the producer built itself."""


class _PendingRequest(NamedTuple):
    """A request that waits for its answer."""

    batches: list[ProducerBatch]
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class _BrokerLink:
    """The connection to one leader, with the requests that wait for answers."""

    connection: BlockingConnection
    sent: deque[_PendingRequest]


class Producer:
    """An idempotent producer over blocking connections. Used by one thread."""

    def __init__(self, settings: ProducerSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.cluster = BlockingCluster(settings.client, clock)
        self._clock = self.cluster.clock
        self._outbox = Outbox(limits=settings.limits, split=split_batch, backoff=self._rest_ms)
        self._links: dict[BrokerId, _BrokerLink] = {}
        self._topics: set[str] = set()
        self._is_stale = False
        self._metadata_not_before_ms = 0
        self._metadata_failures = 0
        self._reachable: defaultdict[BrokerId, Reachability] = defaultdict(
            lambda: Reachability(settings.client.reconnect_backoff)
        )
        self._last_use_ms = self._clock.monotonic_ms()

    def _rest_ms(self, failures: int) -> int:
        """Returns how long to wait after this number of failures in a row (from 1)."""
        return max(self.settings.client.retry_backoff.rest_ms(failures, self.cluster.random.uniform(-1, 1)), 1)

    @property
    def acknowledged_records(self) -> int:
        """How many records all in-sync replicas have acknowledged."""
        return self._outbox.acknowledged_records

    @property
    def retries(self) -> int:
        """How many batches were sent again."""
        return self._outbox.retries

    def learn_topic(self, topic: str) -> list[int]:
        """Returns the partitions of a topic that have a leader. Asks a broker about an unknown topic.

        Errors: ProduceError if the topic does not exist within `max.block.ms`.
        """
        self._renew_after_a_pause()
        leaders = self.cluster.leaders
        if not leaders.partition_count(topic):
            self._topics.add(topic)
            deadline_ms = self._clock.monotonic_ms() + self.settings.max_block_ms
            self._metadata_not_before_ms = 0
            while not leaders.partition_count(topic):
                self._ask_for_metadata(deadline_ms)
                if not leaders.partition_count(topic):
                    self._check_topic(topic, deadline_ms)
        return leaders.available(topic)

    def add(self, place: TopicPartition, batch: bytearray, record_count: int) -> None:
        """Adds a finished batch, and fills in its producer fields. Blocks while there is no room.

        Errors: ProduceError.
        """
        self._renew_after_a_pause()
        while not self._outbox.has_room(len(batch)):
            self._turn(wait=True)
        if self._outbox.producer_id < 0:
            self._outbox.producer_id, self._outbox.producer_epoch = self._ask_for_producer_id(place)
        self._outbox.add(place, batch, record_count, self._clock.monotonic_ms())
        self._turn(wait=False)

    def flush(self) -> None:
        """Waits until all batches are acknowledged. Errors: ProduceError."""
        while not self._outbox.is_empty:
            self._turn(wait=True)
        self._last_use_ms = self._clock.monotonic_ms()

    def close(self) -> None:
        """Closes the connections, and drops unacknowledged batches."""
        self._links.clear()
        self.cluster.close()

    # ------------------------------------------------------------------ one turn
    def _turn(self, *, wait: bool) -> None:
        """Sends batches that are ready, and reads answers.

        With `wait` it waits for an answer, or until a retry or a deadline is due.
        """
        now_ms = self._clock.monotonic_ms()
        self._outbox.check_deadlines(now_ms)
        if self._outbox.wants_producer_id:
            self._outbox.renew_producer_id(self._ask_for_producer_id(next(iter(self._outbox.places)))[0])
        leaders = self._leaders()
        if self._is_stale or len(leaders) < len(self._outbox.places):
            self._refresh_leaders(now_ms)
            leaders = self._leaders()
        for broker in sorted(set(leaders.values())):
            self._send_to(broker, leaders)
        wait_ms = 0
        if wait:
            wait_ms = min(self._outbox.wait_ms(now_ms), _LONGEST_WAIT_MS)
            if not any(link.sent for link in self._links.values()):
                # Nothing could be sent: the next turn asks for leaders, or connects again.
                wait_ms = max(1, min(wait_ms, self._rest_ms(1)))
        self._receive(wait_ms)

    def _leaders(self) -> dict[TopicPartition, BrokerId]:
        """Returns the known leaders of the partitions with batches."""
        found = ((place, self.cluster.leaders.of(place)) for place in self._outbox.places)
        return {place: leader.broker_id for place, leader in found if leader is not None}

    def _send_to(self, broker: BrokerId, leaders: dict[TopicPartition, BrokerId]) -> None:
        while True:
            link = self._links.get(broker)
            now_ms = self._clock.monotonic_ms()
            if link is not None and len(link.sent) >= self.settings.limits.requests_in_flight:
                return
            if link is None:
                link = self._connect(broker, now_ms)
                if link is None:
                    return
                now_ms = self._clock.monotonic_ms()
            batches = self._outbox.takes(broker, leaders, now_ms)
            if not batches:
                return
            timeout_ms = self.settings.client.request_timeout_ms
            deadline_ms = now_ms + timeout_ms + SLACK_MS
            link.sent.append(_PendingRequest(batches, deadline_ms))
            try:
                link.connection.send(_request(batches, timeout_ms), deadline_ms, newest=TOPICS_BY_NAME)
            except ConnectionFailedError as error:
                self._lose(broker, str(error))
                return

    def _connect(self, broker: BrokerId, now_ms: int) -> _BrokerLink | None:
        """Connects to a broker; returns None while it is unreachable. Errors: TlsError, AuthenticationFailedError."""
        reachability = self._reachable[broker]
        if reachability.wait_ms(now_ms):
            return None
        try:
            connection = self.cluster.connection_to(broker, now_ms + self.settings.client.request_timeout_ms)
        except (ConnectionFailedError, RetriableError):
            reachability.on_failure(self._clock.monotonic_ms(), self.cluster.random.uniform(-1, 1))
            self._is_stale = True
            return None
        reachability.on_success()
        link = self._links[broker] = _BrokerLink(connection=connection, sent=deque())
        return link

    def _receive(self, wait_ms: int) -> None:
        """Reads answers, after a wait for the first one. Closes connections whose answers are late."""
        waiting = {broker: link for broker, link in self._links.items() if link.sent}
        now_ms = self._clock.monotonic_ms()
        poll = select.poll()
        brokers: dict[int, BrokerId] = {}
        for broker, link in waiting.items():
            brokers[link.connection.fileno()] = broker
            poll.register(link.connection.fileno(), select.POLLIN)
            wait_ms = 0 if link.connection.has_received else min(wait_ms, max(0, link.sent[0].deadline_ms - now_ms))
        here = {brokers[fileno] for fileno, _ in poll.poll(wait_ms)}
        for broker, link in waiting.items():
            now_ms = self._clock.monotonic_ms()
            if broker in here or link.connection.has_received:
                self._take_answer(broker, link)
            elif now_ms >= link.sent[0].deadline_ms:
                self._lose(broker, f"broker {link.connection.address}: it did not answer in time")

    def _take_answer(self, broker: BrokerId, link: _BrokerLink) -> None:
        try:
            answer: ProduceResponse = link.connection.receive(link.sent[0].deadline_ms)
        except ConnectionFailedError as error:
            self._lose(broker, str(error))
            return
        sent = link.sent.popleft()
        now_ms = self._clock.monotonic_ms()
        rows = {(topic.name, row.index): row for topic in answer.responses for row in topic.partition_responses}
        for batch in sent.batches:
            row = rows.get(batch.place)
            if row is None:
                self._outbox.on_lost(
                    [batch], f"broker {link.connection.address}: its answer lacks the partition", now_ms
                )
                continue
            answered = ProduceAnswer(
                code=row.error_code, log_start_offset=row.log_start_offset, message=row.error_message
            )
            if not self._outbox.on_answer(batch, answered, now_ms):
                self._is_stale = True

    def _lose(self, broker: BrokerId, why: str) -> None:
        """Closes a connection. Its requests may have arrived or not."""
        link = self._links.pop(broker)
        link.connection.close()
        now_ms = self._clock.monotonic_ms()
        for sent in link.sent:
            self._outbox.on_lost(sent.batches, why, now_ms)
        self._is_stale = True

    # ------------------------------------------------------------------ metadata and producer ids
    def _refresh_leaders(self, now_ms: int) -> None:
        if now_ms < self._metadata_not_before_ms:
            return
        deadline_ms = now_ms + self.settings.client.request_timeout_ms
        self._is_stale = False
        self._ask_for_metadata(deadline_ms)

    def _ask_for_metadata(self, deadline_ms: int) -> None:
        """Asks one broker for the metadata of all topics, after a pause since the last request."""
        self._pause(min(self._metadata_not_before_ms, deadline_ms))
        try:
            answer = self.cluster.ask_metadata(self._topics, deadline_ms, may_create=True)
        except ConnectionFailedError:
            self._is_stale = True
        if self._is_stale or any(topic.error_code for topic in answer.topics):
            self._metadata_failures += 1
        else:
            self._metadata_failures = 0
        self._metadata_not_before_ms = self._clock.monotonic_ms() + self._rest_ms(max(self._metadata_failures, 1))

    def _check_topic(self, topic: str, deadline_ms: int) -> None:
        """Checks whether an unknown topic may still become known. Errors: ProduceError."""
        code = self.cluster.leaders.problems.get(topic)
        place = TopicPartition(topic, 0)
        if code is not None and not is_retriable(code):
            raise ProduceError(f"topic {topic} cannot be written: {code_name(code)}", place=place, code=code)
        if self._clock.monotonic_ms() >= deadline_ms:
            if code is None:
                servers = ", ".join(str(address) for address in self.settings.client.bootstrap_servers)
                raise ProduceError(
                    f"no broker answers at {servers} (kafka.max.block.ms={self.settings.max_block_ms})",
                    place=place,
                    code=ErrorCode.NETWORK_EXCEPTION,
                )
            raise ProduceError(
                f"topic {topic} does not exist after kafka.max.block.ms={self.settings.max_block_ms}: "
                f"{code_name(code)}",
                place=place,
                code=code,
            )

    def _ask_for_producer_id(self, place: TopicPartition) -> tuple[ProducerId, int]:
        """Gets a producer id from any broker. Errors: ProduceError if none answers in time."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=self.settings.client.request_timeout_ms
        )
        code: int = ErrorCode.NETWORK_EXCEPTION

        def attempt(until_ms: int) -> tuple[ProducerId, int]:
            nonlocal code
            answer = self.cluster.ask_any(request, until_ms)
            code = answer.error_code
            if code == ErrorCode.NONE:
                return answer.producer_id, answer.producer_epoch
            if is_retriable(code):
                raise RetriableError(code_name(code))
            raise ClusterError(f"cannot {what}: {code_name(code)}")

        what = f"get a producer id for {place}"
        try:
            return self.cluster.retry(what, attempt, self.cluster.deadline(self.settings.limits.delivery_timeout_ms))
        except ClusterError as error:
            raise ProduceError(str(error), place=place, code=code) from error

    def _renew_after_a_pause(self) -> None:
        """Closes connections after a long pause: brokers close idle ones, and a lost request costs a retry."""
        now_ms = self._clock.monotonic_ms()
        idle_max_ms = self.settings.client.connections_max_idle_ms
        if self._outbox.is_empty and 0 <= idle_max_ms < now_ms - self._last_use_ms:
            self.close()
        self._last_use_ms = now_ms

    def _pause(self, until_ms: int) -> None:
        """Waits without reading answers."""
        wait_ms = until_ms - self._clock.monotonic_ms()
        if wait_ms > 0:
            select.poll().poll(wait_ms)


def _request(batches: list[ProducerBatch], timeout_ms: int) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for batch in batches:
        topic = topics.get(batch.place.topic)
        if topic is None:
            topic = topics[batch.place.topic] = TopicProduceData(name=batch.place.topic, partition_data=[])
        topic.partition_data.append(PartitionProduceData(index=batch.place.partition, records=batch.records))
    return ProduceRequest(transactional_id=None, acks=ACKS_ALL, timeout_ms=timeout_ms, topic_data=list(topics.values()))


def split_batch(batch: ProducerBatch) -> list[ProducerBatch]:
    """Splits a batch of at least two records in two, for a topic that accepts only smaller batches.

    This is slow and rare: it creates an object for each record.
    """
    compression = read_batch_header(batch.records).compression
    rows = [
        (record.timestamp, record.key, record.value, record.headers)
        for record in iterate_records(batch.records, max_bytes=_DECOMPRESSED_BYTES_MAX)
    ]
    half = len(rows) // 2
    return [
        ProducerBatch(
            place=batch.place,
            records=bytearray(build_batch(part, compression=compression)),
            record_count=len(part),
            deadline_ms=batch.deadline_ms,
            last_error=batch.last_error,
        )
        for part in (rows[:half], rows[half:])
    ]
