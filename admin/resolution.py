"""Resolves the targets of a delete (-1, times, groups) to offsets, once, before anything is deleted.

Nothing of a partition is deleted if its target is in doubt:

* a group has no commit for it (a share group: no start offset), or its offsets are unknown;
* a commit has a higher leader epoch than the partition: it belongs to a deleted topic of the same name;
* no record reaches a time, and the largest timestamp does not confirm that. Kafka may answer "none" although a record
  exists, if the newest records of its segment are below the log start.

The end of the log is looked up before the time, so that records which arrive meanwhile stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from lowtide.admin.cluster_view import PartitionDescription
from lowtide.admin.deletion import Committed, DeleteFacts, DeleteRecordsError, DeleteStage, DeleteTarget
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.group_offsets import CommittedOffset, GroupOffsets, committed_offsets_of
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp, offsets_at
from lowtide.admin.share_groups import ShareOffset, is_no_share_group, share_offsets_of
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.call import AdminCall
    from lowtide.admin.cluster_view import ClusterView


class ResolvedTargets(dict[TopicPartition, "Offset | DeleteRecordsError"]):
    """Each partition's offset (0 or more, exclusive), or its error."""

    def fail(self, partition: TopicPartition, reason: object) -> None:
        """Keeps the error of a partition: nothing of it is deleted."""
        facts = DeleteFacts(code=reason.code) if isinstance(reason, BrokerAnsweredError) else None
        self[partition] = DeleteRecordsError(
            partition, DeleteStage.RESOLVING, str(reason).removeprefix(f"{partition}: "), facts
        )


def needs_looking_up(target: DeleteTarget) -> bool:
    """Returns whether a target must be resolved to an offset."""
    return not isinstance(target, int) or target < 0


async def resolve(
    call: AdminCall, targets: Mapping[TopicPartition, DeleteTarget], view: ClusterView
) -> ResolvedTargets:
    """Returns the offset of each target. `view` is from the call's beginning. Errors: AuthenticationFailedError."""
    resolved = ResolvedTargets(
        {partition: target for partition, target in targets.items() if isinstance(target, int) and target >= 0}
    )
    times = {partition: target for partition, target in targets.items() if isinstance(target, Timestamp)}
    groups = {partition: target for partition, target in targets.items() if isinstance(target, Committed)}
    ends = {partition for partition, target in targets.items() if isinstance(target, int) and target < 0}
    latest = await offsets_at(call, dict.fromkeys((*ends, *times), OffsetSpec.LATEST), view=view)
    for partition in ends:
        end = latest[partition]
        if isinstance(end, AdminError):
            resolved.fail(partition, end)
        else:
            resolved[partition] = end.offset
    if times:
        await _resolve_times(call, times, latest, resolved, view)
    if groups:
        asked: dict[str, list[TopicPartition]] = {}
        for partition, target in groups.items():
            for group in target.groups:
                asked.setdefault(group, []).append(partition)
        committed = await _consumed(call, asked)
        for partition, target in groups.items():
            smallest = smallest_commit(partition, target.groups, committed, view)
            if isinstance(smallest, str):
                resolved.fail(partition, smallest)
            else:
                resolved[partition] = smallest
    return resolved


async def _consumed(
    call: AdminCall, asked: Mapping[str, Collection[TopicPartition]]
) -> Mapping[str, GroupOffsets | AdminError]:
    """Returns the committed offsets of groups; for share groups (KIP-932) their start offsets."""
    committed = await committed_offsets_of(call, asked)
    lacking = [
        group
        for group, found in committed.items()
        if isinstance(found, AdminError) or not found.keys() >= set(asked[group])
    ]
    for group, starts in (await share_offsets_of(call, lacking)).items():
        if isinstance(starts, AdminError):
            if not is_no_share_group(starts):
                committed[group] = starts
        elif starts:  # Kafka answers about groups of other kinds too: they have no start offsets.
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
    """Returns the smallest offset that the groups have committed, or why there is none."""
    described = view.partition(partition)
    epoch = described.leader_epoch if isinstance(described, PartitionDescription) else UNKNOWN_OFFSET
    offsets: list[Offset] = []
    for group in groups:
        of_group = committed[group]
        if isinstance(of_group, AdminError):
            return str(of_group)
        found = of_group.get(partition)
        if found is None:
            return f"group {group} has committed no offset for it"
        if not isinstance(found, CommittedOffset):
            return str(found)
        if found.leader_epoch > epoch >= 0:
            committed_in = f"group {group} committed {found.offset} in leader epoch {found.leader_epoch}"
            return f"{committed_in}, but the partition is in epoch {epoch}"
        offsets.append(found.offset)
    return min(offsets)


async def _resolve_times(
    call: AdminCall,
    times: Mapping[TopicPartition, Timestamp],
    latest: Mapping[TopicPartition, ListedOffset | AdminError],
    resolved: ResolvedTargets,
    view: ClusterView,
) -> None:
    known = {
        partition: end.offset
        for partition, end in latest.items()
        if partition in times and isinstance(end, ListedOffset)
    }
    for partition in times:
        if partition not in known:
            resolved.fail(partition, latest[partition])
    first = await offsets_at(call, {partition: times[partition] for partition in known}, view=view)
    unreached: list[TopicPartition] = []
    for partition, found in first.items():
        if isinstance(found, AdminError):
            resolved.fail(partition, found)
        elif found.offset == UNKNOWN_OFFSET:
            unreached.append(partition)
        else:
            resolved[partition] = found.offset
    await _resolve_unreached(call, unreached, times, known, resolved)


async def _resolve_unreached(
    call: AdminCall,
    partitions: Collection[TopicPartition],
    times: Mapping[TopicPartition, Timestamp],
    latest: Mapping[TopicPartition, Offset],
    resolved: ResolvedTargets,
) -> None:
    """Resolves partitions without a record at or after their time, to their ends if no newer record is found.

    A newer record that is found may be a deleted one that is still on the disk. Then the target is in doubt, unless all
    records are deleted.
    """
    newest = await offsets_at(call, dict.fromkeys(partitions, OffsetSpec.MAX_TIMESTAMP))
    doubtful: dict[TopicPartition, ListedOffset] = {}
    for partition, found in newest.items():
        if isinstance(found, AdminError):
            resolved.fail(partition, found)
        elif found.timestamp_ms < times[partition].ms:
            resolved[partition] = latest[partition]
        else:
            doubtful[partition] = found
    starts = await offsets_at(call, dict.fromkeys(doubtful, OffsetSpec.EARLIEST))
    for partition, found in doubtful.items():
        start = starts[partition]
        if isinstance(start, ListedOffset) and start.offset >= latest[partition]:
            resolved[partition] = latest[partition]
        else:
            reason = (
                f"its leader found no record of {times[partition].ms} ms or later, but one of {found.timestamp_ms} ms "
                f"at offset {found.offset}: which records are newer is unknown"
            )
            resolved.fail(partition, reason)
