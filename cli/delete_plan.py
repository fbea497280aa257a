"""What a delete would do, before it does it: up to where records of each partition go, how many those are, and how much space they take.

Offsets are looked up once, into a plan; what is deleted then is the plan and nothing else. Counts are of offsets: compaction and
transactions leave fewer records. Bytes are the records' share of the partition's size on the leader's disk, which holds as far as records
are alike; files go when all in them is deleted.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.deletion import Committed, DeletedRecords, DeleteRecordsError, DeleteResult, DeleteTarget
from lowtide.admin.errors import AdminError, code_name
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
from lowtide.cli.outcome import misused
from lowtide.cli.partition_sizes import leader_sizes
from lowtide.cli.printing import moment, plural
from lowtide.cli.retained import size
from lowtide.cli.wanted_offsets import parse_offset, parse_partitions, parse_time
from lowtide.protocol.types import Offset, TopicId, TopicPartition


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


def target_of(offset: str | None, before: str | None, groups: Sequence[str]) -> DeleteTarget:
    """What the options ask for: exactly one of them. Errors: CommandError."""
    given = [name for name, value in (("--offset", offset), ("--before", before), ("--committed-by", groups)) if value]
    if len(given) != 1:
        together = f"{' and '.join(given)} are not possible together" if given else "it isn't said up to where"
        raise misused(f"{together}: give one of --offset, --before and --committed-by.")
    try:
        if offset is not None:
            return parse_offset(offset)
        if before is not None:
            return Timestamp(parse_time(before))
        return Committed(groups)
    except ValueError as error:
        raise misused(f"{given[0]}: {error}.") from None


def in_words(target: DeleteTarget) -> str:
    """What would go, for a question to a person."""
    if isinstance(target, Timestamp):
        return f"all records before the first one of {moment(target.ms)} or later"
    if isinstance(target, Committed):
        return f"all records that {' and '.join(target.groups)} {'has' if len(target.groups) == 1 else 'have all'} consumed"
    return "all records" if target < 0 else f"all records below offset {target}"


def chosen_partitions(texts: Iterable[str], view: ClusterView) -> list[TopicPartition]:
    """The partitions that `topic` or `topic:0,2-4` name, of topics that are there. Errors: CommandError."""
    found: dict[TopicPartition, None] = {}
    for text in texts:
        try:
            topic, numbers = parse_partitions(text)
        except ValueError as error:
            raise misused(f"{error}.") from None
        described = view.topics.get(topic)
        if described is None:
            raise misused(f"there is no topic {topic}, or it may not be described.")
        missing = [number for number in numbers or () if number not in described.partitions]
        if missing:
            raise misused(f"topic {topic} has no partition {missing[0]}: it has {len(described.partitions)}.")
        found.update(dict.fromkeys(TopicPartition(topic, number) for number in numbers or described.partitions))
    return list(found)


def matching_topics(patterns: Iterable[str], view: ClusterView) -> list[str]:
    """The topics, but for internal ones, whose names fit one of the patterns (`*` and `?`). Errors: CommandError for one that none fits."""
    names = [name for name, topic in sorted(view.topics.items()) if not topic.is_internal]
    found: dict[str, None] = {}
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise misused(f"no topic fits {pattern!r}.")
        found.update(dict.fromkeys(fitting))
    return sorted(found)


async def make_plan(
    client: AdminClient, targets: Mapping[TopicPartition, DeleteTarget], view: ClusterView, timeout_ms: int, *, with_bytes: bool
) -> Plan:
    """Looks up what is asked for. Nothing is deleted. Errors: AdminError where it concerns all."""
    resolved = await client.resolve_delete_targets(targets, timeout=timeout_ms / 1000)
    starts = await client.list_offsets(dict.fromkeys(targets, OffsetSpec.EARLIEST), timeout=timeout_ms / 1000)
    ends = await client.list_offsets(dict.fromkeys(targets, OffsetSpec.LATEST), timeout=timeout_ms / 1000)
    sizes = await leader_sizes(client, view, targets, timeout_ms) if with_bytes else {}
    deletes = [_planned(partition, resolved[partition], starts[partition], ends[partition], sizes.get(partition)) for partition in targets]
    topic_ids = {topic: topic_id for topic in {each.topic for each in targets} if (topic_id := view.topic_id(topic)) is not None}
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
    planned = PlannedDelete(partition=partition, log_start=log_start, log_end=log_end, delete_to=delete_to, reason=reason)
    if planned.records is None or whole_bytes is None or log_start is None or log_end is None:
        return planned
    share = whole_bytes * planned.records // (log_end - log_start) if log_end > log_start else 0
    return PlannedDelete(partition=partition, log_start=log_start, log_end=log_end, delete_to=delete_to, reason=reason, bytes=share)


PLAN_COLUMNS = ("topic", "partition", "log start", "delete to", "records", "bytes, about", "remark")


def plan_rows(plan: Plan) -> list[tuple[object, ...]]:
    """For people."""
    return [
        (each.partition.topic, each.partition.partition, each.log_start, each.delete_to, each.records, each.bytes, each.reason or "")
        for each in plan.deletes
    ]


def summary(plan: Plan) -> str:
    """For people, in one line."""
    space = "" if plan.bytes is None else f", about {size(plan.bytes)}"
    return f"{plural(plan.records, 'record')} of {plural(len(plan.offsets), 'partition')}{space}"


def plan_value(each: PlannedDelete) -> dict[str, Any]:
    """For programs."""
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "log_start_offset": each.log_start,
        "delete_to": each.delete_to,
        "records": each.records,
        "bytes_estimated": each.bytes,
        "error": None
        if each.reason is None
        else {"stage": "finding the offset", "code": None, "message": each.reason, "leader_done": False},
    }


def result_value(each: PlannedDelete, result: DeleteResult | None) -> dict[str, Any]:
    """For programs, after the delete; without a result it wasn't tried."""
    value = plan_value(each) | {"low_watermark": None, "leader_log_start_offset": None}
    if isinstance(result, DeletedRecords):
        value["low_watermark"] = result.low_watermark
        value["leader_log_start_offset"] = None if result.leader_log_start_offset < 0 else result.leader_log_start_offset
    elif result is not None:
        value["error"] = {
            "stage": result.stage.value,
            "code": None if result.code is None else code_name(result.code),
            "message": result.reason,
            "leader_done": result.leader_done,
        }
    return value
