"""What only brokers of Lowtide can tell: deletes that wait, segments and what keeps them (docs/adr/0008-requests-of-our-own.md).

The requests are not advertised, so there is no version to choose. A broker that does not know one closes the connection, and so does one
that dies or stops. It is asked again on a new connection, on which it has answered which versions it speaks: one that closes that too, at
the same request, doesn't know it (UnsupportedVersionError). No other request uses these connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.anywhere import outcome_of_error, to_a_broker
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.errors import BrokerAnsweredError, ConnectionFailedError, UnsupportedVersionError
from lowtide.admin.leaders import Leaders
from lowtide.admin.retained import sentence
from lowtide.protocol.messages.describe_deletes import DescribeDeletesRequest, DescribeDeletesResponse
from lowtide.protocol.messages.describe_health import DescribeHealthRequest, DescribeHealthResponse
from lowtide.protocol.messages.describe_history import DescribeHistoryRequest, DescribeHistoryTopic, LogSample
from lowtide.protocol.messages.describe_segments import (
    DescribeSegmentsRequest,
    DescribeSegmentsTopic,
    SegmentsOfPartition,
)
from lowtide.protocol.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.errors import AdminError
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.schema import ApiMessage

PARTITIONS_PER_REQUEST: Final = 100
"""As many as a broker describes at once with their segments."""

HISTORIES_PER_REQUEST: Final = 200

_VERSION: Final = 0

HANG_UPS: Final = 3
"""So often in a row a broker ends the connection at a request that it doesn't know. One that dies does so once, and is away then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSegments:
    """The segments of a partition, as its leader has them.

    Times are the leader's clock, in milliseconds; -1 is not known.
    """

    leader: BrokerId
    checked_at_ms: int
    next_check_at_ms: int
    described: SegmentsOfPartition

    @property
    def explanation(self) -> str:
        """What keeps the oldest segment, and when it goes, in a sentence without a full stop."""
        return sentence(self.described.retained, self.checked_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHistory:
    """A partition as a broker has sampled it, the oldest sample first; `interval_ms` apart where something changed."""

    interval_ms: int
    samples: Sequence[LogSample]


async def ask_lowtide(cluster: Cluster, broker_id: BrokerId, request: ApiMessage, deadline: Deadline) -> Any:
    """The answer of a broker to a request that only Lowtide has.

    Errors: UnsupportedVersionError where it closes `HANG_UPS` connections in a row instead; ConnectionFailedError,
    which may pass.
    """
    for hang_ups in count(1):
        try:
            async with cluster.broker(broker_id, deadline, waits=True) as handle:
                return await handle.ask_in(request, _VERSION)
        except ConnectionFailedError as error:
            if not error.hung_up or not deadline.remaining_ms():
                raise
            if hang_ups == HANG_UPS:
                raise UnsupportedVersionError(_not_known(broker_id, request)) from error
        await cluster.rest(hang_ups, deadline)
    return None


def _not_known(broker_id: BrokerId, request: ApiMessage) -> str:
    name = type(request).__name__.removesuffix("Request")
    what = f"broker {broker_id} doesn't answer {name}: it has closed {HANG_UPS} connections in a row at this request"
    return f"{what}, as a broker does that doesn't know it (Apache Kafka, or an older Lowtide)"


async def describe_deletes(
    cluster: Cluster, brokers: Collection[BrokerId] | None, request: DescribeDeletesRequest, deadline: Deadline
) -> dict[BrokerId, DescribeDeletesResponse | AdminError]:
    """See `AdminClient.describe_deletes`."""
    return await _of_brokers(cluster, brokers, request, "the deletes at", deadline)


async def _of_brokers(
    cluster: Cluster, brokers: Collection[BrokerId] | None, request: ApiMessage, what: str, deadline: Deadline
) -> dict[BrokerId, Any]:
    """The answers of brokers, of all that can be reached without any."""

    async def send(broker_id: BrokerId, asked: list[BrokerId], _: int) -> Mapping[BrokerId, Outcome[Any]]:
        response = await ask_lowtide(cluster, broker_id, request, deadline)
        if response.error_code:
            return dict.fromkeys(asked, outcome_of_error(f"broker {broker_id}", response.error_code, None))
        return {broker_id: Done(response)}

    attempts = Attempts[BrokerId, Any](
        cluster, deadline, to_a_broker(cluster, deadline, lambda broker_id: broker_id), send
    )
    await attempts.run(list(await cluster.brokers(deadline)) if brokers is None else list(brokers))
    return attempts.results(lambda broker_id: f"{what} broker {broker_id}")


async def describe_health(
    cluster: Cluster, brokers: Collection[BrokerId] | None, deadline: Deadline
) -> dict[BrokerId, DescribeHealthResponse | AdminError]:
    """See `AdminClient.describe_health`."""
    return await _of_brokers(cluster, brokers, DescribeHealthRequest(), "the health of", deadline)


async def describe_history(
    cluster: Cluster, broker_id: BrokerId, partitions: Collection[TopicPartition], after_ms: int, deadline: Deadline
) -> dict[TopicPartition, PartitionHistory | AdminError]:
    """See `AdminClient.describe_history`."""
    await cluster.brokers(deadline)
    found: dict[TopicPartition, PartitionHistory | AdminError] = {}
    wanted = list(dict.fromkeys(partitions))
    for start in range(0, len(wanted), HISTORIES_PER_REQUEST):
        topics = [
            DescribeHistoryTopic(name=name, partitions=numbers)
            for name, numbers in _by_topic(wanted[start : start + HISTORIES_PER_REQUEST]).items()
        ]
        response = await ask_lowtide(
            cluster, broker_id, DescribeHistoryRequest(topics=topics, after_ms=after_ms), deadline
        )
        if response.error_code:
            raise BrokerAnsweredError(response.error_code, f"broker {broker_id} doesn't tell its history")
        for topic in response.topics:
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                error = BrokerAnsweredError(row.error_code, f"{key} at broker {broker_id}") if row.error_code else None
                found[key] = error or PartitionHistory(interval_ms=response.interval_ms, samples=row.samples)
    return found


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


async def describe_segments(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    segments_max: int,
    first_offset: Offset,
    deadline: Deadline,
) -> dict[TopicPartition, PartitionSegments | AdminError]:
    """See `AdminClient.describe_segments`."""
    leaders = Leaders(cluster, deadline)

    async def ask(
        broker_id: BrokerId, some: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[PartitionSegments]]:
        rows = [DescribeSegmentsTopic(name=name, partitions=numbers) for name, numbers in _by_topic(some).items()]
        request = DescribeSegmentsRequest(topics=rows, segments_max=segments_max, first_offset=first_offset)
        response = await ask_lowtide(cluster, broker_id, request, deadline)
        if response.error_code:
            return dict.fromkeys(some, outcome_of_error(f"broker {broker_id}", response.error_code, None))
        found: dict[TopicPartition, Outcome[PartitionSegments]] = {}
        for topic in response.topics:
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                found[key] = (
                    leaders.on_error(key, row.error_code, "its leader doesn't describe its segments")
                    if row.error_code
                    else Done(
                        PartitionSegments(
                            leader=broker_id,
                            checked_at_ms=response.checked_at_ms,
                            next_check_at_ms=response.next_check_at_ms,
                            described=row,
                        )
                    )
                )
        return found

    async def send(
        broker_id: BrokerId, asked: list[TopicPartition], _: int
    ) -> Mapping[TopicPartition, Outcome[PartitionSegments]]:
        found: dict[TopicPartition, Outcome[PartitionSegments]] = {}
        for start in range(0, len(asked), PARTITIONS_PER_REQUEST):
            found.update(await ask(broker_id, asked[start : start + PARTITIONS_PER_REQUEST]))
        return found

    attempts = Attempts[TopicPartition, PartitionSegments](cluster, deadline, leaders.locate, send)
    await attempts.run(list(dict.fromkeys(partitions)))
    return attempts.results(lambda key: f"the segments of {key}")
