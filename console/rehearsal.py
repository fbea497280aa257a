"""Rehearses a delete of records: its offsets, the number of records, and the bytes that it frees. Deletes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.configs import ConfigResource
from lowtide.admin.delete_plan import make_plan
from lowtide.admin.deletion import Committed, DeleteTarget
from lowtide.admin.errors import AdminError
from lowtide.admin.offsets import Timestamp
from lowtide.admin.retained import duration, size
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import Parameters
from lowtide.console.delete_job import RehearsedDelete
from lowtide.console.insight import segments_of
from lowtide.console.topic import chosen_numbers, settings_of, topic_of
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.observation import PartitionSegments
    from lowtide.console.sessions import ConsoleSession
    from lowtide.protocol.messages.describe_segments import DescribedSegment

TARGETS: Final = ("offset", "time", "committed", "all")
GROUPS_MAX: Final = 20
FREED_SEGMENTS_MAX: Final = 1_000
"""How many segments of a partition are examined for freed bytes."""

FREE_KEY: Final = "lowtide.log.free.deleted"
DELAY_KEY: Final = "file.delete.delay.ms"
DELAY_MS: Final = 60_000


async def rehearse_delete(session: ConsoleSession, given: Parameters) -> RehearsedDelete:
    """Plans a delete. Errors: RefusedError, AdminError."""
    client = session.client
    name = arguments.topic(given)
    target, words = target_of(given)
    topic = await topic_of(client, name)
    view = await client.call().view([name])
    targets = dict.fromkeys((TopicPartition(name, number) for number in chosen_numbers(topic, given)), target)
    plan = await make_plan(client, targets, view, with_bytes=True)
    segments = await segments_of(session, list(plan.offsets), FREED_SEGMENTS_MAX)
    delay_ms = await _delay_ms(client, name, next(iter(segments.values())).leader) if segments else 0
    freed = {key: freed_by(segments[key], offset, delay_ms) for key, offset in plan.offsets.items() if key in segments}
    return RehearsedDelete(plan, words, leader_only=arguments.flag(given, "leader_only"), segments=freed)


async def _delay_ms(client: AdminClient, name: str, leader: BrokerId) -> int:
    """Returns how long deleted segments use disk space: 0 if the broker empties them at once, or if it is unknown."""
    resource = ConfigResource(ConfigResourceType.BROKER, str(leader))
    try:
        found = (await client.describe_configs([resource], keys=[FREE_KEY]))[resource]
    except AdminError:
        return 0
    if isinstance(found, AdminError) or FREE_KEY not in found or found[FREE_KEY].value != "false":
        return 0
    value = next((row["value"] for row in await settings_of(client, name) if row["key"] == DELAY_KEY), None)
    return int(value) if isinstance(value, str) and value.isdigit() else DELAY_MS


def freed_by(found: PartitionSegments, offset: Offset, delay_ms: int) -> dict[str, Any]:
    """Returns what a delete to `offset` (exclusive) frees of a partition's segments, with a sentence."""
    whole = [each for each in found.described.segments if each.end_offset <= offset and not each.is_active]
    cut = next((each for each in found.described.segments if _stays(each, offset)), None)
    count, total = len(whole), sum(each.size_bytes for each in whole)
    parts = []
    if whole:
        when = f"{duration(delay_ms)} after the delete" if delay_ms else "at once"
        parts.append(f"{count} {'file is' if count == 1 else 'files are'} removed {when}")
    if cut is not None:
        kind = "the active segment" if cut.is_active else "a segment with other records"
        held = f"offsets {cut.base_offset} to {cut.end_offset - 1}, keeps {size(cut.size_bytes)}"
        parts.append(f"{kind}, {held} until all of it is deleted")
    text = "; ".join(parts) or "there are no records below that offset"
    replicas = max(1, sum(each.is_live for each in found.described.replicas))
    sentence = f"{text[0].upper()}{text[1:]}."
    return {"bytes": total, "on_all_disks": total * replicas, "segments": count, "delay_ms": delay_ms, "text": sentence}


def _stays(segment: DescribedSegment, offset: Offset) -> bool:
    """Returns whether the file of a segment stays although records of it are deleted."""
    return segment.base_offset < offset < segment.end_offset or (
        segment.is_active and segment.base_offset < segment.end_offset <= offset
    )


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
