"""Plans new committed offsets of a group: looks them up, and keeps them between log start and high watermark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from lowtide.admin.errors import AdminError
from lowtide.admin.groups import SHARE, GroupDescription
from lowtide.admin.offsets import ListedOffset, Timestamp, ends_of
from lowtide.admin.wanted_offsets import END, parse_offset, parse_time
from lowtide.protocol.types import Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTarget:
    """Where a group's offsets are set. Exactly one field is given."""

    place: str | None = None
    """`earliest` or `latest`."""
    offset: Offset | None = None
    time_ms: int | None = None
    shift: int | None = None

    @classmethod
    def of(cls, to: str | None, to_time: str | None, shift_by: int | None) -> Self:
        """Reads exactly one text: a place or an offset, a time, or a shift. Errors: ValueError, a sentence."""
        if sum(each is not None for each in (to, to_time, shift_by)) != 1:
            raise ValueError("give exactly one of an offset, a time and a shift")
        if to_time is not None:
            return cls(time_ms=parse_time(to_time))
        if to in (EARLIEST, LATEST, END):
            return cls(place=EARLIEST if to == EARLIEST else LATEST)
        return cls(offset=parse_offset(to)) if to is not None else cls(shift=shift_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReset:
    """One partition: its committed offset, if any, and the new one, or the reason why there is none."""

    partition: TopicPartition
    old: Offset | None
    new: Offset | None
    reason: str | None


async def is_share_group(client: AdminClient, group: str) -> bool:
    """Returns whether a share group has this name."""
    described = (await client.describe_groups([group]))[group]
    return isinstance(described, GroupDescription) and described.kind == SHARE


async def partitions_to_reset(
    client: AdminClient, group: str, committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """Returns the partitions whose offsets are reset unless others are named: those with committed offsets, sorted.

    Of a streams group they are those of source topics, as in Kafka's tools: records in internal topics come from them.
    """
    described = (await client.describe_groups([group]))[group]
    topology = described.topology if isinstance(described, GroupDescription) else None
    sources = None if topology is None else topology.source_topics()
    return sorted(key for key in committed if sources is None or key.topic in sources)


async def committed_offsets(client: AdminClient, group: str, *, shares: bool = False) -> dict[TopicPartition, Offset]:
    """Returns the committed offsets of a group; with `shares`, the start offsets of a share group.

    Errors: AdminError.
    """
    answers: Mapping[str, Mapping[TopicPartition, Any] | AdminError]
    if shares:
        answers = await client.list_share_group_offsets([group])
    else:
        answers = await client.list_group_offsets([group])
    answer = answers[group]
    if isinstance(answer, AdminError):
        raise answer
    return {key: each.offset for key, each in answer.items() if not isinstance(each, AdminError)}


async def set_offsets(
    client: AdminClient, group: str, planned: Iterable[PlannedReset], *, shares: bool = False
) -> dict[TopicPartition, AdminError | None]:
    """Sets the planned offsets, except those with a reason. Errors: AdminError."""
    new = {each.partition: each.new for each in planned if each.new is not None}
    if not new:
        return {}
    if shares:
        return await client.alter_share_group_offsets(group, new)
    return await client.alter_group_offsets(group, dict(new))


async def plan_reset(
    client: AdminClient,
    partitions: Collection[TopicPartition],
    committed: Mapping[TopicPartition, Offset],
    wanted: ResetTarget,
) -> list[PlannedReset]:
    """Looks up new offsets, and sets nothing. `committed` are the group's present ones. Errors: AdminError."""
    starts, ends = await ends_of(client, sorted(partitions))
    times: Mapping[TopicPartition, Any] = {}
    if wanted.time_ms is not None:
        times = await client.list_offsets(dict.fromkeys(partitions, Timestamp(wanted.time_ms)))
    return [
        new_offset(key, committed.get(key), wanted, (starts.get(key), ends.get(key)), times.get(key))
        for key in partitions
    ]


def new_offset(
    partition: TopicPartition,
    old: Offset | None,
    wanted: ResetTarget,
    log: tuple[Offset | None, Offset | None],
    at_time: ListedOffset | AdminError | None,
) -> PlannedReset:
    """Returns the new offset of one partition. `log` has its log start and its high watermark (exclusive)."""
    start, end = log

    def planned(new: Offset | None, reason: str | None = None) -> PlannedReset:
        return PlannedReset(partition=partition, old=old, new=new, reason=reason)

    if start is None or end is None:
        return planned(None, "its leader did not return where its log starts and ends")
    if isinstance(at_time, AdminError):
        return planned(None, str(at_time))
    if wanted.place is not None:
        new = start if wanted.place == EARLIEST else end
    elif wanted.shift is not None:
        if old is None:
            return planned(None, "the group has committed no offset that could be shifted")
        new = old + wanted.shift
    elif at_time is not None:
        new = end if at_time.offset < 0 else at_time.offset
    else:
        assert wanted.offset is not None
        new = wanted.offset if wanted.offset >= 0 else end
    return planned(min(max(new, start), end))
