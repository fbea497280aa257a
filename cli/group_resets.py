"""Where a group's offsets are set: looked up first, kept within what the log has, and shown beside what they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from lowtide.admin.client import AdminClient
from lowtide.admin.errors import AdminError
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.offsets import ListedOffset, Timestamp
from lowtide.cli.cluster_questions import view_of_topics
from lowtide.cli.delete_plan import chosen_partitions
from lowtide.cli.group_lags import ends_of
from lowtide.cli.outcome import misused
from lowtide.cli.results import error_value
from lowtide.cli.wanted_offsets import END, parse_offset, parse_partitions, parse_time
from lowtide.protocol.types import Offset, TopicPartition

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
        """What the options say. Errors: CommandError."""
        if sum(each is not None for each in (to, to_time, shift_by)) != 1:
            raise misused("it has to be said where to: give one of --to, --to-time and --shift-by.")
        try:
            if to_time is not None:
                return cls(time_ms=parse_time(to_time))
            if to in (EARLIEST, LATEST, END):
                return cls(place=EARLIEST if to == EARLIEST else LATEST)
            return cls(offset=parse_offset(to)) if to is not None else cls(shift=shift_by)
        except ValueError as error:
            raise misused(f"{error}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReset:
    """One partition: what is committed (None: nothing), what it is to be (None: that isn't known, and `reason` says why)."""

    partition: TopicPartition
    old: Offset | None
    new: Offset | None
    reason: str | None


async def plan_reset(client: AdminClient, group: str, topics: Iterable[str], wanted: Wanted, timeout_ms: int) -> list[PlannedReset]:
    """Look up where to. Errors: CommandError, AdminError."""
    answer = (await client.list_group_offsets([group], timeout=timeout_ms / 1000))[group]
    if isinstance(answer, AdminError):
        raise answer
    committed = {key: each.offset for key, each in answer.items() if isinstance(each, CommittedOffset)}
    named = list(topics)
    if named:
        for text in named:
            try:
                parse_partitions(text)
            except ValueError as error:
                raise misused(f"{error}.") from None
        view = await view_of_topics(client, list(dict.fromkeys(text.partition(":")[0] for text in named)), timeout_ms)
        partitions = chosen_partitions(named, view)
    elif committed:
        partitions = sorted(committed)
    else:
        raise misused(f"group {group} has committed nothing: name topics by --topic.")
    starts, ends = await ends_of(client, partitions, timeout_ms)
    times: Mapping[TopicPartition, Any] = {}
    if wanted.time_ms is not None:
        times = await client.list_offsets(dict.fromkeys(partitions, Timestamp(wanted.time_ms)), timeout=timeout_ms / 1000)
    return [new_offset(key, committed.get(key), wanted, (starts.get(key), ends.get(key)), times.get(key)) for key in partitions]


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
        return PlannedReset(partition=partition, old=old, new=None, reason="its leader doesn't tell where it starts and ends")
    if isinstance(at_time, AdminError):
        return PlannedReset(partition=partition, old=old, new=None, reason=str(at_time))
    if wanted.place is not None:
        new = start if wanted.place == EARLIEST else end
    elif wanted.shift is not None:
        if old is None:
            return PlannedReset(partition=partition, old=None, new=None, reason="nothing is committed that could be shifted")
        new = old + wanted.shift
    elif at_time is not None:
        new = end if at_time.offset < 0 else at_time.offset
    else:
        assert wanted.offset is not None
        new = wanted.offset if wanted.offset >= 0 else end
    return PlannedReset(partition=partition, old=old, new=min(max(new, start), end), reason=None)


def reset_rows(
    planned: Sequence[PlannedReset], outcomes: Mapping[TopicPartition, AdminError | None]
) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    """A table for people."""
    rows: list[tuple[object, ...]] = [
        (each.partition.topic, each.partition.partition, each.old, each.new, each.reason or str(outcomes.get(each.partition) or ""))
        for each in planned
    ]
    return ("topic", "partition", "was", "is to be", "remark"), rows


def reset_value(each: PlannedReset, error: AdminError | None) -> dict[str, Any]:
    """For programs."""
    reason = None if each.reason is None else {"code": None, "message": each.reason}
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "old": each.old,
        "new": each.new,
        "error": reason if error is None else error_value(error),
    }
