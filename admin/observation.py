"""Calls that only Lowtide's brokers answer: pending deletes, segments, history and health.

ApiVersions does not list these requests (docs/adr/0008-requests-of-our-own.md), so the client chooses the version. A
broker that does not know a request or its version closes the connection; so does a broker that dies or stops. The
client repeats the request on new connections, on each of which the broker has answered ApiVersions first. A broker that
closes several in a row does not know the request (UnsupportedVersionError). No other request uses these connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminCall, AdminClientBase, failure, numbers_by_topic, partition_rows
from lowtide.admin.errors import BrokerAnsweredError, ConnectionFailedError, UnsupportedVersionError
from lowtide.admin.leaders import LeaderFinder
from lowtide.admin.retained import known, sentence
from lowtide.protocol.messages.describe_deletes import DescribeDeletesRequest, DescribeDeletesResponse
from lowtide.protocol.messages.describe_health import DescribeHealthRequest, DescribeHealthResponse
from lowtide.protocol.messages.describe_history import DescribeHistoryRequest, DescribeHistoryTopic, LogSample
from lowtide.protocol.messages.describe_segments import (
    DescribeSegmentsRequest,
    DescribeSegmentsTopic,
    ProposedConfig,
    SegmentsOfPartition,
)
from lowtide.protocol.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.errors import AdminError
    from lowtide.protocol.schema import ApiMessage

PARTITIONS_PER_REQUEST: Final = 100
"""A broker describes the segments of at most so many partitions at once."""

HISTORIES_PER_REQUEST: Final = 200

_VERSION: Final = 0

HANG_UPS: Final = 3
"""After so many closed connections in a row a broker does not know the request. One that dies closes only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSums:
    """What the next retention pass deletes of a partition with proposed settings.

    It moves the log start from `log_start` to `delete_to`. Of the `records` in between, `anyway` go with the present
    settings too. `kept` are those that only the present settings delete.
    """

    log_start: Offset
    delete_to: Offset
    records: int
    anyway: int
    kept: int
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSegments:
    """The segments of a partition on its leader. Times are the leader's, in milliseconds; -1 is unknown."""

    leader: BrokerId
    checked_at_ms: int
    next_check_at_ms: int
    described: SegmentsOfPartition

    def forecast(self) -> ForecastSums | None:
        """Returns what the next retention pass deletes with the proposed settings; None if the leader did not say."""
        if not self.described.forecast:
            return None
        start = known(self.described.retained.log_start_offset) or 0
        both = self.described.forecast[0]
        proposed, present = (
            max(start, each[-1].end_offset) if each else start for each in (both.proposed, both.present)
        )
        return ForecastSums(
            log_start=start,
            delete_to=proposed,
            records=proposed - start,
            anyway=min(present, proposed) - start,
            kept=max(0, present - proposed),
            segments=sum(each.segment_count for each in both.proposed),
            size_bytes=sum(each.size_bytes for each in both.proposed),
        )

    @property
    def explanation(self) -> str:
        """A sentence without a full stop: why the oldest segment is kept, and when it will be deleted."""
        return sentence(self.described.retained, self.checked_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHistory:
    """Samples of a replica, the oldest first. They are `interval_ms` apart; unchanged ones are left out."""

    interval_ms: int
    samples: Sequence[LogSample]


async def ask_lowtide(call: AdminCall, broker_id: BrokerId, request: ApiMessage, version: int = _VERSION) -> Any:
    """Returns a broker's answer to a request that only Lowtide has, in this version.

    Errors: UnsupportedVersionError if the broker closes `HANG_UPS` connections in a row; ConnectionFailedError, which
    may be temporary.
    """
    for hang_ups in count(1):
        try:
            async with call.cluster.broker(broker_id, call.deadline, waits=True) as handle:
                return await handle.ask_in(request, version)
        except ConnectionFailedError as error:
            if not error.hung_up or not call.deadline.remaining_ms():
                raise
            if hang_ups == HANG_UPS:
                name = type(request).__name__.removesuffix("Request")
                raise UnsupportedVersionError(
                    f"broker {broker_id} does not answer {name}: it has closed {HANG_UPS} connections in a row at this "
                    "request. Apache Kafka and older versions of Lowtide do not know it"
                ) from error
        await call.cluster.rest(hang_ups, call.deadline)
    return None


async def _of_brokers(
    call: AdminCall, brokers: Collection[BrokerId] | None, request: ApiMessage, what: str
) -> dict[BrokerId, Any]:
    """Returns the answers of brokers; None asks all that are reachable."""

    async def send(broker_id: BrokerId, asked: list[BrokerId]) -> Mapping[BrokerId, Outcome[Any]]:
        response = await ask_lowtide(call, broker_id, request)
        if response.error_code:
            return dict.fromkeys(asked, failure(f"broker {broker_id}", response.error_code))
        return {broker_id: Done(response)}

    asked = await call.cluster.brokers(call.deadline) if brokers is None else brokers
    return await call.each(asked, call.to_broker(lambda each: each), send, lambda each: f"{what} broker {each}")


async def describe_deletes(
    client: AdminClientBase,
    brokers: Collection[BrokerId] | None = None,
    *,
    waiting_max: int = 1_000,
    finished_max: int = 1_000,
    after_number: int = 0,
    timeout: float | None = None,
) -> dict[BrokerId, DescribeDeletesResponse | AdminError]:
    """Returns the pending and the last finished deletes of records at brokers (default: all that are reachable).

    `after_number` leaves out finished deletes up to this number: pass the `last_number` of the broker's last answer.
    UnsupportedVersionError for brokers other than Lowtide's.
    """
    request = DescribeDeletesRequest(waiting_max=waiting_max, finished_max=finished_max, after_number=after_number)
    return await _of_brokers(client.call(timeout), brokers, request, "the deletes at")


async def describe_health(
    client: AdminClientBase, brokers: Collection[BrokerId] | None = None, *, timeout: float | None = None
) -> dict[BrokerId, DescribeHealthResponse | AdminError]:
    """Returns the event-loop lag and the disk usage (live, deleted, free) of brokers (default: all that are reachable).

    UnsupportedVersionError for brokers other than Lowtide's.
    """
    return await _of_brokers(client.call(timeout), brokers, DescribeHealthRequest(), "the health of")


async def describe_history(
    client: AdminClientBase,
    broker_id: BrokerId,
    partitions: Collection[TopicPartition],
    *,
    after_ms: int = 0,
    timeout: float | None = None,
) -> dict[TopicPartition, ReplicaHistory | AdminError]:
    """Returns log start, log end and size of a broker's replicas over the last hour, or after a wall-clock time.

    Errors: UnsupportedVersionError for brokers other than Lowtide's; ConnectionFailedError.
    """
    call = client.call(timeout)
    await call.cluster.brokers(call.deadline)
    found: dict[TopicPartition, ReplicaHistory | AdminError] = {}
    wanted = list(dict.fromkeys(partitions))
    for start in range(0, len(wanted), HISTORIES_PER_REQUEST):
        some = numbers_by_topic(wanted[start : start + HISTORIES_PER_REQUEST])
        topics = [DescribeHistoryTopic(name=name, partitions=numbers) for name, numbers in some.items()]
        response = await ask_lowtide(call, broker_id, DescribeHistoryRequest(topics=topics, after_ms=after_ms))
        if response.error_code:
            raise BrokerAnsweredError(response.error_code, f"the history of broker {broker_id}")
        for key, row in partition_rows(response.topics):
            error = BrokerAnsweredError(row.error_code, f"{key} at broker {broker_id}") if row.error_code else None
            found[key] = error or ReplicaHistory(interval_ms=response.interval_ms, samples=row.samples)
    return found


async def describe_segments(  # noqa: PLR0913 - a method of the client
    client: AdminClientBase,
    partitions: Collection[TopicPartition],
    *,
    segments_max: int = 1_000,
    first_offset: Offset = 0,
    delete_offsets: Mapping[TopicPartition, Offset] | None = None,
    proposed: Mapping[str, Mapping[str, str | None]] | None = None,
    timeout: float | None = None,
) -> dict[TopicPartition, PartitionSegments | AdminError]:
    """Returns the segments and replicas of partitions, and what each retention rule keeps.

    At most `segments_max` segments of each partition that end above `first_offset`, the oldest first. With
    `delete_offsets` the answer has in `described.freed` what deletes up to them (exclusive) would free; it stays empty
    where the leader is an older Lowtide. With `proposed` settings of topics (None is the default) it has in
    `described.forecast` what the next retention pass would delete with them; empty likewise.
    UnsupportedVersionError where the leader is not Lowtide's.
    """
    call = client.call(timeout)
    leaders = LeaderFinder(call)

    async def ask(
        broker_id: BrokerId, some: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[PartitionSegments]]:
        rows = [
            DescribeSegmentsTopic(
                name=name,
                partitions=numbers,
                delete_offsets=[delete_offsets.get(TopicPartition(name, each), -1) for each in numbers]
                if delete_offsets
                else [],
                proposed=[
                    ProposedConfig(name=key, value=value) for key, value in (proposed or {}).get(name, {}).items()
                ],
            )
            for name, numbers in numbers_by_topic(some).items()
        ]
        request = DescribeSegmentsRequest(topics=rows, segments_max=segments_max, first_offset=first_offset)
        response = await ask_lowtide(call, broker_id, request)
        if response.error_code:
            return dict.fromkeys(some, failure(f"broker {broker_id}", response.error_code))
        found: dict[TopicPartition, Outcome[PartitionSegments]] = {}
        for key, row in partition_rows(response.topics):
            if row.error_code:
                found[key] = leaders.on_error(key, row.error_code, "its leader did not describe its segments")
            else:
                found[key] = Done(
                    PartitionSegments(
                        leader=broker_id,
                        checked_at_ms=response.checked_at_ms,
                        next_check_at_ms=response.next_check_at_ms,
                        described=row,
                    )
                )
        return found

    async def send(
        broker_id: BrokerId, asked: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[PartitionSegments]]:
        found: dict[TopicPartition, Outcome[PartitionSegments]] = {}
        for start in range(0, len(asked), PARTITIONS_PER_REQUEST):
            found.update(await ask(broker_id, asked[start : start + PARTITIONS_PER_REQUEST]))
        return found

    return await call.each(partitions, leaders.locate, send, lambda key: f"the segments of {key}")
