"""What the options of a delete mean, and how a plan and its results are shown."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.delete_plan import Plan, PlannedDelete
from lowtide.admin.deletion import Committed, DeletedRecords, DeleteResult, DeleteTarget, ErasedRecords
from lowtide.admin.errors import code_name
from lowtide.admin.offsets import Timestamp
from lowtide.admin.retained import size
from lowtide.admin.wanted_offsets import parse_offset, parse_partitions, parse_time
from lowtide.cli.outcome import misused
from lowtide.cli.printing import moment, plural
from lowtide.protocol.types import TopicPartition


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
    """The topics, but for internal ones, whose names fit one of the patterns (`*` and `?`).

    Errors: CommandError for one that none fits.
    """
    names = [name for name, topic in sorted(view.topics.items()) if not topic.is_internal]
    found: dict[str, None] = {}
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise misused(f"no topic fits {pattern!r}.")
        found.update(dict.fromkeys(fitting))
    return sorted(found)


PLAN_COLUMNS = ("topic", "partition", "log start", "delete to", "records", "bytes, about", "remark")


def plan_rows(plan: Plan) -> list[tuple[object, ...]]:
    """For people."""
    return [
        (
            each.partition.topic,
            each.partition.partition,
            each.log_start,
            each.delete_to,
            each.records,
            each.bytes,
            each.reason or "",
        )
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
        value["leader_log_start_offset"] = (
            None if result.leader_log_start_offset < 0 else result.leader_log_start_offset
        )
        if isinstance(result, ErasedRecords):
            value["erased_by"] = list(result.erased_by)
            value["not_erased_by"] = [
                {"broker": broker, "message": reason} for broker, reason in sorted(result.not_erased_by.items())
            ]
    elif result is not None:
        value["error"] = {
            "stage": result.stage.value,
            "code": None if result.code is None else code_name(result.code),
            "message": result.reason,
            "leader_done": result.leader_done,
        }
    return value


def not_erased(results: Mapping[TopicPartition, DeleteResult]) -> str | None:
    """One sentence about the brokers that have deleted and are not known to have erased, and what to do; None if all have."""
    brokers: dict[int, tuple[int, str]] = {}
    for result in results.values():
        if isinstance(result, ErasedRecords):
            for broker, reason in result.not_erased_by.items():
                brokers[broker] = (brokers.get(broker, (0, ""))[0] + 1, brokers.get(broker, (0, reason))[1])
    if not brokers:
        return None
    parts = [
        f"broker {broker} ({plural(count, 'partition')}: {reason})"
        for broker, (count, reason) in sorted(brokers.items())
    ]
    return (
        f"Deleted everywhere, but not erased at {', '.join(parts)}: "
        "run the same command again when that has passed, as often as you like."
    )
