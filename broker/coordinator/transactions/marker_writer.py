"""Writes transaction markers to partitions that this broker leads.

Guards: a marker is reported as written once it is committed; it is checked in the turn in which it is appended; the
group coordinator gets each marker of its partitions in that turn, and none is written there while it reads the log.

Source: KIP-98, Kafka's `KafkaApis.handleWriteTxnMarkersRequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec

from lowtide.broker.partitions.commit_waits import committed_end
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.runtime.clock import Clock
from lowtide.storage.log.markers import Marker, make_marker


class TransactionEnd(msgspec.Struct, frozen=True):
    """How a transaction ended.

    `epoch_is_bumped`: above that of its batches (see `ProducerStateManager.check_marker`).
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: int
    epoch_is_bumped: bool


class MarkedState(Protocol):
    """A coordinator whose state depends on the markers in its topic."""

    def is_kept_in(self, topic: str) -> bool:
        """Returns whether the topic has its state."""

    def may_mark(self, partition: Partition) -> bool:
        """Returns whether a marker may be written now."""

    def note_marker(self, partition: Partition, marker: Marker, offset: Offset) -> None:
        """Applies a marker that was just appended."""


OnWritten = Callable[[TopicPartition, ErrorCode], None]


class MarkerWriter:
    """Appends markers to partitions that this broker leads."""

    def __init__(self, replicas: ReplicaManager, clock: Clock, marked: MarkedState) -> None:
        self._replicas = replicas
        self._clock = clock
        self._marked = marked

    def write(
        self, end: TransactionEnd, partitions: Iterable[TopicPartition], done: OnWritten, *, timeout_ms: int
    ) -> None:
        """Appends a marker to each partition.

        `done` gets each outcome once the marker is committed, perhaps within this call.

        Errors: those of `ReplicaManager.find` and `Log.append_as_leader`, NOT_LEADER_OR_FOLLOWER, also if a coordinator
        isn't ready, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT.
        """
        now_ms = self._clock.wall_ms()
        marker = make_marker(
            end.producer_id,
            end.producer_epoch,
            is_commit=end.is_commit,
            coordinator_epoch=end.coordinator_epoch,
            epoch_is_bumped=end.epoch_is_bumped,
            now_ms=now_ms,
        )
        for key in partitions:
            found = self._replicas.find(*key)
            is_kept = self._marked.is_kept_in(key.topic)
            if isinstance(found, ErrorCode):
                done(key, found)
            elif not found.is_leader or (is_kept and not self._marked.may_mark(found)):
                done(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif not found.has_enough_in_sync:
                done(key, ErrorCode.NOT_ENOUGH_REPLICAS)
            elif isinstance(appended := self._replicas.append(found, marker, now_ms), ErrorCode):
                done(key, appended)
            else:
                if is_kept:
                    self._marked.note_marker(found, marker, appended.base_offset)
                end_offset = appended.last_offset + 1
                if committed_end(found.log) >= end_offset:
                    done(key, NONE)
                else:
                    self._replicas.when_committed(found, end_offset, partial(done, key), timeout_ms=timeout_ms)
