"""The brokers that were replicas of a partition and perhaps don't know yet that they aren't any more.

A reassignment takes a replica away in the metadata, which each broker sees at another moment. Until the broker of such
a replica does, it may answer consumers: as a follower (rule DR7), or as a leader that has been replaced. So a delete
isn't acknowledged before that broker was seen to act on the change (rule DR3); nothing that it has reported counts, for
it learns of no delete any more.

It isn't waited for when its registration is over, for then it sees the metadata before it serves again, or its log
directory has failed; nor for longer than `replica.lag.time.max.ms`, within which a broker that can't reach its leader
stops to answer.

Every replica keeps this, for any of them may lead next: for a leadership that begins the time begins again, also where
it was over before.

Pure: time is passed in. Source: ours; in Kafka a removed replica may answer with what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.metadata.store import Revision
    from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId, TopicPartition


class FormerReplica(msgspec.Struct, frozen=True, gc=False):
    """A replica that was removed: under which registration, and whose broker knows it when it acts on metadata of `revision`.

    `since_ms`: from when on it is waited for, on the monotonic clock.
    """

    broker_epoch: BrokerEpoch
    revision: Revision
    since_ms: int


class FormerReplicas:
    """Those of one partition, by their brokers."""

    __slots__ = ("_by_broker", "_limit_ms", "_number", "_topic_id")

    def __init__(self, topic_id: TopicId, number: int, limit_ms: int) -> None:
        """`limit_ms` is `replica.lag.time.max.ms`."""
        self._topic_id = topic_id
        self._number = number
        self._limit_ms = limit_ms
        self._by_broker: dict[BrokerId, FormerReplica] = {}

    def __len__(self) -> int:
        return len(self._by_broker)

    def note_removed(
        self, removed: Iterable[BrokerId], state: PartitionImage, image: MetadataImage, now_ms: int
    ) -> None:
        """`state` is the first without these.

        One that is added again is waited for as before: it may not know of either.
        """
        for broker_id in removed:
            broker_epoch = image.broker_epoch(broker_id)
            if broker_epoch is not None:
                self._by_broker[broker_id] = FormerReplica(broker_epoch, state.modify_revision, now_ms)

    def begin_again(self, now_ms: int) -> None:
        """A leadership begins: another leader may have answered them until now."""
        for broker_id, former in self._by_broker.items():
            self._by_broker[broker_id] = msgspec.structs.replace(former, since_ms=now_ms)

    def note_confirmed(self, broker_id: BrokerId, revision: Revision) -> None:
        """A broker acts on metadata of this revision."""
        former = self._by_broker.get(broker_id)
        if former is not None and former.revision <= revision:
            del self._by_broker[broker_id]

    def awaited(self, image: MetadataImage, now_ms: int) -> dict[BrokerId, FormerReplica]:
        """Those that deletes of this partition wait for."""
        return {
            broker_id: former
            for broker_id, former in self._by_broker.items()
            if image.broker_epoch(broker_id) == former.broker_epoch
            and now_ms - former.since_ms <= self._limit_ms
            and image.replica_is_online(broker_id, self._topic_id, self._number)
        }


class HostedReplica(Protocol):
    """What of a partition is asked for here; see `Partition`."""

    topic_id: TopicId
    topic_partition: TopicPartition
    local_broker_id: BrokerId
    lag_time_max_ms: int
    replicas: tuple[BrokerId, ...]
    former_replicas: FormerReplicas | None


def awaited_former(partition: HostedReplica, image: MetadataImage, now_ms: int) -> dict[BrokerId, FormerReplica]:
    """The former replicas that deletes of a partition wait for, by their brokers."""
    return {} if partition.former_replicas is None else partition.former_replicas.awaited(image, now_ms)


def note_removals(
    partition: HostedReplica, state: PartitionImage, image: MetadataImage, now_ms: int, *, is_new: bool
) -> None:
    """A partition is about to become what `state` says: keep who isn't a replica any more.

    `is_new`: the leadership is.
    """
    if partition.former_replicas is not None and is_new:
        partition.former_replicas.begin_again(now_ms)
    if partition.replicas == state.replicas:
        return
    removed = set(partition.replicas) - {*state.replicas, partition.local_broker_id}
    if removed and partition.former_replicas is None:
        partition.former_replicas = FormerReplicas(
            partition.topic_id, partition.topic_partition.partition, partition.lag_time_max_ms
        )
    if removed and partition.former_replicas is not None:
        partition.former_replicas.note_removed(removed, state, image, now_ms)
