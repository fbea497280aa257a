"""The brokers that were replicas of a partition and perhaps don't know yet that they aren't any more.

A reassignment takes a replica away in the metadata, which each broker sees at another moment. Until the broker of such a replica does, it
may answer consumers: as a follower (rule DR7), or as a leader that has been replaced. So a delete isn't acknowledged before that broker
was seen to act on the change (rule DR3); nothing that it has reported counts, for it is told nothing of deletes any more.

It isn't waited for when its registration is over, for then it sees the metadata before it serves again, or its log directory has failed;
nor for longer than `replica.lag.time.max.ms`, within which a broker that can't reach its leader stops to answer.

Every replica keeps this, for any of them may lead next: for a leadership that begins the time begins anew.

Pure: time is passed in. Source: ours; in Kafka a removed replica may answer with what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.metadata.image import MetadataImage, PartitionImage
    from lowtide.metadata.store import Revision
    from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId


class FormerReplica(msgspec.Struct, frozen=True, gc=False):
    """A replica that was removed: under which registration, and whose broker knows it when it acts on metadata of `revision`.

    `since_ms`: from when on it is waited for, on the monotonic clock.
    """

    broker_epoch: BrokerEpoch
    revision: Revision
    since_ms: int


class FormerReplicas:
    """Those of one partition, by their brokers."""

    __slots__ = ("_by_broker",)

    def __init__(self) -> None:
        self._by_broker: dict[BrokerId, FormerReplica] = {}

    def __len__(self) -> int:
        return len(self._by_broker)

    def note_removed(self, removed: list[BrokerId], state: PartitionImage, image: MetadataImage, now_ms: int) -> None:
        """`state` is the first without these. One that is added again is waited for as before: it may not know of either."""
        for broker_id in removed:
            broker_epoch = image.broker_epoch(broker_id)
            if broker_epoch is not None:
                self._by_broker[broker_id] = FormerReplica(broker_epoch, state.modify_revision, now_ms)

    def begin_anew(self, now_ms: int) -> None:
        """A leadership begins: another leader may have answered them until now."""
        for broker_id, former in self._by_broker.items():
            self._by_broker[broker_id] = msgspec.structs.replace(former, since_ms=now_ms)

    def note_confirmed(self, broker_id: BrokerId, revision: Revision) -> None:
        """A broker acts on metadata of this revision."""
        former = self._by_broker.get(broker_id)
        if former is not None and former.revision <= revision:
            del self._by_broker[broker_id]

    def drop(self, broker_id: BrokerId) -> None:
        """It is waited for no more."""
        self._by_broker.pop(broker_id, None)

    def awaited(
        self, topic_id: TopicId, number: int, image: MetadataImage, limit_ms: int, now_ms: int
    ) -> Iterator[tuple[BrokerId, FormerReplica]]:
        """Those that deletes of this partition wait for. `limit_ms` is `replica.lag.time.max.ms`."""
        for broker_id, former in self._by_broker.items():
            is_over = image.broker_epoch(broker_id) != former.broker_epoch or now_ms - former.since_ms > limit_ms
            if not is_over and image.replica_is_online(broker_id, topic_id, number):
                yield broker_id, former
