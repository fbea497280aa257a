"""Partitions and the brokers that lead them: where requests about partitions go."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from lowtide.admin.attempts import Located, Retry
from lowtide.admin.cluster import Cluster
from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.admin.patience import Deadline
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition

UNKNOWN_SEEN_MAX: Final = 4
"""How often in a row brokers may not know a partition before it is believed: what was just made isn't known everywhere yet."""


class Leaders:
    """Finds the leaders of partitions for one call; those of its first attempt by `first`, if a view is there already."""

    def __init__(self, cluster: Cluster, deadline: Deadline, first: ClusterView | None = None) -> None:
        self._first = first
        self._cluster = cluster
        self._deadline = deadline
        self._unknown: dict[TopicPartition, int] = {}

    async def locate(self, partitions: Collection[TopicPartition], number: int) -> Located[TopicPartition]:
        """The leader of each partition. Errors: as `Cluster.view`."""
        return self.place(partitions, await self.view(partitions, number))

    async def view(self, partitions: Collection[TopicPartition], number: int) -> ClusterView:
        """What to go by in the attempt of this number. Errors: as `Cluster.view`."""
        if number == 1 and self._first is not None:
            return self._first
        return await self._cluster.view((partition.topic for partition in partitions), self._deadline)

    def place(self, partitions: Iterable[TopicPartition], view: ClusterView) -> Located[TopicPartition]:
        """The leader of each partition by this view."""
        located = Located[TopicPartition]()
        for partition in partitions:
            found = view.partition(partition)
            if isinstance(found, int):
                located.others[partition] = self._unusable(partition, found)
            elif found.leader is None:
                located.others[partition] = Retry("it has no leader")
            elif found.leader not in view.brokers:
                located.others[partition] = Retry(f"its leader, broker {found.leader}, can't be reached by clients")
            else:
                self._unknown.pop(partition, None)
                located.put(found.leader, partition)
        return located

    def on_error(self, partition: TopicPartition, code: int, what: str) -> Retry | AdminError:
        """What an error in a leader's answer means for the partition: try again, or give up."""
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return self._unusable(partition, code)
        return Retry(code_name(code)) if is_retriable(code) else BrokerAnsweredError(code, f"{partition}: {what}")

    def _unusable(self, partition: TopicPartition, code: int) -> Retry | AdminError:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            seen = self._unknown[partition] = self._unknown.get(partition, 0) + 1
            if seen < UNKNOWN_SEEN_MAX:
                return Retry("the brokers don't know it")
            return BrokerAnsweredError(code, f"{partition}: the brokers don't know it")
        return Retry(code_name(code)) if is_retriable(code) else BrokerAnsweredError(code, f"{partition}: no metadata")
