"""Offsets committed in open transactions: they aren't returned, and may never become valid.

If a partition has several offsets, the one whose record is last wins, in whatever order they are applied, so that a
coordinator that loads a compacted log agrees. A plain commit therefore voids all pending offsets of its partition;
their entries stay until their transactions end, because the partition's offset isn't stable until then.

Guards: a pending offset is taken by the end of its own transaction, or by a deletion, and is applied once.

Source: KIP-98, KIP-447; Kafka's `OffsetMetadataManager.replayEndTransactionMarker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from lowtide.protocol.group_records import OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.types import Offset, ProducerId


class PendingOffset(msgspec.Struct):
    """A pending offset of one partition, from the record at `record_offset`.

    `value` is None if it does not matter, because a later offset wins.
    """

    value: OffsetCommitValue | None
    record_offset: Offset


PENDING_OFFSETS_MAX: Final = 10_000
"""The most pending offsets of one transaction in a shard: they are applied in one turn of the loop, which takes ten
milliseconds. Kafka has no such limit; no producer reads that many partitions."""

_Place = tuple[str, str, int]
"""Group, topic, partition."""


class PendingOffsets:
    """The offsets of open transactions."""

    __slots__ = ("_of_groups", "by_producer")

    def __init__(self) -> None:
        self._of_groups: dict[str, dict[tuple[str, int], dict[ProducerId, PendingOffset]]] = {}
        self.by_producer: dict[ProducerId, dict[_Place, None]] = {}
        """The pending offsets of each producer's open transaction. Only this class changes it."""

    def has_room(self, producer_id: ProducerId, more_count: int) -> bool:
        """Returns whether a producer's transaction may have this many more pending offsets."""
        return len(self.by_producer.get(producer_id, ())) + more_count <= PENDING_OFFSETS_MAX

    def group_ids(self) -> Iterable[str]:
        """Returns the groups with pending offsets."""
        return self._of_groups.keys()

    def has_any(self, group_id: str) -> bool:
        """Returns whether a group has pending offsets."""
        return group_id in self._of_groups

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Returns whether a partition has a pending offset."""
        found = self._of_groups.get(group_id)
        return found is not None and (topic, partition) in found

    def of_group(self, group_id: str) -> Iterator[tuple[str, int, list[OffsetCommitValue]]]:
        """Yields the partitions with pending offsets of a group, with these offsets."""
        for (topic, partition), pending in self._of_groups.get(group_id, {}).items():
            yield topic, partition, [row.value for row in pending.values() if row.value is not None]

    def add(
        self, producer_id: ProducerId, key: OffsetCommitKey, value: OffsetCommitValue, record_offset: Offset
    ) -> None:
        """Adds an offset of a producer's transaction. If there is one for the partition, the last one wins."""
        pending = self._of_groups.setdefault(key.group, {}).setdefault((key.topic, key.partition), {})
        pending[producer_id] = PendingOffset(value, record_offset)
        self.by_producer.setdefault(producer_id, {})[(key.group, key.topic, key.partition)] = None

    def outdo(self, group_id: str, topic: str, partition: int, record_offset: Offset | None = None) -> None:
        """Voids pending offsets before the record at `record_offset`, or all of them."""
        for row in self._of_groups.get(group_id, {}).get((topic, partition), {}).values():
            if record_offset is None or row.record_offset < record_offset:
                row.value = None

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """Removes the pending offsets of a partition: its offset was deleted."""
        for producer_id in list(self._of_groups.get(group_id, {}).get((topic, partition), ())):
            places = self.by_producer[producer_id]
            del places[(group_id, topic, partition)]
            if not places:
                del self.by_producer[producer_id]
            self._take(producer_id, group_id, topic, partition)

    def end(self, producer_id: ProducerId) -> list[tuple[OffsetCommitKey, PendingOffset]]:
        """Removes and returns all pending offsets of a producer, whose transaction has ended."""
        return [
            (
                OffsetCommitKey(group=group_id, topic=topic, partition=partition),
                self._take(producer_id, group_id, topic, partition),
            )
            for group_id, topic, partition in self.by_producer.pop(producer_id, ())
        ]

    def _take(self, producer_id: ProducerId, group_id: str, topic: str, partition: int) -> PendingOffset:
        rows = self._of_groups[group_id]
        pending = rows[(topic, partition)]
        found = pending.pop(producer_id)
        if not pending:
            del rows[(topic, partition)]
        if not rows:
            del self._of_groups[group_id]
        return found
