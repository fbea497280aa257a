"""Blocking connections to the brokers of a cluster and its metadata, for the processes of Spark.

Each call blocks until it is done or its deadline has passed. Calls are retried with growing pauses after a failed
connection, after a leader moved, and during an election. The driver finds partitions and their ends with it; each
executor and each producer has its own. Sources: Kafka's client (NetworkClient,
OffsetFetcher), KIP-320 for leader epochs.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.admin.errors import ConnectionFailedError, code_name
from lowtide.admin.settings import Address, ClientSettings
from lowtide.pipeline.leaders import NO_LEADER, Leader, LeaderCache, Topic
from lowtide.protocol.client.retries import SILENT_MS, Reachability, is_retriable, rest_after
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from lowtide.protocol.types import BrokerId, Offset, TopicPartition
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.random import Random, system_random

if TYPE_CHECKING:
    from lowtide.protocol.schema import ApiMessage

log = logging.getLogger(__name__)

T = TypeVar("T")

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
"""Special timestamps of ListOffsets."""


class ClusterError(Exception):
    """A call failed. The message names the call and the last reason."""


class MissingTopicsError(ClusterError):
    """Topics or partitions do not exist."""

    def __init__(self, message: str, topics: Iterable[str]) -> None:
        super().__init__(message)
        self.topics = tuple(topics)


class RetriableError(Exception):
    """An attempt failed that may succeed later, with fresh metadata. Only `BlockingCluster.retry` catches it."""


class TimestampOffset(NamedTuple):
    """The offset and timestamp in an answer to ListOffsets; both are -1 if there is no such record."""

    offset: Offset
    timestamp: int


class BlockingCluster:
    """The connections and the metadata. One thread may use them."""

    def __init__(self, settings: ClientSettings, clock: Clock | None = None, random: Random | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.leaders = LeaderCache()
        """The metadata of the topics that were asked for."""
        self.random = random or system_random()
        self._stale: set[str] = set()
        """Topics whose metadata were wrong."""
        self._connections: dict[Address, BlockingConnection] = {}
        self._spare: BlockingConnection | None = None
        """A connection for requests that cannot wait for the answers on the others."""
        self._reachable: defaultdict[Address, Reachability] = defaultdict(
            lambda: Reachability(settings.reconnect_backoff)
        )

    def deadline(self, timeout_ms: int | None = None) -> int:
        """Returns the time after `timeout_ms`, or after the default timeout of a call."""
        return self.clock.monotonic_ms() + (self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    # ------------------------------------------------------------------ retries
    def retry(self, what: str, attempt: Callable[[int], T], deadline_ms: int) -> T:
        """Calls `attempt` with its deadline until it raises neither RetriableError nor ConnectionFailedError.

        Errors: ClusterError at the deadline, which names `what` (as in "cannot read x") and the last reason; other
        errors of `attempt`.
        """
        failures = 0
        while True:
            try:
                return attempt(min(deadline_ms, self.clock.monotonic_ms() + self.settings.request_timeout_ms))
            except (RetriableError, ConnectionFailedError) as error:
                failures += 1
                rest_ms = rest_after(
                    None,
                    failures=failures,
                    now_ms=self.clock.monotonic_ms(),
                    deadline_ms=deadline_ms,
                    backoff=self.settings.retry_backoff,
                    share=self.random.uniform(-1, 1),
                )
                if rest_ms is None:
                    raise ClusterError(f"cannot {what}: {error}") from error
                log.debug("cannot %s yet: %s", what, error)
                time.sleep(rest_ms / 1000)

    # ------------------------------------------------------------------ connections
    def connection(self, address: Address, deadline_ms: int) -> BlockingConnection:
        """Returns an open connection to an address. Errors: ConnectionFailedError, TlsError."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = self._open(address, deadline_ms)
        return connection

    def _open(self, address: Address, deadline_ms: int) -> BlockingConnection:
        """Opens a connection. Errors: ConnectionFailedError, TlsError."""
        return BlockingConnection.open(address, self.settings, deadline_ms, self.clock)

    def connection_to(self, broker_id: BrokerId, deadline_ms: int) -> BlockingConnection:
        """Returns a connection to a broker in the metadata. Errors: ConnectionFailedError, RetriableError, TlsError."""
        address = self.leaders.addresses.get(broker_id)
        if address is None:
            raise RetriableError(f"broker {broker_id} is not known")
        return self.connection(address, deadline_ms)

    def leader_of(self, partition: TopicPartition, deadline_ms: int) -> Leader:
        """Returns the leader of a partition, from a broker if it is not known.

        Errors: ConnectionFailedError, RetriableError, MissingTopicsError.
        """
        topic = self.leaders.topics.get(partition.topic)
        if topic is None or partition.topic in self._stale or partition.partition not in topic.leaders:
            topic = self._refresh([partition.topic], deadline_ms)[partition.topic]
        leader = topic.leaders.get(partition.partition)
        if leader is None:
            raise MissingTopicsError(f"{partition} does not exist", [partition.topic])
        if leader.broker_id == NO_LEADER:
            self.forget(partition.topic)
            raise RetriableError(f"{partition} has no leader")
        if leader.broker_id not in self.leaders.addresses:
            self.forget(partition.topic)
            raise RetriableError(f"{partition} is led by broker {leader.broker_id}, which has no address for clients")
        return leader

    def forget(self, topic: str) -> None:
        """Marks the metadata of a topic as old: they are requested again before their next use."""
        self._stale.add(topic)

    # ------------------------------------------------------------------ metadata
    def find_topics(self, names: Iterable[str] | None, deadline_ms: int) -> dict[str, Topic]:
        """Returns the named topics, or all topics for None. The request creates no topic.

        Errors: MissingTopicsError, if one does not exist at the deadline; ClusterError.
        """
        wanted = None if names is None else sorted(set(names))
        return self.retry("learn the cluster's topics", lambda until_ms: self._refresh(wanted, until_ms), deadline_ms)

    def _refresh(self, names: list[str] | None, deadline_ms: int) -> dict[str, Topic]:
        """Requests the metadata of topics once. Errors: ConnectionFailedError, RetriableError, ClusterError."""
        answer = self.ask_metadata(names, deadline_ms)
        for topic in answer.topics if names is not None else ():
            if topic.error_code != ErrorCode.NONE:
                _refuse_topic(topic.name or "", topic.error_code)
        names = [topic.name or "" for topic in answer.topics if topic.error_code == ErrorCode.NONE]
        return {name: self.leaders.topics[name] for name in names}

    def ask_metadata(
        self, names: Iterable[str] | None, deadline_ms: int, *, may_create: bool = False
    ) -> MetadataResponse:
        """Asks a broker about topics, or about all, and keeps its answer, which may contain error codes.

        With `may_create` a broker with `auto.create.topics.enable` creates missing topics. Errors:
        ConnectionFailedError, TlsError.
        """
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in sorted(names)]
        # Since version 4 a request need not create topics. Version 4 came with Kafka 0.11, like batches v2.
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=may_create)
        answer: MetadataResponse = self.ask_any(request, deadline_ms)
        self.leaders.learn(answer)
        self._stale.difference_update(topic.name or "" for topic in answer.topics if topic.error_code == ErrorCode.NONE)
        return answer

    def ask_any(self, request: ApiMessage, deadline_ms: int) -> Any:
        """Returns the answer of any broker to a request that every broker can answer.

        If a broker does not answer within `SILENT_MS`, another one is asked. The time doubles with each attempt, so a
        slow cluster answers in the end. Errors: ConnectionFailedError for the last broker that was asked; TlsError.
        """
        patience_ms = SILENT_MS
        while True:
            connection = self._any_connection(patience_ms, deadline_ms)
            until_ms = min(deadline_ms, self.clock.monotonic_ms() + patience_ms)
            try:
                return connection.request(request, until_ms)
            except ConnectionFailedError:
                now_ms = self.clock.monotonic_ms()
                if now_ms < until_ms or now_ms >= deadline_ms:
                    raise
                self._reachable[connection.address].on_silence(now_ms)
            patience_ms *= 2

    def _any_connection(self, patience_ms: int, deadline_ms: int) -> BlockingConnection:
        """Returns a connection that waits for no answer: an open one, or a new one to a broker, silent brokers last.

        Each address may take `patience_ms` to connect. Errors: ConnectionFailedError for the last broker tried;
        TlsError.
        """
        for connection in (*self._connections.values(), *([] if self._spare is None else [self._spare])):
            if not connection.closed and not connection.waiting_count and not self._was_silent(connection.address):
                return connection
        known = list(dict.fromkeys((*self.leaders.addresses.values(), *self.settings.bootstrap_servers)))
        self.random.shuffle(known)
        failure = ConnectionFailedError("no broker is known", was_sent=False)
        for address in sorted(known, key=self._was_silent):
            busy = self._connections.get(address)
            until_ms = min(deadline_ms, self.clock.monotonic_ms() + patience_ms)
            try:
                if busy is None or busy.closed:
                    return self.connection(address, until_ms)
                if self._spare is not None:
                    self._spare.close()
                self._spare = self._open(address, until_ms)
            except ConnectionFailedError as error:
                failure = error
                if self.clock.monotonic_ms() >= until_ms:
                    self._reachable[address].on_silence(self.clock.monotonic_ms())
            else:
                return self._spare
        raise failure

    def _was_silent(self, address: Address) -> bool:
        return self._reachable[address].was_silent(self.clock.monotonic_ms())

    # ------------------------------------------------------------------ offsets
    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool, deadline_ms: int | None = None
    ) -> dict[TopicPartition, TimestampOffset]:
        """Returns the first offset at or after each partition's timestamp in milliseconds, or at a special one.

        With `read_committed`, the latest is the last stable offset. One request for each leader.
        Errors: ClusterError, MissingTopicsError.
        """
        found: dict[TopicPartition, TimestampOffset] = {}

        def attempt(until_ms: int) -> dict[TopicPartition, TimestampOffset]:
            missing = {partition: timestamp for partition, timestamp in timestamps.items() if partition not in found}
            by_leader: dict[BrokerId, dict[TopicPartition, int]] = {}
            for partition, timestamp in missing.items():
                by_leader.setdefault(self.leader_of(partition, until_ms).broker_id, {})[partition] = timestamp
            failure: RetriableError | None = None
            for broker_id, wanted in by_leader.items():
                try:
                    self._list_offsets_of(broker_id, wanted, found, read_committed=read_committed, deadline_ms=until_ms)
                except RetriableError as error:
                    failure = error
                except ConnectionFailedError as error:
                    for partition in wanted:
                        self.forget(partition.topic)
                    failure = RetriableError(str(error))
            if failure is not None:
                raise failure
            return found

        return self.retry("list offsets", attempt, self.deadline() if deadline_ms is None else deadline_ms)

    def _list_offsets_of(
        self,
        broker_id: BrokerId,
        wanted: Mapping[TopicPartition, int],
        found: dict[TopicPartition, TimestampOffset],
        *,
        read_committed: bool,
        deadline_ms: int,
    ) -> None:
        """Asks one leader, and adds its answer to `found`.

        Errors: RetriableError, ConnectionFailedError, ClusterError.
        """
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, partition), timestamp in wanted.items():
            topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=[ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
            timeout_ms=max(deadline_ms - self.clock.monotonic_ms(), 1),
        )
        answer = self.connection_to(broker_id, deadline_ms).request(request, deadline_ms)
        failure: RetriableError | None = None
        for name, one in ((topic.name, one) for topic in answer.topics for one in topic.partitions):
            listed = TopicPartition(name, one.partition_index)
            if one.error_code == ErrorCode.NONE:
                found[listed] = TimestampOffset(one.offset, one.timestamp)
            else:
                failure = RetriableError(self.on_partition_error(listed, one.error_code, "list offsets of"))
        if failure is not None:
            raise failure

    def on_partition_error(self, partition: TopicPartition, error_code: int, doing: str) -> str:
        """Marks the metadata of the topic as old, and returns the reason for a retry.

        Errors: ClusterError if a retry does not help.
        """
        self.forget(partition.topic)
        if not is_retriable(error_code):
            raise ClusterError(f"cannot {doing} {partition}: {code_name(error_code)}")
        return f"{partition}: {code_name(error_code)}"


def _refuse_topic(name: str, error_code: int) -> None:
    """Raises MissingTopicsError for a topic that does not exist, otherwise RetriableError or ClusterError."""
    if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise MissingTopicsError(f"topic {name} does not exist", [name])
    message = f"topic {name}: {code_name(error_code)}"
    raise RetriableError(message) if is_retriable(error_code) else ClusterError(message)
