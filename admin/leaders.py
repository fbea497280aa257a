"""Finds the leaders of partitions, to which requests about partitions go."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from lowtide.admin.attempts import Located, RetryLater
from lowtide.admin.call import AdminCall, failure
from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition

UNKNOWN_SEEN_MAX: Final = 4
"""After so many answers in a row that do not know a partition it counts as missing: brokers learn of new topics one by
one."""


class LeaderFinder:
    """Finds the leaders of partitions for one call. The first attempt uses the view `first`, if there is one."""

    def __init__(self, call: AdminCall, first: ClusterView | None = None) -> None:
        self._first = first
        self._call = call
        self._unknown: dict[TopicPartition, int] = {}

    async def locate(self, partitions: Collection[TopicPartition]) -> Located[TopicPartition]:
        """Assigns each partition to its leader. Errors: as `ClusterConnections.view`."""
        return self.place(partitions, await self.view(partitions))

    async def view(self, partitions: Collection[TopicPartition]) -> ClusterView:
        """Returns the view for the next attempt. Errors: as `ClusterConnections.view`."""
        if self._first is not None:
            view, self._first = self._first, None
            return view
        return await self._call.view(partition.topic for partition in partitions)

    def place(self, partitions: Iterable[TopicPartition], view: ClusterView) -> Located[TopicPartition]:
        """Assigns each partition to the leader that a view has."""
        located = Located[TopicPartition]()
        for partition in partitions:
            found = view.partition(partition)
            if isinstance(found, int):
                located.others[partition] = self.on_error(partition, found, "no metadata")
            elif found.leader is None:
                located.others[partition] = RetryLater("it has no leader")
            elif found.leader not in view.brokers:
                located.others[partition] = RetryLater(f"clients can't reach its leader, broker {found.leader}")
            else:
                self._unknown.pop(partition, None)
                located.put(found.leader, partition)
        return located

    def on_error(self, partition: TopicPartition, code: int, what: str) -> RetryLater | AdminError:
        """Returns what a partition's error means: another attempt, or failure."""
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            seen = self._unknown[partition] = self._unknown.get(partition, 0) + 1
            if seen < UNKNOWN_SEEN_MAX:
                return RetryLater("the brokers don't know it")
            return BrokerAnsweredError(code, f"{partition}: the brokers don't know it")
        return failure(f"{partition}: {what}", code)
