"""The methods of `AdminClient` that only brokers of Lowtide answer."""

from __future__ import annotations

from collections.abc import Collection

from lowtide.admin import observation
from lowtide.admin.cluster import Cluster
from lowtide.admin.errors import AdminError
from lowtide.admin.observation import PartitionHistory, PartitionSegments
from lowtide.admin.patience import Deadline
from lowtide.admin.settings import INT32_MAX
from lowtide.protocol.messages.describe_deletes import DescribeDeletesRequest, DescribeDeletesResponse
from lowtide.protocol.messages.describe_health import DescribeHealthResponse
from lowtide.protocol.types import BrokerId, Offset, TopicPartition


class ObservingClient:
    """A client of a cluster that may be Lowtide's.

    Another broker answers none of this: the error is UnsupportedVersionError.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        """What the methods stand on: leaders, coordinators, one request to one broker. For requests that have no method."""

    def _deadline(self, timeout: float | None) -> Deadline:
        """By when a call has to end that begins now and was given so many seconds. Errors: ValueError."""
        if timeout is not None and not timeout > 0:
            message = f"a timeout of {timeout} seconds leaves no time for anything"
            raise ValueError(message)
        return self.cluster.deadline(None if timeout is None else max(round(min(timeout * 1000, INT32_MAX)), 1))

    async def describe_deletes(
        self,
        brokers: Collection[BrokerId] | None = None,
        *,
        waiting_max: int = 1_000,
        finished_max: int = 1_000,
        after_number: int = 0,
        timeout: float | None = None,
    ) -> dict[BrokerId, DescribeDeletesResponse | AdminError]:
        """The deletes of records that wait at brokers (all that can be reached), and those that were answered last.

        `after_number` leaves out finished ones that an earlier answer of the one broker had: it is that answer's `last_number`.
        UnsupportedVersionError for a broker that is not Lowtide.
        """
        request = DescribeDeletesRequest(waiting_max=waiting_max, finished_max=finished_max, after_number=after_number)
        return await observation.describe_deletes(self.cluster, brokers, request, self._deadline(timeout))

    async def describe_segments(
        self,
        partitions: Collection[TopicPartition],
        *,
        segments_max: int = 1_000,
        first_offset: Offset = 0,
        timeout: float | None = None,
    ) -> dict[TopicPartition, PartitionSegments | AdminError]:
        """The segments of partitions, their replicas, what keeps the oldest segment and the boundaries of each rule of retention.

        Of each partition at most `segments_max` segments that end above `first_offset`, the oldest first. UnsupportedVersionError where
        the leader is not Lowtide.
        """
        deadline = self._deadline(timeout)
        return await observation.describe_segments(self.cluster, partitions, segments_max, first_offset, deadline)

    async def describe_history(
        self,
        broker_id: BrokerId,
        partitions: Collection[TopicPartition],
        *,
        after_ms: int = 0,
        timeout: float | None = None,
    ) -> dict[TopicPartition, PartitionHistory | AdminError]:
        """Log start, log end and size of replicas at one broker over the last hour, or after a moment (wall clock).

        Errors: UnsupportedVersionError for a broker that is not Lowtide, ConnectionFailedError.
        """
        return await observation.describe_history(
            self.cluster, broker_id, partitions, after_ms, self._deadline(timeout)
        )

    async def describe_health(
        self, brokers: Collection[BrokerId] | None = None, *, timeout: float | None = None
    ) -> dict[BrokerId, DescribeHealthResponse | AdminError]:
        """How late the event loops of brokers (all that can be reached) are, and what is on their disks: live, deleted, free.

        UnsupportedVersionError for a broker that is not Lowtide.
        """
        return await observation.describe_health(self.cluster, brokers, self._deadline(timeout))
