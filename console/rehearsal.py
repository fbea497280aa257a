"""What a delete of records would do: up to where, how many records, which bytes are freed, and when.

Nothing is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.configs import ConfigResource, ResourceType
from lowtide.admin.delete_plan import make_plan
from lowtide.admin.deletion import Committed, DeleteTarget
from lowtide.admin.errors import AdminError
from lowtide.admin.offsets import Timestamp
from lowtide.admin.retained import duration, size
from lowtide.admin.wanted_offsets import parse_offset, parse_time
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import Given
from lowtide.console.delete_job import DeletePlan
from lowtide.console.insight import segments_of
from lowtide.console.topic import settings_of, topic_of
from lowtide.protocol.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.observation import PartitionSegments
    from lowtide.console.sessions import Session
    from lowtide.protocol.messages.describe_segments import DescribedSegment

TARGETS: Final = ("offset", "time", "committed", "all")
GROUPS_MAX: Final = 20
FREED_SEGMENTS_MAX: Final = 1_000
"""Segments of a partition that are looked at for what a delete frees."""

FREE_KEY: Final = "lowtide.log.free.deleted"
DELAY_KEY: Final = "file.delete.delay.ms"
DELAY_MS: Final = 60_000


async def rehearse_delete(session: Session, given: Given) -> DeletePlan:
    """What a delete would do. Errors: RefusedError, AdminError."""
    client = session.client
    name = arguments.topic(given)
    target, words = target_of(given)
    topic = await topic_of(client, name)
    numbers = list(topic.partitions) if given.get("partitions") is None else arguments.partitions(given)
    if set(numbers) - set(topic.partitions):
        raise bad(f"The topic has no partition {min(set(numbers) - set(topic.partitions))}.")
    timeout_ms = client.settings.default_api_timeout_ms
    view = await client.cluster.view([name], client.cluster.deadline(timeout_ms))
    targets = dict.fromkeys((TopicPartition(name, number) for number in numbers), target)
    plan = await make_plan(client, targets, view, timeout_ms, with_bytes=True)
    segments = await segments_of(session, list(plan.offsets), FREED_SEGMENTS_MAX)
    delay_ms = await _delay_ms(client, name, next(iter(segments.values())).leader) if segments else 0
    freed = {key: freed_by(segments[key], offset, delay_ms) for key, offset in plan.offsets.items() if key in segments}
    return DeletePlan(plan, words, leader_only=arguments.flag(given, "leader_only"), segments=freed)


async def _delay_ms(client: AdminClient, name: str, leader: BrokerId) -> int:
    """How long deleted segments take room: not at all where the broker empties them at once.

    Defaults where the user may not see it.
    """
    resource = ConfigResource(ResourceType.BROKER, str(leader))
    try:
        found = (await client.describe_configs([resource], keys=[FREE_KEY]))[resource]
    except AdminError:
        return 0
    if isinstance(found, AdminError) or FREE_KEY not in found or found[FREE_KEY].value != "false":
        return 0
    value = next((row["value"] for row in await settings_of(client, name) if row["key"] == DELAY_KEY), None)
    return int(value) if isinstance(value, str) and value.isdigit() else DELAY_MS


def freed_by(found: PartitionSegments, offset: Offset, delay_ms: int) -> dict[str, Any]:
    """What of a partition's segments a delete to `offset` (exclusive) frees on the leader's disk, and in words when, and what stays."""
    whole = [each for each in found.described.segments if each.end_offset <= offset and not each.is_active]
    cut = next((each for each in found.described.segments if _stays(each, offset)), None)
    count, total = len(whole), sum(each.size_bytes for each in whole)
    parts = []
    if whole:
        when = f"{duration(delay_ms)} after the delete" if delay_ms else "at once"
        parts.append(f"{count} {'file goes' if count == 1 else 'files go'} {when}")
    if cut is not None:
        kind = "the active segment" if cut.is_active else "a segment with records that stay"
        parts.append(
            f"{kind}, offsets {cut.base_offset} to {cut.end_offset - 1}, keeps {size(cut.size_bytes)} until all of it goes"
        )
    text = "; ".join(parts) or "nothing is below that offset"
    replicas = max(1, sum(each.is_live for each in found.described.replicas))
    sentence = f"{text[0].upper()}{text[1:]}."
    return {"bytes": total, "on_all_disks": total * replicas, "segments": count, "delay_ms": delay_ms, "text": sentence}


def _stays(segment: DescribedSegment, offset: Offset) -> bool:
    """Whether its file stays although records of it go."""
    return segment.base_offset < offset < segment.end_offset or (
        segment.is_active and segment.base_offset < segment.end_offset <= offset
    )


def target_of(given: Given) -> tuple[DeleteTarget, str]:
    """What is asked for, and in words. Errors: RefusedError."""
    kind = arguments.choice(given, "to", TARGETS)
    if kind == "all":
        return -1, "all records that are there now"
    if kind == "committed":
        groups = arguments.texts(given, "groups", GROUPS_MAX)
        return Committed(
            groups
        ), f"all records that {' and '.join(groups)} {'has' if len(groups) == 1 else 'have all'} consumed"
    text = arguments.text(given, "value", longest=64)
    try:
        if kind == "time":
            return Timestamp(parse_time(text)), f"all records before the first one of {text} or later"
        offset = parse_offset(text)
    except ValueError as error:
        raise bad(sentence_of(error)) from None
    return offset, "all records that are there now" if offset < 0 else f"all records below offset {offset}"
