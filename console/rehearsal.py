"""Rehearses a delete of records: its offsets, the number of records, and the bytes that it frees. Deletes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.delete_plan import make_plan
from lowtide.admin.deletion import Committed, DeleteTarget
from lowtide.admin.offsets import Timestamp
from lowtide.admin.retained import duration, size, waits_for
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import Parameters
from lowtide.console.delete_job import RehearsedDelete
from lowtide.console.insight import segments_of
from lowtide.console.topic import chosen_numbers, topic_of
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.observation import PartitionSegments
    from lowtide.console.sessions import ConsoleSession

TARGETS: Final = ("offset", "time", "committed", "all")
GROUPS_MAX: Final = 20


async def rehearse_delete(session: ConsoleSession, given: Parameters) -> RehearsedDelete:
    """Plans a delete. Errors: RefusedError, AdminError."""
    client = session.client
    name = arguments.topic(given)
    target, words = target_of(given)
    topic = await topic_of(client, name)
    view = await client.call().view([name])
    targets = dict.fromkeys((TopicPartition(name, number) for number in chosen_numbers(topic, given)), target)
    plan = await make_plan(client, targets, view, with_bytes=True)
    found = await segments_of(session, list(plan.offsets), 1, plan.offsets)
    freed = {key: value for key, each in found.items() if (value := freed_value(each)) is not None}
    return RehearsedDelete(plan, words, leader_only=arguments.flag(given, "leader_only"), segments=freed)


def freed_value(found: PartitionSegments) -> dict[str, Any] | None:
    """Returns what a delete frees, as the leader computes it, with a sentence; None from an older broker."""
    if not found.described.freed:
        return None
    freed = found.described.freed[0]
    parts = []
    if freed.file_count:
        when = f"{duration(freed.delay_ms)} after the delete" if freed.delay_ms else "at once"
        is_one = freed.file_count == 1
        parts.append(f"{freed.file_count} {'file is' if is_one else 'files are'} removed {when}")
    if freed.hole_bytes:
        parts.append(f"{size(freed.hole_bytes)} of the next file are freed within seconds")
    if freed.kept_bytes:
        parts.append(f"about {size(freed.kept_bytes)} stay in it for now: {waits_for(freed.waits_for)}")
    text = "; ".join(parts) or "there are no records below that offset"
    total = freed.file_bytes + freed.hole_bytes
    replicas = max(1, sum(each.is_live for each in found.described.replicas))
    return {
        "bytes": total,
        "on_all_disks": total * replicas,
        "delay_ms": freed.delay_ms if freed.file_count else 0,
        "text": f"{text[0].upper()}{text[1:]}.",
    }


def target_of(given: Parameters) -> tuple[DeleteTarget, str]:
    """Reads the target; returns it with its description. Errors: RefusedError."""
    kind = arguments.choice(given, "to", TARGETS)
    if kind == "all":
        return -1, "all present records"
    if kind == "committed":
        groups = arguments.texts(given, "groups", GROUPS_MAX)
        have = "has" if len(groups) == 1 else "have all"
        return Committed(groups), f"all records that {' and '.join(groups)} {have} consumed"
    text = arguments.text(given, "value", longest=64)
    try:
        if kind == "time":
            return Timestamp(parse_time(text)), f"all records before the first one of {text} or later"
        offset = parse_offset(text)
    except ValueError as error:
        raise bad(sentence_of(error)) from None
    return offset, "all present records" if offset < 0 else f"all records below offset {offset}"
