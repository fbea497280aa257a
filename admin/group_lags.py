"""How far groups are behind: from what they have committed to the log's end, without what is deleted by now.

A group that has committed below the log start will begin at the log start: what lies between isn't counted, for it
can't be read any more. Of a share group (KIP-932) the coordinator counts, for records behind its start may be done
with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.admin.client import AdminClient
from lowtide.admin.errors import AdminError
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.groups import SHARE
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.admin.share_groups import ShareOffset
from lowtide.protocol.types import Offset, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """One partition of a group. What isn't known is None; `log_end` is the high watermark."""

    partition: TopicPartition
    committed: Offset
    log_start: Offset | None
    log_end: Offset | None
    counted: int | None = None
    """What the coordinator of a share group has counted."""

    @property
    def records(self) -> int | None:
        """Offsets that are still to be read."""
        if self.counted is not None or self.log_end is None:
            return self.counted
        return max(0, self.log_end - max(self.committed, self.log_start or 0))


async def find_lags(
    client: AdminClient, kinds: Mapping[str, str], timeout_ms: int
) -> tuple[dict[str, list[Lag]], dict[Any, AdminError]]:
    """For each group, given with its kind, its partitions in order, and what is not known.

    A share group has its starts as `committed`.
    Errors: AdminError.
    """
    shares = [name for name, kind in kinds.items() if kind == SHARE]
    others = [name for name in kinds if name not in shares]
    answers: dict[str, Mapping[TopicPartition, Any] | AdminError] = {}
    if others:
        answers |= await client.list_group_offsets(others, timeout=timeout_ms / 1000)
    if shares:
        answers |= await client.list_share_group_offsets(shares, timeout=timeout_ms / 1000)
    failed: dict[Any, AdminError] = {name: each for name, each in answers.items() if isinstance(each, AdminError)}
    committed: dict[str, dict[TopicPartition, CommittedOffset | ShareOffset]] = {}
    for name, each in answers.items():
        if isinstance(each, AdminError):
            continue
        committed[name] = {key: row for key, row in each.items() if not isinstance(row, AdminError)}
        failed |= {f"{name}, {key}": row for key, row in each.items() if isinstance(row, AdminError)}
    if not committed:
        return {}, failed
    starts, ends = await ends_of(client, sorted({key for rows in committed.values() for key in rows}), timeout_ms)
    lags = {
        name: [
            Lag(
                partition=key,
                committed=row.offset,
                log_start=starts.get(key),
                log_end=ends.get(key),
                counted=row.lag if isinstance(row, ShareOffset) else None,
            )
            for key, row in sorted(rows.items())
        ]
        for name, rows in committed.items()
    }
    return lags, failed


async def ends_of(
    client: AdminClient, partitions: Sequence[TopicPartition], timeout_ms: int
) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]]:
    """Where partitions start and end, of those whose leaders tell."""
    starts = await client.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST), timeout=timeout_ms / 1000)
    ends = await client.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), timeout=timeout_ms / 1000)
    return (
        {key: each.offset for key, each in starts.items() if isinstance(each, ListedOffset)},
        {key: each.offset for key, each in ends.items() if isinstance(each, ListedOffset)},
    )
