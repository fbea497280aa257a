"""What a delete would do, before it does it: up to where records of each partition go, how many those are, and how much space they take.

Offsets are looked up once, into a plan; what is deleted then is the plan and nothing else. Counts are of offsets: compaction and
transactions leave fewer records. Bytes are the records' share of the partition's size on the leader's disk, which holds as far as records
are alike; files go when all in them is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowtide.admin.deletion import DeleteRecordsError, DeleteTarget
from lowtide.admin.errors import AdminError
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.admin.partition_sizes import leader_sizes
from lowtide.protocol.types import Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDelete:
    """One partition. Offsets are exclusive ends of what goes; None where they aren't known, and `reason` says why."""

    partition: TopicPartition
    log_start: Offset | None
    log_end: Offset | None
    delete_to: Offset | None
    reason: str | None
    bytes: int | None = None

    @property
    def records(self) -> int | None:
        """Offsets that would go."""
        if self.delete_to is None or self.log_start is None or self.log_end is None:
            return None
        return max(0, min(self.delete_to, self.log_end) - self.log_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All partitions, and the ids of the topics: a later topic of the same name is not meant."""

    deletes: Sequence[PlannedDelete]
    topic_ids: Mapping[str, TopicId]

    @property
    def records(self) -> int:
        """Of all partitions of which it is known."""
        return sum(each.records or 0 for each in self.deletes)

    @property
    def bytes(self) -> int | None:
        """Of all partitions, if it is known of each that has records to go."""
        known = [each.bytes for each in self.deletes if each.records]
        return None if None in known else sum(each or 0 for each in known)

    @property
    def offsets(self) -> dict[TopicPartition, Offset]:
        """Of the partitions that can be deleted from."""
        return {each.partition: each.delete_to for each in self.deletes if each.delete_to is not None}


async def make_plan(
    client: AdminClient,
    targets: Mapping[TopicPartition, DeleteTarget],
    view: ClusterView,
    timeout_ms: int,
    *,
    with_bytes: bool,
) -> Plan:
    """Looks up what is asked for. Nothing is deleted. Errors: AdminError where it concerns all."""
    resolved = await client.resolve_delete_targets(targets, timeout=timeout_ms / 1000)
    starts = await client.list_offsets(dict.fromkeys(targets, OffsetSpec.EARLIEST), timeout=timeout_ms / 1000)
    ends = await client.list_offsets(dict.fromkeys(targets, OffsetSpec.LATEST), timeout=timeout_ms / 1000)
    sizes = await leader_sizes(client, view, targets, timeout_ms) if with_bytes else {}
    deletes = [
        _planned(partition, resolved[partition], starts[partition], ends[partition], sizes.get(partition))
        for partition in targets
    ]
    topic_ids = {
        topic: topic_id for topic in {each.topic for each in targets} if (topic_id := view.topic_id(topic)) is not None
    }
    return Plan(deletes=deletes, topic_ids=topic_ids)


def _planned(
    partition: TopicPartition,
    resolved: Offset | DeleteRecordsError,
    start: ListedOffset | AdminError,
    end: ListedOffset | AdminError,
    whole_bytes: int | None,
) -> PlannedDelete:
    log_start = start.offset if isinstance(start, ListedOffset) else None
    log_end = end.offset if isinstance(end, ListedOffset) else None
    delete_to, reason = (resolved, None) if isinstance(resolved, int) else (None, resolved.reason)
    if delete_to is not None and log_end is not None and delete_to > log_end:
        reason = f"offset {delete_to} is beyond the high watermark, {log_end}"
        delete_to = None
    planned = PlannedDelete(
        partition=partition, log_start=log_start, log_end=log_end, delete_to=delete_to, reason=reason
    )
    if planned.records is None or whole_bytes is None or log_start is None or log_end is None:
        return planned
    share = whole_bytes * planned.records // (log_end - log_start) if log_end > log_start else 0
    return PlannedDelete(
        partition=partition, log_start=log_start, log_end=log_end, delete_to=delete_to, reason=reason, bytes=share
    )
