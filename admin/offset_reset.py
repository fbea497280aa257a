"""Where a group's offsets would be set: looked up first, kept within what the log has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from lowtide.admin.errors import AdminError
from lowtide.admin.group_lags import ends_of
from lowtide.admin.groups import SHARE, GroupDescription
from lowtide.admin.offsets import ListedOffset, Timestamp
from lowtide.admin.wanted_offsets import END, parse_offset, parse_time
from lowtide.protocol.types import Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Exactly one of these."""

    place: str | None = None
    """`earliest` or `latest`."""
    offset: Offset | None = None
    time_ms: int | None = None
    shift: int | None = None

    @classmethod
    def of(cls, to: str | None, to_time: str | None, shift_by: int | None) -> Self:
        """From texts, exactly one of them: a place or an offset, a time, a shift. Errors: ValueError, a sentence."""
        if sum(each is not None for each in (to, to_time, shift_by)) != 1:
            message = "exactly one place is needed: an offset, a time or a shift"
            raise ValueError(message)
        if to_time is not None:
            return cls(time_ms=parse_time(to_time))
        if to in (EARLIEST, LATEST, END):
            return cls(place=EARLIEST if to == EARLIEST else LATEST)
        return cls(offset=parse_offset(to)) if to is not None else cls(shift=shift_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReset:
    """One partition: what is committed (None: nothing), what it is to be (None: that isn't known, and `reason` says why)."""

    partition: TopicPartition
    old: Offset | None
    new: Offset | None
    reason: str | None


async def is_share_group(client: AdminClient, group: str, timeout_ms: int) -> bool:
    """Whether there is a share group of this name."""
    described = (await client.describe_groups([group], timeout=timeout_ms / 1000))[group]
    return isinstance(described, GroupDescription) and described.kind == SHARE


async def committed_offsets(
    client: AdminClient, group: str, timeout_ms: int, *, shares: bool = False
) -> dict[TopicPartition, Offset]:
    """What a group has committed; with `shares`, where a share group starts. Errors: AdminError."""
    answers: Mapping[str, Mapping[TopicPartition, Any] | AdminError]
    if shares:
        answers = await client.list_share_group_offsets([group], timeout=timeout_ms / 1000)
    else:
        answers = await client.list_group_offsets([group], timeout=timeout_ms / 1000)
    answer = answers[group]
    if isinstance(answer, AdminError):
        raise answer
    return {key: each.offset for key, each in answer.items() if not isinstance(each, AdminError)}


async def set_offsets(
    client: AdminClient, group: str, planned: Iterable[PlannedReset], timeout_ms: int, *, shares: bool = False
) -> dict[TopicPartition, AdminError | None]:
    """Set what was planned, where that is known. Errors: AdminError."""
    new = {each.partition: each.new for each in planned if each.new is not None}
    if not new:
        return {}
    if shares:
        return await client.alter_share_group_offsets(group, new, timeout=timeout_ms / 1000)
    return await client.alter_group_offsets(group, dict(new), timeout=timeout_ms / 1000)


async def plan_reset(
    client: AdminClient,
    partitions: Collection[TopicPartition],
    committed: Mapping[TopicPartition, Offset],
    wanted: Wanted,
    timeout_ms: int,
) -> list[PlannedReset]:
    """Look up where to; `committed` is what the group has now. Nothing is set. Errors: AdminError."""
    starts, ends = await ends_of(client, sorted(partitions), timeout_ms)
    times: Mapping[TopicPartition, Any] = {}
    if wanted.time_ms is not None:
        times = await client.list_offsets(
            dict.fromkeys(partitions, Timestamp(wanted.time_ms)), timeout=timeout_ms / 1000
        )
    return [
        new_offset(key, committed.get(key), wanted, (starts.get(key), ends.get(key)), times.get(key))
        for key in partitions
    ]


def new_offset(
    partition: TopicPartition,
    old: Offset | None,
    wanted: Wanted,
    log: tuple[Offset | None, Offset | None],
    at_time: ListedOffset | AdminError | None,
) -> PlannedReset:
    """Where one partition is set, within `log`: its start, and its end (exclusive)."""
    start, end = log
    if start is None or end is None:
        return PlannedReset(
            partition=partition, old=old, new=None, reason="its leader doesn't tell where it starts and ends"
        )
    if isinstance(at_time, AdminError):
        return PlannedReset(partition=partition, old=old, new=None, reason=str(at_time))
    if wanted.place is not None:
        new = start if wanted.place == EARLIEST else end
    elif wanted.shift is not None:
        if old is None:
            return PlannedReset(
                partition=partition, old=None, new=None, reason="nothing is committed that could be shifted"
            )
        new = old + wanted.shift
    elif at_time is not None:
        new = end if at_time.offset < 0 else at_time.offset
    else:
        assert wanted.offset is not None
        new = wanted.offset if wanted.offset >= 0 else end
    return PlannedReset(partition=partition, old=old, new=min(max(new, start), end), reason=None)
