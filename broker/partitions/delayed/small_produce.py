"""A small Produce request that waits for the followers of its one partition: the quick form of `produce`, which is the definition.

Its answer is bytes already when the wait begins. Whatever isn't usual when it ends, such as another leader epoch, a shrunken ISR or a
time-out, is left to the plain form, which continues with the same promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.broker.pending import DelayedRequest, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowtide.broker.partitions.delayed.produce import DelayedProduce
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.protocol.types import Offset, TopicPartition
    from lowtide.replication.partition import Partition


class DelayedSmallProduce(DelayedRequest):
    """A Produce request of one batch that waits for followers."""

    __slots__ = (
        "_answer",
        "_deadline_ms",
        "_end_offset",
        "_led_since",
        "_partition",
        "_plainly",
        "_replicas",
        "pending",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        partition: Partition,
        end_offset: Offset,
        answer: bytes,
        deadline_ms: int,
        plainly: Callable[[], DelayedProduce],
    ) -> None:
        """`answer` is the frame for when all replicas in sync have what is below `end_offset`; `plainly` makes the plain form."""
        super().__init__()
        self._replicas = replicas
        self._partition = partition
        self._led_since = partition.led_since
        self._end_offset = end_offset
        self._answer = answer
        self._deadline_ms = deadline_ms
        self._plainly = plainly
        self.pending: Pending[Any] = Pending()
        self.pending.on_abandoned = self._forget

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def try_complete(self) -> bool:
        """Answer when the batch is committed, or cannot be."""
        partition = self._partition
        if (
            partition.log.high_watermark >= self._end_offset
            and partition.is_leader
            and partition.led_since == self._led_since
            and partition.may_have_enough_in_sync
            and self._replicas.find(*partition.topic_partition) is partition
        ):
            self.pending.complete(self._answer)
            return True
        plain = self._plain()
        if plain.still_waits():
            return False
        plain.on_complete()
        return True

    def on_complete(self) -> None:
        """Answer with what there is."""
        self._plain().on_complete()

    def fail(self) -> None:
        """Close the connection."""
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """The high watermark to reach."""
        return ((self._partition.topic_partition, self._end_offset),)

    def _plain(self) -> DelayedProduce:
        plain = self._plainly()
        plain.pending = self.pending
        return plain

    def _forget(self) -> None:
        self._replicas.waiting.commits.remove(self)
