"""What an erasure meets: holds that stop it, missing rights, groups that have read the records, dead letters.

And what it can't reach, in sentences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.configs import ConfigEntry, ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.finding import SearchedPartition
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.groups import SHARE
from lowtide.admin.share_groups import ShareOffset
from lowtide.console.answers import sentence_of
from lowtide.console.person_search import below
from lowtide.protocol.acl_values import AclOperation
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED, MetadataRequest, MetadataRequestTopic
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.groups import GroupListing

HOLD_UNTIL: Final = "lowtide.hold.until"
HOLD_REASON: Final = "lowtide.hold.reason"
CLEANUP: Final = "cleanup.policy"
DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
COPIES: Final = "errors.deadletterqueue.copy.record.enable"

GROUPS_MAX: Final = 500
"""Groups whose offsets are looked up."""

READERS_MAX: Final = 100
BEYOND: Final = (
    "Consumers may have copied the records before they were erased, to other topics, files, databases and logs.",
    "Backups, snapshots of volumes, mirrors in other clusters and freed blocks of disks may still have the records.",
    (
        "An Iceberg table that is written from a topic keeps the rows, unless the command line names it: "
        "lowtide records erase --table."
    ),
    "Groups that you may not describe are not named here.",
    "Brokers that are away erase when they are back.",
)

Config = Mapping[str, ConfigEntry]


async def reach_of(
    client: AdminClient,
    found: Mapping[TopicPartition, SearchedPartition],
    topics: Collection[str],
    now_ms: int,
) -> dict[str, Any]:
    """Returns what an erasure of these records meets. What can't be looked up is said in `unknown`."""
    unknown: list[str] = []
    with_records = sorted({key.topic for key in found})
    configs, denied, readers = await asyncio.gather(
        topic_configs(client, sorted(topics), unknown),
        without_delete(client, topics, unknown),
        _readers(client, found, unknown),
    )
    shares = [each for each in readers if each["kind"] == SHARE]
    return {
        "holds": [hold for name in sorted(configs) if (hold := hold_of(name, configs[name], now_ms)) is not None],
        "compacted": [name for name in with_records if _is_compacted(configs.get(name, {}))],
        "without_delete": denied,
        "readers": readers[:READERS_MAX],
        "readers_left_out": max(0, len(readers) - READERS_MAX),
        "dead_letters": await _dead_letters(client, shares, topics, unknown),
        "unknown": unknown,
        "beyond": list(BEYOND),
    }


# ---------------------------------------------------------------------- topics
async def topic_configs(client: AdminClient, topics: Sequence[str], unknown: list[str]) -> dict[str, Config]:
    """Returns the holds and the cleanup policies of topics."""
    if not topics:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    try:
        answers = await client.describe_configs(resources, keys=(HOLD_UNTIL, HOLD_REASON, CLEANUP))
    except AdminError as error:
        unknown.append(f"Holds are unknown: {sentence_of(error)}")
        return {}
    failed = [each for each in answers.values() if isinstance(each, AdminError)]
    if failed:
        unknown.append(f"Holds of {len(failed)} of {len(topics)} topics are unknown: {sentence_of(failed[0])}")
    return {key.name: each for key, each in answers.items() if not isinstance(each, AdminError)}


def hold_of(topic: str, config: Config, now_ms: int) -> dict[str, Any] | None:
    """Returns the hold of a topic for the page; None without one."""
    until, reason = config.get(HOLD_UNTIL), config.get(HOLD_REASON)
    text = until.value if until is not None and until.value else "-1"
    until_ms = int(text) if text.isascii() and text.isdigit() else -1
    if until_ms <= now_ms:
        return None
    return {"topic": topic, "until_ms": until_ms, "reason": (reason.value or "") if reason is not None else ""}


def _is_compacted(config: Config) -> bool:
    entry = config.get(CLEANUP)
    return entry is not None and "compact" in (entry.value or "")


async def without_delete(client: AdminClient, topics: Collection[str], unknown: list[str]) -> list[str]:
    """Returns the topics of which the user may delete nothing."""
    rows = [MetadataRequestTopic(name=name) for name in sorted(topics)]
    request = MetadataRequest(topics=rows, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
    try:
        response = await client.call().ask_any(request, "the rights on topics")
    except AdminError as error:
        unknown.append(f"Your rights are unknown: {sentence_of(error)}")
        return []
    bit = 1 << AclOperation.DELETE
    return [
        topic.name
        for topic in response.topics
        if not topic.error_code
        and topic.topic_authorized_operations != OPERATIONS_NOT_ASKED
        and not topic.topic_authorized_operations & bit
    ]


# ---------------------------------------------------------------------- groups
async def _readers(
    client: AdminClient, found: Mapping[TopicPartition, SearchedPartition], unknown: list[str]
) -> list[dict[str, Any]]:
    """Returns the groups that have committed offsets in the partitions, those that have read most records first."""
    if not found:
        return []
    try:
        listed = await client.list_groups()
        names = list(listed.groups)[:GROUPS_MAX]
        shares = [name for name in names if listed.groups[name].kind == SHARE]
        others = [name for name in names if name not in set(shares)]
        offsets: dict[str, Any] = {}
        if others:
            offsets |= await client.list_group_offsets({name: list(found) for name in others})
        if shares:
            offsets |= await client.list_share_group_offsets(shares)
    except AdminError as error:
        unknown.append(f"The groups that have read the records are unknown: {sentence_of(error)}")
        return []
    unknown += [
        f"The groups of broker {broker} are unknown: {sentence_of(each)}" for broker, each in listed.errors.items()
    ]
    if len(listed.groups) > GROUPS_MAX:
        unknown.append(f"Only {GROUPS_MAX} of {len(listed.groups)} groups were looked up.")
    failed = sum(isinstance(each, AdminError) for each in offsets.values())
    if failed:
        unknown.append(f"The offsets of {failed} groups are unknown.")
    rows = []
    for name, answer in offsets.items():
        if not isinstance(answer, AdminError):
            row = reader_row(listed.groups[name], answer, found)
            if row is not None:
                rows.append(row)
        await asyncio.sleep(0)
    return sorted(rows, key=lambda row: (-row["read"], row["group"]))


def reader_row(
    group: GroupListing,
    offsets: Mapping[TopicPartition, CommittedOffset | ShareOffset | AdminError],
    found: Mapping[TopicPartition, SearchedPartition],
) -> dict[str, Any] | None:
    """Returns how many of the records a group has passed; None if it has no offset in the partitions."""
    own = {key: each.offset for key, each in offsets.items() if not isinstance(each, AdminError) and key in found}
    if not own:
        return None
    return {
        "group": group.group_id,
        "kind": group.kind,
        "state": group.state,
        "topics": sorted({key.topic for key in own}),
        "read": sum(below(found[key].offsets, offset) for key, offset in own.items()),
        "at_least": any(found[key].has_more for key in own),
    }


async def _dead_letters(
    client: AdminClient, shares: Sequence[Mapping[str, Any]], searched: Collection[str], unknown: list[str]
) -> list[dict[str, Any]]:
    """Returns the dead-letter topics of share groups that read the topics."""
    if not shares:
        return []
    resources = [ConfigResource(ConfigResourceType.GROUP, each["group"]) for each in shares[:READERS_MAX]]
    try:
        answers = await client.describe_configs(resources, keys=(DEAD_LETTERS, COPIES))
    except AdminError as error:
        unknown.append(f"Dead-letter topics are unknown: {sentence_of(error)}")
        return []
    rows = []
    for resource, each in answers.items():
        name = None if isinstance(each, AdminError) else each.get(DEAD_LETTERS)
        if isinstance(each, AdminError):
            unknown.append(f"The dead-letter topic of {resource.name} is unknown: {sentence_of(each)}")
        elif name is not None and name.value:
            copies = each.get(COPIES)
            rows.append(
                {
                    "topic": name.value,
                    "group": resource.name,
                    "searched": name.value in searched,
                    "copies": copies is not None and copies.value == "true",
                }
            )
    return rows
