"""From what a delete was asked for to offsets: -1, times and groups are looked up once, before anything is deleted.

Any doubt means that nothing of the partition is deleted:

* a group without a commit for it (a share group: without a start), or one whose offsets are not known;
* a commit of a leader epoch that is above the partition's: it is of a topic of this name that is gone;
* a time that no record seems to reach, unless the largest timestamp confirms it: Kafka may answer "none" although there is one, when
  records below the log start are the newest of their segment.

Everything is looked up in the order that errs towards keeping: the end of the log before the time, so that what comes
meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from lowtide.admin.cluster_view import PartitionDescription
from lowtide.admin.deletion import Committed, DeleteFacts, DeleteRecordsError, DeleteStage, DeleteTarget
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.group_offsets import CommittedOffset, GroupOffsets, list_group_offsets
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp, list_offsets
from lowtide.admin.share_groups import ShareOffset, is_no_share_group, list_share_group_offsets
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.cluster_view import ClusterView
    from lowtide.admin.patience import Deadline


class Resolved(dict[TopicPartition, "Offset | DeleteRecordsError"]):
    """Each partition's offset (0 or more, exclusive), or why there is none."""

    def fail(self, partition: TopicPartition, reason: object) -> None:
        """Nothing of this partition is deleted."""
        facts = DeleteFacts(code=reason.code) if isinstance(reason, BrokerAnsweredError) else None
        self[partition] = DeleteRecordsError(
            partition, DeleteStage.RESOLVING, str(reason).removeprefix(f"{partition}: "), facts
        )


def needs_looking_up(target: DeleteTarget) -> bool:
    """Whether a target isn't an offset yet."""
    return not isinstance(target, int) or target < 0


async def resolve(
    cluster: Cluster, targets: Mapping[TopicPartition, DeleteTarget], view: ClusterView, deadline: Deadline
) -> Resolved:
    """The offset of each target. `view` is that of the call's beginning. Errors: AuthenticationFailedError."""
    resolved = Resolved(
        {partition: target for partition, target in targets.items() if isinstance(target, int) and target >= 0}
    )
    times = {partition: target for partition, target in targets.items() if isinstance(target, Timestamp)}
    groups = {partition: target for partition, target in targets.items() if isinstance(target, Committed)}
    ends = {partition for partition, target in targets.items() if isinstance(target, int) and target < 0}
    latest = await list_offsets(cluster, dict.fromkeys((*ends, *times), OffsetSpec.LATEST), deadline, view=view)
    for partition in ends:
        end = latest[partition]
        if isinstance(end, AdminError):
            resolved.fail(partition, end)
        else:
            resolved[partition] = end.offset
    if times:
        await _resolve_times(cluster, times, latest, resolved, view, deadline)
    if groups:
        asked: dict[str, list[TopicPartition]] = {}
        for partition, target in groups.items():
            for group in target.groups:
                asked.setdefault(group, []).append(partition)
        committed = await _consumed(cluster, asked, deadline)
        for partition, target in groups.items():
            smallest = smallest_commit(partition, target.groups, committed, view)
            if isinstance(smallest, str):
                resolved.fail(partition, smallest)
            else:
                resolved[partition] = smallest
    return resolved


async def _consumed(
    cluster: Cluster, asked: Mapping[str, Collection[TopicPartition]], deadline: Deadline
) -> Mapping[str, GroupOffsets | AdminError]:
    """What groups have committed; of share groups (KIP-932), where their partitions start: what lies before is done with."""
    committed = await list_group_offsets(cluster, asked, deadline)
    lacking = [
        group
        for group, found in committed.items()
        if isinstance(found, AdminError) or not found.keys() >= set(asked[group])
    ]
    for group, starts in (await list_share_group_offsets(cluster, lacking, deadline)).items():
        if isinstance(starts, AdminError):
            if not is_no_share_group(starts):
                committed[group] = starts
        elif starts:  # Kafka answers for groups of other kinds, too: they have none.
            committed[group] = {
                key: CommittedOffset(offset=each.offset) if isinstance(each, ShareOffset) else each
                for key, each in starts.items()
            }
    return committed


def smallest_commit(
    partition: TopicPartition,
    groups: Iterable[str],
    committed: Mapping[str, GroupOffsets | AdminError],
    view: ClusterView,
) -> Offset | str:
    """The smallest offset that all of the groups have committed, or why the partition is left as it is."""
    described = view.partition(partition)
    epoch = described.leader_epoch if isinstance(described, PartitionDescription) else UNKNOWN_OFFSET
    offsets: list[Offset] = []
    for group in groups:
        of_group = committed[group]
        if isinstance(of_group, AdminError):
            return str(of_group)
        found = of_group.get(partition)
        if found is None:
            return f"group {group} hasn't committed an offset for it"
        if not isinstance(found, CommittedOffset):
            return str(found)
        if found.leader_epoch > epoch >= 0:
            return f"group {group} committed {found.offset} in leader epoch {found.leader_epoch}, but the partition is in epoch {epoch}"
        offsets.append(found.offset)
    return min(offsets)


async def _resolve_times(
    cluster: Cluster,
    times: Mapping[TopicPartition, Timestamp],
    latest: Mapping[TopicPartition, ListedOffset | AdminError],
    resolved: Resolved,
    view: ClusterView,
    deadline: Deadline,
) -> None:
    known = {
        partition: end.offset
        for partition, end in latest.items()
        if partition in times and isinstance(end, ListedOffset)
    }
    for partition in times:
        if partition not in known:
            resolved.fail(partition, latest[partition])
    first = await list_offsets(cluster, {partition: times[partition] for partition in known}, deadline, view=view)
    unreached: list[TopicPartition] = []
    for partition, found in first.items():
        if isinstance(found, AdminError):
            resolved.fail(partition, found)
        elif found.offset == UNKNOWN_OFFSET:
            unreached.append(partition)
        else:
            resolved[partition] = found.offset
    await _resolve_unreached(cluster, unreached, times, known, resolved, deadline)


async def _resolve_unreached(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    times: Mapping[TopicPartition, Timestamp],
    latest: Mapping[TopicPartition, Offset],
    resolved: Resolved,
    deadline: Deadline,
) -> None:
    """Partitions without a record at or after their time: all of their records go, if none is newer indeed.

    The newest may be one that was deleted and is still on the disk: where all are deleted, there is no doubt, and
    nothing that could go.
    """
    newest = await list_offsets(cluster, dict.fromkeys(partitions, OffsetSpec.MAX_TIMESTAMP), deadline)
    doubtful: dict[TopicPartition, ListedOffset] = {}
    for partition, found in newest.items():
        if isinstance(found, AdminError):
            resolved.fail(partition, found)
        elif found.timestamp_ms < times[partition].ms:
            resolved[partition] = latest[partition]
        else:
            doubtful[partition] = found
    starts = await list_offsets(cluster, dict.fromkeys(doubtful, OffsetSpec.EARLIEST), deadline)
    for partition, found in doubtful.items():
        start = starts[partition]
        if isinstance(start, ListedOffset) and start.offset >= latest[partition]:
            resolved[partition] = latest[partition]
        else:
            reason = (
                f"its leader found no record of {times[partition].ms} ms or later, but one of {found.timestamp_ms} ms at {found.offset}: "
                "what is newer is not known"
            )
            resolved.fail(partition, reason)
