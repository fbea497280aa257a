"""Plans a delete of records: its offset in each partition, the number of records, and their size.

Offsets are looked up once, and exactly the plan is carried out. Records are counted by offset; compaction and
transactions leave fewer. Bytes are the records' share of the leader's partition size, which assumes records of one
size. A file is removed when all of its records are deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lowtide.admin.cluster_view import PartitionDescription
from lowtide.admin.deletion import DeleteRecordsError, DeleteTarget
from lowtide.admin.log_dirs import replicas_in
from lowtide.admin.offsets import ends_of
from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDelete:
    """One partition. `delete_to` is exclusive. Unknown offsets are None, with a `reason`."""

    partition: TopicPartition
    log_start: Offset | None
    log_end: Offset | None
    delete_to: Offset | None
    reason: str | None
    bytes: int | None = None

    @property
    def records(self) -> int | None:
        """How many offsets would be deleted."""
        if self.delete_to is None or self.log_start is None or self.log_end is None:
            return None
        return max(0, min(self.delete_to, self.log_end) - self.log_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePlan:
    """All partitions, and the topic ids, which exclude later topics of the same names."""

    deletes: Sequence[PlannedDelete]
    topic_ids: Mapping[str, TopicId]

    @property
    def records(self) -> int:
        """The sum over all partitions with known offsets."""
        return sum(each.records or 0 for each in self.deletes)

    @property
    def bytes(self) -> int | None:
        """The sum over all partitions, if it is known for each with records to delete."""
        known = [each.bytes for each in self.deletes if each.records]
        return None if None in known else sum(each or 0 for each in known)

    @property
    def offsets(self) -> dict[TopicPartition, Offset]:
        """The offsets of the partitions without an error."""
        return {each.partition: each.delete_to for each in self.deletes if each.delete_to is not None}


async def make_plan(
    client: AdminClient, targets: Mapping[TopicPartition, DeleteTarget], view: ClusterView, *, with_bytes: bool
) -> DeletePlan:
    """Looks up the offsets of a delete. Nothing is deleted. Errors: AdminError that concerns the whole call."""
    resolved = await client.resolve_delete_targets(targets)
    starts, ends = await ends_of(client, targets)
    sizes = await _leader_sizes(client, view, targets) if with_bytes else {}
    deletes = [_planned(key, resolved[key], starts.get(key), ends.get(key), sizes.get(key)) for key in targets]
    topic_ids = {
        topic: topic_id for topic in {each.topic for each in targets} if (topic_id := view.topic_id(topic)) is not None
    }
    return DeletePlan(deletes=deletes, topic_ids=topic_ids)


def _planned(
    partition: TopicPartition,
    resolved: Offset | DeleteRecordsError,
    log_start: Offset | None,
    log_end: Offset | None,
    whole_bytes: int | None,
) -> PlannedDelete:
    delete_to, reason = (resolved, None) if isinstance(resolved, int) else (None, resolved.reason)
    if delete_to is not None and log_end is not None and delete_to > log_end:
        reason = f"offset {delete_to} is above the high watermark, {log_end}"
        delete_to = None
    planned = PlannedDelete(
        partition=partition, log_start=log_start, log_end=log_end, delete_to=delete_to, reason=reason
    )
    if planned.records is None or whole_bytes is None or log_start is None or log_end is None:
        return planned
    share = whole_bytes * planned.records // (log_end - log_start) if log_end > log_start else 0
    return replace(planned, bytes=share)


async def _leader_sizes(
    client: AdminClient, view: ClusterView, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Returns each partition's bytes on its leader; unknown sizes are missing."""
    leaders: dict[TopicPartition, BrokerId] = {}
    for partition in partitions:
        described = view.partition(partition)
        if isinstance(described, PartitionDescription) and described.leader is not None:
            leaders[partition] = described.leader
    if not leaders:
        return {}
    answers = await client.describe_log_dirs(sorted(set(leaders.values())), partitions=list(leaders))
    return {
        partition: replica.size_bytes
        for broker_id, partition, replica in replicas_in(answers)
        if leaders.get(partition) == broker_id and not replica.is_future
    }
